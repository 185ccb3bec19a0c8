"""Whether a worker does what it is there for: its loops get through their turns, and the server answers them.

    healthy    both loops were answered within FRESH seconds: the file of PHAZE_HEALTH_FILE is touched (`phaze health`)
    unhealthy  the server does not answer, or a loop hangs: the file grows old
    stuck      one loop is answered and the other gets through no turn, not even a failed one, for STUCK seconds: the
               process ends, so that who supervises it starts it again. Where the server answers nobody, jobs run on.

An event loop that stands still touches nothing; the thread of the leases ends that process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from typing import TYPE_CHECKING

import structlog

from agent.phoenix.lease import EXIT_WEDGED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = structlog.get_logger()

LOOK = 1.0
"""Seconds between two looks."""

FRESH = 15.0
"""Seconds within which a healthy loop is answered: it asks every second, or waits for five (pump.IDLE_WAIT)."""

STUCK = 40.0
"""Seconds after which a loop without a turn is given up, while the server answers the other one."""


class Turns:
    """When a loop last got through a turn, and when the server last answered it: `time.monotonic()`."""

    def __init__(self) -> None:
        self.ended = self.answered = time.monotonic()

    def answer(self) -> None:
        """A turn that the server answered."""
        self.answered = time.monotonic()
        self.end()

    def end(self) -> None:
        """A turn that failed, or none because there was nothing to ask."""
        self.ended = max(self.ended, time.monotonic())

    def may_last(self, seconds: float) -> None:
        """A turn begins that is given so long: before that it is not missed."""
        self.ended = max(self.ended, time.monotonic() + seconds)


class Pulse:
    """Looks at a worker's two loops, claiming and upkeep.

    Args:
        asks: whether there is anything that the claiming loop has to ask the server now.
        file: touched at every look that finds the worker healthy.
        stuck: seconds, see STUCK.
    """

    def __init__(
        self, claims: Turns, upkeep: Turns, asks: Callable[[], bool], file: Path | None, *, stuck: float = STUCK
    ) -> None:
        self._claims = claims
        self._upkeep = upkeep
        self._asks = asks
        self._file = file
        self._stuck = stuck
        self._looked = self._excused = -math.inf

    async def run(self, stopping: asyncio.Event) -> None:
        """Look every second until the worker stops."""
        while not stopping.is_set():
            self.look(time.monotonic())
            await asyncio.sleep(LOOK)

    def look(self, now: float) -> None:
        """One look; does not return where a loop is stuck."""
        asks = self._asks()
        if not asks:
            self._claims.end()
        last_answer = max(self._claims.answered, self._upkeep.answered)
        stood_still = now - self._looked > 2 * LOOK  # all of the process, or its event loop
        if stood_still or now - last_answer > FRESH:
            self._excused = now
        self._looked = now
        silent = now - max(self._excused, min(self._claims.ended, self._upkeep.ended))
        if silent > self._stuck:
            which = "claims" if self._claims.ended < self._upkeep.ended else "upkeep"
            log.critical("worker.stuck", loop=which, seconds=round(silent))
            os._exit(EXIT_WEDGED)
        oldest = min(self._upkeep.answered, self._claims.answered if asks else now)
        if self._file is not None and now - oldest < FRESH:
            with contextlib.suppress(OSError):
                self._file.touch()
