"""Connections to the queue server: its address is read with care, and every wait has a bound."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError

from agent.errors import ConfigError

CONNECT_TIMEOUT = 5.0
"""Seconds to open a connection."""

REPLY_TIMEOUT = 15.0
"""Seconds to wait for a reply; above the longest blocking command that we send."""

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname")
OPTIONS = ("db", "username", "password")
"""What may stand behind the `?` of the address. redis-py takes more, some of which our code could not work with
(decode_responses, protocol) and none of which it warns about when misspelt."""

T = TypeVar("T")


async def reply(call: Awaitable[T] | T) -> T:
    """What an asynchronous client's call answers; redis-py types some as if they might be synchronous."""
    return await cast("Awaitable[T]", call)


def connect(url: str) -> Redis:
    """A client for `url` that gives up on a silent server instead of waiting for ever.

    Raises ConfigError where the address cannot be meant; neither it nor any part of it is in the message.
    """
    _check_address(url)
    options: dict[str, Any] = {} if url.startswith("unix://") else {"socket_keepalive": True}
    try:
        client = Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=REPLY_TIMEOUT,
            health_check_interval=30,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), retries=3),
            driver_info=None,  # a command more per connection, which the least ACL rule need not allow
            **options,
        )
    except ValueError:
        raise _unreadable() from None
    _check_tls(client)
    return client


def _unreadable() -> ConfigError:
    return ConfigError(
        "PHAZE_REDIS_URL is no address like redis://user:password@host:6379/0; write special characters of user and "
        "password percent-encoded (/ is %2F, @ is %40, # is %23, % is %25)"
    )


def _check_address(url: str) -> None:
    """What redis-py would pass over or trip over later."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises where it is no number
        given = parse_qs(parts.query, keep_blank_values=True)
    except ValueError:
        raise _unreadable() from None
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ConfigError("PHAZE_REDIS_URL names no socket; write unix:///path/to/the.sock")
    elif parts.fragment or not re.fullmatch(r"/?|/[0-9]+", parts.path):
        raise _unreadable()
    taken = OPTIONS + (TLS_OPTIONS if parts.scheme == "rediss" else ())
    if unknown := sorted(given.keys() - set(taken)):
        hint = "; certificates are for rediss://" if set(unknown) & set(TLS_OPTIONS) else ""
        raise ConfigError(
            f"PHAZE_REDIS_URL has ?{unknown[0]}=, which is not an option of it; there are {', '.join(taken)}{hint}"
        )
    if not all(value.isdigit() for value in given.get("db", ())):
        raise ConfigError("PHAZE_REDIS_URL has a ?db= that is no number; write ?db=0")


def _check_tls(client: Redis) -> None:
    """Certificates that are not there are told at once, not with every attempt to connect."""
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
