"""What is wrong with the queue server, in one line with the remedy; and whether waiting may help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from redis.exceptions import NoPermissionError, ResponseError

from agent.redaction import redact_text

LONGEST = 300
"""Characters of what the server said that are shown."""


@dataclass(frozen=True)
class Trouble:
    """`lasting`: only somebody who changes something can mend it; else it is worth waiting."""

    said: str
    remedy: str
    lasting: bool

    def __str__(self) -> str:
        return f"{self.said}; {self.remedy}"


CERTIFICATE_OF_OURS = "rediss://...?ssl_certfile=/path/to/client.pem&ssl_keyfile=/path/to/client.key"

DENIED = r"ACL failure in script|The user executing the script can't"
"""A script's command that the user may not run is an error of the script's to redis-py."""

LASTING: tuple[tuple[str, str], ...] = (
    (
        r"certificate is not valid for|[Hh]ostname mismatch|IP address mismatch",
        "name it in PHAZE_REDIS_URL as its certificate does, or add ?ssl_check_hostname=false",
    ),
    (r"certificate has expired|certificate is not yet valid", "renew its certificate, or set this machine's clock"),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "give its CA's certificate: rediss://...?ssl_ca_certs=/path/to/ca.pem (or, where nobody can listen in, "
        "?ssl_cert_reqs=none)",
    ),
    (
        r"CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE|BAD_CERTIFICATE",
        f"it wants a certificate of ours: {CERTIFICATE_OF_OURS}",
    ),
    (r"WRONG_VERSION_NUMBER|UNKNOWN_PROTOCOL", "this port speaks no TLS: write redis:// in PHAZE_REDIS_URL"),
    (
        r"^Authentication required|NOAUTH",
        "write user and password in PHAZE_REDIS_URL: redis://user:password@host:6379",
    ),
    (
        r"(?i)without any password configured|but no password is set",
        "take the password out of PHAZE_REDIS_URL, or give the server's user one",
    ),
    (
        r"(?i)username-password pair|WRONGPASS|invalid password",
        "correct user and password in PHAZE_REDIS_URL (special characters percent-encoded: @ is %40)",
    ),
    (r"protected mode", "give the server's user a password and write it in PHAZE_REDIS_URL"),
    (r"WRONGTYPE|; rename it", "a key of ours holds what somebody else put there: rename or delete it"),
    (r"DB index is out of range", "lower the database number at the end of PHAZE_REDIS_URL, or raise `databases`"),
    (r"READONLY|read only replica", "PHAZE_REDIS_URL names a replica; name its primary"),
    (
        r"(?i)cluster|CROSSSLOT|same slot|^MOVED",
        "PHAZE_REDIS_URL names a Redis Cluster, and a job's keys must be on one server: use a single primary",
    ),
)
"""What the server or the TLS library says, and the remedy. The first that fits."""

PASSING: tuple[tuple[str, str], ...] = (
    (r"(?i)loading the dataset", "it still loads its data; wait until it has"),
    (r"used memory > ", "it is full: raise its maxmemory, or free what it holds (runbooks/out-of-memory.md)"),
    (r"MISCONF|NOREPLICAS|MASTERDOWN|TRYAGAIN|^BUSY", "mend that on the server; its log says more"),
    (r"(?i)max number of clients", "raise its maxclients, or close what is connected to it"),
    (
        r"(?i)reset by peer|closed by server|connection lost|IncompleteRead|Broken pipe|EOF occurred",
        "see its log; if its port speaks TLS, write rediss:// in PHAZE_REDIS_URL, and if it asks for a certificate, "
        f"{CERTIFICATE_OF_OURS}",
    ),
    (
        r"(?i)time(d)? ?out",
        "see that it runs and that PHAZE_REDIS_URL is its address; if its port speaks no TLS, write redis://",
    ),
)


def trouble(error: BaseException) -> Trouble:
    """What `error`, raised by a call to the server, means for the person who runs this."""
    said = redact_text(" ".join(str(error).split())) or type(error).__name__
    if len(said) > LONGEST:
        said = said[:LONGEST] + "..."
    if isinstance(error, NoPermissionError) or re.search(DENIED, said):
        return Trouble(said, "grant it, as the rule in README, Configuration does", lasting=True)
    for pattern, remedy in LASTING:
        if re.search(pattern, said):
            return Trouble(said, remedy, lasting=True)
    for pattern, remedy in PASSING:
        if re.search(pattern, said):
            return Trouble(said, remedy, lasting=False)
    if isinstance(error, ResponseError):
        return Trouble(said, "use Redis 7 or newer, or Valkey, as README, Configuration says", lasting=True)
    return Trouble(said, "see that it runs and that PHAZE_REDIS_URL is its address", lasting=False)
