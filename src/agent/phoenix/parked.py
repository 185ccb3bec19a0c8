"""Jobs that wait for a circuit, or for the end of a pause: let go as far as it allows, before what came after them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.phoenix import keys
from agent.phoenix.breaker import PROBES

if TYPE_CHECKING:
    from agent.phoenix.queue import LaneQueue

MOST = 1_000
"""Jobs that are let go at once."""

LOOK = 10.0
"""Seconds until what lets nothing through is looked at again: waiting jobs cost less than a command a second, however
many circuits they wait for."""


class Parked:
    """What waits on one queue. `slots`: its worker's; `look`: seconds between two looks."""

    def __init__(self, queue: LaneQueue, slots: int, *, look: float = LOOK) -> None:
        self._queue = queue
        self._slots = slots
        self._look = look
        self._look_at = 0.0
        """When it is worth a look, in monotonic seconds."""

    async def release(self) -> None:
        """Queue again what may go."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self._look
        waiting = [keys.parked_index_key(self._queue.name)]
        if await self._queue.scripts("release", waiting, [self._queue.name, self._slots, PROBES, MOST]):
            self._look_at = 0.0
