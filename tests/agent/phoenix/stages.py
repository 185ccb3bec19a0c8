"""A pipeline of stages on a real server: for each a stream, a bridge, a queue and a worker, all in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from agent.cancelling import end
from agent.phoenix import keys
from agent.phoenix.bridge import Bridge
from agent.phoenix.queue import LaneQueue
from agent.processors import BaseProcessor
from agent.processors.inline import OneKey
from agent.processors.task import task_of
from tests.agent.phoenix.engines import running
from tests.agent.phoenix.surrounded import surrounding_worker

PATIENCE = 60.0


class Stage:
    """One service: its queue, and what is asked of it."""

    def __init__(self, redis: Redis, service: str, processor: type[BaseProcessor], agent: str = "local") -> None:
        self.redis = redis
        self.service = service
        self.stream = keys.stream_key(service)
        self.group = keys.group_name(service)
        self.processor = processor(service, redis, OneKey("none"))
        self.queue = LaneQueue(redis, name=f"phaze-agent-{agent}-{service}", lease=1.0)
        self.bridges: list[Bridge] = []

    def bridge(self, **options: Any) -> Bridge:
        """One more bridge."""
        options = {"slots": 4, "drops_pages": self.processor.last_to_read_pages, "idle": 0.5, **options}
        self.bridges.append(Bridge(self.queue, self.service, **options))
        return self.bridges[-1]

    @contextlib.asynccontextmanager
    async def bridged(self, **options: Any) -> AsyncIterator[Bridge]:
        """A bridge at work."""
        bridge = self.bridge(**options)
        running = asyncio.create_task(bridge.run())
        try:
            yield bridge
        finally:
            assert await end([running])

    @contextlib.asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[None]:
        """A worker at work, and a bridge unless `bridge=False`."""
        worker = surrounding_worker(self.queue, {self.service: task_of(self.processor)}, sweep=0.3)
        async with contextlib.AsyncExitStack() as stack:
            if options.pop("bridge", True):
                await stack.enter_async_context(self.bridged(claimed=worker.claimed, **options))
            await stack.enter_async_context(running(worker))
            yield

    async def ask(self, record_id: str, user_id: str = "u1", **data: Any) -> str:
        """What a producer does; the entry's id."""
        fields: Any = {"record_id": record_id, "user_id": user_id, "data": json.dumps(data)}
        return str((await self.redis.xadd(self.stream, fields)).decode())

    async def pending(self) -> int:
        """Entries that were handed out and are not over."""
        with contextlib.suppress(Exception):
            return int((await self.redis.xpending(self.stream, self.group))["pending"])
        return 0

    async def left(self) -> int:
        """Entries that are not over."""
        return int(await self.redis.xlen(self.stream))

    async def marker(self, record_id: str) -> dict[str, Any]:
        """What is recorded of a record."""
        return dict(json.loads(await self.redis.get(keys.marker_key(self.service, record_id)) or b"{}"))

    async def letters(self, place: Callable[[str], str] = keys.dead_letters_key) -> list[dict[str, Any]]:
        """The dead letters."""
        return [json.loads(row) for row in await self.redis.lrange(place(self.service), 0, -1)]


async def until(condition: Callable[[], Awaitable[Any]], within: float = PATIENCE) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.02)
