"""Cron jobs: each tick is one job with a key of its own, so that a whole fleet runs it once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from croniter import croniter  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from saq.job import CronJob

    from agent.phoenix.queue import LaneQueue

OPTIONS = ("timeout", "heartbeat", "retries", "ttl", "kwargs")
"""Fields of SAQ's CronJob that are the job's. `unique` means nothing here: a tick is always one job."""


class Ticks:
    """The next tick of each of `cron_jobs`, enqueued ahead of its time.

    Key: `cron:<function>:<tick>`, the tick in Unix seconds; where several cron jobs share one function, a short hash of
    their cron line and arguments follows its name. Every worker of a fleet enqueues the same key; one that is done is
    answered from its marker. The server's clock says which tick is the next.
    """

    def __init__(self, queue: LaneQueue, cron_jobs: Collection[CronJob[Any]], zone: tzinfo) -> None:
        self._queue = queue
        self._zone = zone
        uses = Counter(job.function.__qualname__ for job in cron_jobs)
        self._jobs = {_name(job, alone=uses[job.function.__qualname__] == 1): job for job in cron_jobs}
        self._enqueued: dict[str, int] = {}

    async def enqueue(self) -> None:
        """Enqueue what is not yet; to be called about once a second."""
        if not self._jobs:
            return
        start = datetime.fromtimestamp(await self._now(), self._zone)
        for name, job in self._jobs.items():
            tick = int(croniter(job.cron, start).get_next())
            if tick != self._enqueued.get(name):
                options = {option: value for option in OPTIONS if (value := getattr(job, option)) is not None}
                function = job.function.__qualname__
                await self._queue.enqueue(function, key=f"cron:{name}:{tick}", scheduled=tick, **options)
                self._enqueued[name] = tick

    async def _now(self) -> int:
        """Unix seconds by the server's clock."""
        seconds, _ = await self._queue.redis.time()
        return int(seconds)


def _name(job: CronJob[Any], *, alone: bool) -> str:
    function = job.function.__qualname__
    if alone:
        return function
    said = json.dumps([job.cron, job.kwargs], sort_keys=True, default=str)
    return f"{function}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
