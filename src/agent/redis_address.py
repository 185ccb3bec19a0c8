"""The queue server's address: read with care, and never shown, for it holds a password."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from redis.asyncio.connection import SSLConnection
from redis.exceptions import RedisError

from agent.errors import ConfigError

if TYPE_CHECKING:
    from redis.asyncio import Redis

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname")
OPTIONS = ("db", "username", "password")
"""What may stand behind the `?` of the address. redis-py takes more, some of which our code could not work with
(decode_responses, protocol) and none of which it warns about when misspelt."""


def unreadable() -> ConfigError:
    """For an address of which nothing can be told without showing it."""
    return ConfigError(
        "PHAZE_REDIS_URL is no address like redis://user:password@host:6379/0; write special characters of user and "
        "password percent-encoded (/ is %2F, @ is %40, # is %23, % is %25)"
    )


def check_address(url: str) -> None:
    """Raises ConfigError for what redis-py would pass over, or trip over later."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises where it is no number
        given = parse_qs(parts.query, keep_blank_values=True)
    except ValueError:
        raise unreadable() from None
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ConfigError("PHAZE_REDIS_URL names no socket; write unix:///path/to/the.sock")
    elif parts.fragment or not re.fullmatch(r"/?|/[0-9]+", parts.path):
        raise unreadable()
    taken = OPTIONS + (TLS_OPTIONS if parts.scheme == "rediss" else ())
    if unknown := sorted(given.keys() - set(taken)):
        hint = "; certificates are for rediss://" if set(unknown) & set(TLS_OPTIONS) else ""
        raise ConfigError(
            f"PHAZE_REDIS_URL has ?{unknown[0]}=, which is not an option of it; there are {', '.join(taken)}{hint}"
        )
    if not all(value.isdigit() for value in given.get("db", ())):
        raise ConfigError("PHAZE_REDIS_URL has a ?db= that is no number; write ?db=0")


def check_certificates(client: Redis) -> None:
    """Raises ConfigError for certificates that cannot be read: at once, not with every attempt to connect."""
    pool = client.connection_pool
    if not issubclass(pool.connection_class, SSLConnection):
        return
    given = {name: pool.connection_kwargs[name] for name in TLS_OPTIONS if name in pool.connection_kwargs}
    if not given:
        return
    try:
        pool.connection_class(**pool.connection_kwargs).ssl_context.get()
    except (RedisError, OSError, ValueError) as error:  # ssl.SSLError is an OSError
        shown = ", ".join(f"{name}={value}" for name, value in given.items() if name != "ssl_password")
        raise ConfigError(
            f"PHAZE_REDIS_URL: the certificates cannot be used ({shown}: {error}); name readable PEM files, "
            "and required or none for ssl_cert_reqs"
        ) from None
