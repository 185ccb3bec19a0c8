"""Where files are pushed to, as people write it: ssh://USER@HOST[:PORT]/FOLDER."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

HOST = r"^[A-Za-z0-9\[][A-Za-z0-9.:\]_-]*$"
USER = r"^[A-Za-z_][A-Za-z0-9._-]*$"
"""Names that ssh takes for nothing else, such as an option."""

FORM = "ssh://USER@HOST[:PORT]/FOLDER"


@dataclass(frozen=True)
class SshTarget:
    """One. `folder`: absolute, on the other machine."""

    host: str
    port: int
    user: str
    folder: bytes


def ssh_target(url: str) -> SshTarget:
    """Read it. Raises ValueError, whose message does not repeat it: somebody may have put a password there."""
    try:
        parts = urlsplit(url)
        host, port, user = parts.hostname, parts.port, parts.username
    except ValueError:
        raise ValueError("must have a host, and as its port, if any, a number from 1 to 65535") from None
    if parts.password is not None:
        raise ValueError(f"must be {FORM}, without a password: PHAZE_PUSH_KEY opens the door")
    if parts.scheme != "ssh" or not host or not user or len(parts.path) < 2 or parts.query or parts.fragment:
        raise ValueError(f"must be {FORM}")
    if port == 0 or not re.match(HOST, host) or not re.match(USER, user):
        raise ValueError(f"must be {FORM}, with a host, a port and a user as they are named")
    return SshTarget(host, port or 22, user, unquote_to_bytes(parts.path))
