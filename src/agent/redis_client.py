"""Connections to the queue server, with a bound on every wait."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from agent.redis_address import check_address, check_certificates, unreadable

CONNECT_TIMEOUT = 5.0
"""Seconds to open a connection."""

REPLY_TIMEOUT = 15.0
"""Seconds to wait for a reply; above the longest blocking command that we send."""

T = TypeVar("T")


async def reply(call: Awaitable[T] | T) -> T:
    """What an asynchronous client's call answers; redis-py types some as if they might be synchronous."""
    return await cast("Awaitable[T]", call)


def connect(url: str) -> Redis:
    """A client for `url` that gives up on a silent server instead of waiting for ever.

    Raises ConfigError where the address cannot be meant; no password is in the message.
    """
    check_address(url)
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
        raise unreadable() from None
    check_certificates(client)
    return client
