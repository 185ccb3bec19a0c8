"""Connections to the queue server, with a bound on every wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import hiredis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as NoReply

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

from agent.redis_address import check_address, check_certificates, unreadable

CONNECT_TIMEOUT = 5.0
"""Seconds to open a connection."""

REPLY_TIMEOUT = 15.0
"""Seconds to wait for a reply; above the longest blocking command that we send."""

AWAY = (NoConnection, NoReply, ReadOnlyError, OSError)
"""What calls raise while the server is away, still loads, or has just become somebody's replica."""

MAX_PAUSE = 2.0
"""Seconds between two calls to a server that is away."""

T = TypeVar("T")


async def reply(call: Awaitable[T] | T) -> T:
    """What an asynchronous client's call answers; redis-py types some as if they might be synchronous."""
    return await cast("Awaitable[T]", call)


async def persist(call: Callable[[], Awaitable[T]], within: float) -> T:
    """What `call` comes to, called again and again while the server is away.

    After `within` seconds it is over, whatever a silent server keeps: raises what the last call did, or TimeoutError.
    """
    ends, pause = time.monotonic() + within, 0.1
    while True:
        try:
            async with asyncio.timeout(ends - time.monotonic()):
                return await call()
        except AWAY:
            if time.monotonic() + pause > ends:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)


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
            retry_on_error=[ReadOnlyError],  # on a new connection: after a failover the name leads elsewhere
            driver_info=None,  # a command more per connection, which the least ACL rule need not allow
            **options,
        )
    except ValueError:
        raise unreadable() from None
    check_certificates(client)
    return client


class Line:
    """One connection of its own, for calls that follow each other closely: nothing is taken from a pool and put back,
    nothing is repeated, one bound stands around all of a call. After a failure the next call connects anew.

    A call costs the client a quarter of what redis-py's `execute_command` costs, and packing its arguments in C a
    seventh of packing them in Python.
    """

    def __init__(self, redis: Redis, timeout: float) -> None:
        self._make: Callable[[], AbstractConnection] = redis.connection_pool.make_connection
        self.timeout = timeout
        self._connection: AbstractConnection | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def execute_command(self, *args: Any) -> Any:
        """The reply. Raises RedisError or OSError; after anything but the server's own word it is not known whether the
        command was carried out."""
        if self._connection is None:
            self._connection = self._make()
            self._connection.socket_timeout = None  # the bound is ours
        connection = self._connection
        try:
            async with asyncio.timeout(self.timeout):
                if self._writer is None:
                    await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's own lack
                    self._writer = connection._writer  # redis-py forgets it before it is closed
                await connection.send_packed_command(hiredis.pack_command(args), check_health=False)
                return await connection.read_response()
        except ReadOnlyError:  # it is a replica now; its name may lead to the new primary
            await self.close()
            raise
        except ResponseError:
            raise
        except TimeoutError:
            await self.close()
            raise NoReply(f"no reply within {self.timeout:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()  # else what was given up is sent all the same, and slows what follows it
        if connection is not None:
            await connection.disconnect(nowait=True)
