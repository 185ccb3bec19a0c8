"""Running a job alone: what tells poison from bad luck.

    claimed --(taken over often)--> waits --(nothing else runs here)--> announced --> runs --> ended
                                                            others, meanwhile: handed back

A job that several workers died under may have killed them, or may have lain beside the one that did. So its worker lets
it run with nothing beside it and says so in the job's lock; a worker that dies then has died of that job, unless others
died with it (upkeep.lua counts). Two such jobs might kill two workers in step for ever: those that were taken over
often take turns in their queue (claim.lua). One job at a time waits for that, at its worker's cost; what else was
claimed goes back to the head of the queue, for other workers or for afterwards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from agent.phoenix.endings import OWN_DEATHS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agent.phoenix.queue import LaneQueue
    from agent.phoenix.runs import Run

ALONE_AFTER = 2
"""Takeovers after which a job runs alone; upkeep.lua counts no own death before."""

ANNOUNCE = 5.0
"""Seconds for the server to take note; a job of which it does not is handed back, and nothing has happened."""


class Alone:
    """Decides what a worker starts, and when.

    Args:
        queue: whose server is told.
        runs: every run that the worker has claimed and that has not ended.
        start: begins a run.
        hand_back: gives a run back that has not begun.
    """

    def __init__(
        self,
        queue: LaneQueue,
        runs: Callable[[], Collection[Run]],
        *,
        start: Callable[[Run], None],
        hand_back: Callable[[Run], None],
    ) -> None:
        self._queue = queue
        self._runs = runs
        self._start = start
        self._hand_back = hand_back
        self._run: Run | None = None
        """The run that waits for the others to end, or that runs alone."""
        self._started = False

    @property
    def busy(self) -> bool:
        """Whether a job runs alone or waits for that: nothing is to be claimed."""
        return self._run is not None

    def begin(self, run: Run) -> None:
        """Start a run now, or once it is alone, or not at all."""
        if self._run is not None:
            self._hand_back(run)
        elif (
            run.takeovers >= ALONE_AFTER and run.own_deaths < OWN_DEATHS and run.service
        ):  # else it is set aside at once
            self._run = run
            self._try()
        else:
            self._start(run)

    def ended(self, run: Run) -> None:
        """A run is no longer among the worker's."""
        if run is self._run:
            self._run, self._started = None, False
        else:
            self._try()

    def give_up(self) -> None:
        """The worker stops: what still waits is handed back."""
        if self._run is not None and not self._started:
            run, self._run = self._run, None
            self._hand_back(run)

    def _try(self) -> None:
        if self._run is not None and not self._started and all(run is self._run for run in self._runs()):
            self._started = True
            self._start(self._run)

    async def announced(self, run: Run) -> bool:
        """Whether a run that was started may go on: if it is to be alone, the server knows of it now."""
        if run is not self._run:
            return True
        try:
            async with asyncio.timeout(ANNOUNCE):
                return await self._queue.alone(run)
        except (RedisError, OSError):
            return False
        except asyncio.CancelledError:
            if run.cancelled_for is None:
                raise
            return False
