"""The queue server that the operator's commands speak to: an outside one, or that of a running `phaze up`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from agent.errors import UserError
from agent.redis_client import connect, reply
from agent.redis_trouble import trouble
from agent.settings import Settings

T = TypeVar("T")

ANSWER = 10.0
"""Seconds for the server to answer at all."""


def address(settings: Settings) -> str:
    """PHAZE_REDIS_URL, else the embedded server of a running `phaze up` on the same data folder. Raises UserError."""
    if settings.redis_address is not None:
        return settings.redis_address
    try:
        return (settings.data_dir / "redis.url").read_text("utf-8").strip()
    except OSError:
        raise UserError(
            f"no `phaze up` runs on {settings.data_dir}, and PHAZE_REDIS_URL is not set; "
            "start one (`phaze up` without a folder keeps everything as it is), or name the server"
        ) from None


@asynccontextmanager
async def server(settings: Settings) -> AsyncIterator[Redis]:
    """A client on it. Raises UserError where it does not answer, or not as it should."""
    client = connect(address(settings))
    try:
        async with asyncio.timeout(ANSWER):
            await reply(client.ping())
        yield client
    except (RedisError, OSError, TimeoutError) as error:
        does = "refuses" if isinstance(error, ResponseError) else "does not answer"
        raise UserError(f"the queue server {does}: {trouble(error)}") from None
    finally:
        await client.aclose()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's coroutine."""
    return asyncio.run(work)
