"""Jobs that wait for a circuit, or for the end of a pause: let go as far as it allows, before what came after them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.phoenix import keys
from agent.redis_client import reply

if TYPE_CHECKING:
    from agent.phoenix.breaker import Breakers
    from agent.phoenix.queue import LaneQueue

PAUSED_PREFIX = "paused:"
MOST = 1_000
"""Jobs that are let go at once."""

LOOK = 10.0
"""Seconds until what lets nothing through is asked again: waiting jobs cost less than a command a second."""


class Parked:
    """What waits on one queue."""

    def __init__(self, queue: LaneQueue, breakers: Breakers) -> None:
        self._queue = queue
        self._breakers = breakers
        self._ask_at: dict[str, float] = {}
        """Circuit -> when it is worth asking, in monotonic seconds."""

    async def learn(self) -> None:
        """Find out what jobs of this queue wait for."""
        waiting = await reply(self._queue.redis.smembers(keys.parked_index_key(self._queue.name)))
        self._ask_at = {name: self._ask_at.get(name, 0.0) for name in sorted(name.decode() for name in waiting)}

    async def release(self) -> None:
        """Queue again what may go."""
        for name, ask_at in list(self._ask_at.items()):
            if time.monotonic() < ask_at:
                continue
            room = await self._room(name)
            moved = await self._queue.unpark(name, room) if room else 0
            if moved < room:
                del self._ask_at[name]
            else:
                self._ask_at[name] = time.monotonic() + (0.0 if moved else LOOK)

    async def _room(self, name: str) -> int:
        if name.startswith(PAUSED_PREFIX):
            still = await reply(self._queue.redis.sismember(keys.PAUSED, name.removeprefix(PAUSED_PREFIX)))
            return 0 if still else MOST
        return min(await self._breakers.room(name), MOST)
