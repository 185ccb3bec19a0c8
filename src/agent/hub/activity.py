"""What the lanes are doing now, out of the queues' counters and the catalogue's.

Cheap enough to be asked several times a second: one answer serves all askers for a moment, and no more than a tenth
of the time goes into making it. Later rooms: heartbeats, the legacy base queue, parked jobs.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError
from saq.job import Job, Status

from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FILE_TASKS, SCAN
from agent.hub.progress import Progress
from agent.hub.scans import OPEN
from agent.lanes import LANE_TASKS, LANES, queue_name, record_id_of
from agent.phoenix.queue import LaneQueue

FRESH = 0.2
"""Seconds for which an answer serves again."""

COST = 10.0
"""An answer also serves for this many times what it took to make."""

SHOWN_ACTIVE = 50
SHOWN_RETRYING = 500
LOOKED_AT = 2_000
"""Jobs of a lane that are looked at to tell whether all that is left waits for a late retry."""

LATE = 3
"""Attempts after which a job that waits for its next one is called retrying, and nobody waits for it."""

QUEUE_TIMEOUT = 5.0


@dataclass
class _Lane:
    """One lane of one agent: counters, and the jobs that were looked at."""

    agent_id: str
    lane: str
    queued: int = 0
    active: int = 0
    scheduled: int = 0
    running: tuple[Job, ...] = ()
    waiting: tuple[Job, ...] = ()
    """Scheduled ones, the next due first; when little else is left also the queued ones."""


class Activity:
    """`await activity.status()`: see there."""

    def __init__(self, catalogue: Catalogue, redis: Redis | None) -> None:
        self._catalogue = catalogue
        self._redis = redis
        self._queues: dict[str, LaneQueue] = {}
        self._lock = asyncio.Lock()
        self._answer: dict[str, Any] = {}
        self._fresh_until = 0.0
        self._asked = 0
        self._answered = 0
        """What had been asked when the making of the answer began."""

    def invalidate(self) -> None:
        """Something was asked of the hub that the next answer must know of."""
        self._asked += 1

    async def status(self) -> dict[str, Any]:
        """The JSON of GET /api/status.

        `lanes`: lane -> queued, active, scheduled (jobs on its queues), owed, total and one count per outcome (present
        files). `idle`: nothing is owed and no scan is open. `settled_or_retrying`: the same, save for jobs past their
        third attempt. `queue`: `ok`, or `unreachable`, and then queue counts are 0. Raises CatalogueUnavailable.
        """
        async with self._lock:
            started = time.monotonic()
            if started >= self._fresh_until or self._answered != self._asked:
                self._answered = self._asked
                self._answer = await self._compute()
                took = time.monotonic() - started
                self._fresh_until = time.monotonic() + max(FRESH, COST * took)
            return self._answer

    async def _compute(self) -> dict[str, Any]:
        agents = await asyncio.to_thread(self._catalogue.agents)
        reachable = self._redis is not None
        lanes: list[_Lane] = []
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT):
                lanes = [await self._look(agent_id, lane) for agent_id in agents for lane in LANES]
        except (RedisError, OSError):
            reachable, lanes = False, []
        # After the queues: a job that ends in between is then seen as settled, not as nowhere.
        progress = await asyncio.to_thread(self._catalogue.progress)
        shown = [(lane, job) for lane in lanes for job in lane.running]
        retrying = [(lane, job) for lane in lanes for job in lane.waiting if job.attempts][:SHOWN_RETRYING]
        keys = {(job.function, record_id_of(job.key)) for _, job in (*shown, *retrying)}
        paths = await asyncio.to_thread(self._catalogue.paths, keys) if keys else {}
        owed = sum(progress.owed.values())
        return {
            "queue": "ok" if reachable else "unreachable",
            "files": progress.files,
            "scans": {OPEN: 0, **progress.scans},
            "lanes": {lane: _lane_counts(lane, lanes, progress) for lane in LANES},
            "active": [_job(lane, job, paths) for lane, job in shown],
            "retrying": [{**_job(lane, job, paths), "error": _error_line(job.error)} for lane, job in retrying],
            "owed": owed,
            "idle": owed == 0,
            "settled_or_retrying": owed == 0 or (reachable and await self._only_late_ones(lanes, owed)),
        }

    async def _look(self, agent_id: str, lane: str) -> _Lane:
        found = _Lane(agent_id, lane)
        if self._redis is None:
            return found
        queue = self._queue(queue_name(agent_id, lane))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.llen(queue.namespace("queued"))
            pipe.zcard(queue.namespace("active"))
            pipe.zcount(queue.namespace("incomplete"), 1, "+inf")
            pipe.zrange(queue.namespace("active"), 0, SHOWN_ACTIVE - 1)
            pipe.lrange(queue.namespace("queued"), 0, SHOWN_ACTIVE - 1)
            found.queued, found.active, found.scheduled, active, queued = await pipe.execute()
        waiting: list[bytes] = []
        if found.scheduled:
            incomplete = queue.namespace("incomplete")
            waiting = await self._redis.zrangebyscore(incomplete, 1, "+inf", start=0, num=LOOKED_AT)
        if found.queued + found.active <= SHOWN_ACTIVE:
            waiting += queued
        found.running = await self._jobs(queue, active)
        found.waiting = await self._jobs(queue, waiting)
        return found

    async def _jobs(self, queue: LaneQueue, ids: list[bytes]) -> tuple[Job, ...]:
        if not ids or self._redis is None:
            return ()
        blobs = await self._redis.mget(ids)
        return tuple(job for blob in blobs if (job := _readable(queue, blob)) is not None)

    def _queue(self, name: str) -> LaneQueue:
        if name not in self._queues:
            assert self._redis is not None
            self._queues[name] = LaneQueue(self._redis, name=name)
        return self._queues[name]

    async def _only_late_ones(self, lanes: list[_Lane], owed: int) -> bool:
        """Whether all that is owed has failed `LATE` times and waits for its next attempt, or is on it."""
        if any(lane.queued + lane.active > SHOWN_ACTIVE for lane in lanes):
            return False
        jobs = [job for lane in lanes for job in (*lane.waiting, *lane.running)]
        if owed > LOOKED_AT:
            # Too many to match one by one. The next due are the ones with the fewest attempts: their waits are short.
            return sum(lane.scheduled for lane in lanes) >= owed and all(_is_late(job) for job in jobs)
        late = {(job.function, record_id_of(job.key)) for job in jobs if _is_late(job)}
        return await asyncio.to_thread(self._catalogue.owed_keys, LOOKED_AT) <= late


def _readable(queue: LaneQueue, blob: bytes | None) -> Job | None:
    """A stored job; None for one that has ended meanwhile, and for what is none."""
    try:
        return queue.deserialize(blob)
    except (TypeError, ValueError, KeyError):
        return None


def _is_late(job: Job) -> bool:
    return job.attempts >= LATE


def _lane_counts(lane: str, lanes: list[_Lane], progress: Progress) -> dict[str, int]:
    mine = [one for one in lanes if one.lane == lane]
    tasks = [task for task in LANE_TASKS[lane] if task in FILE_TASKS]
    outcomes = ("done", "partial", "rejected", "skipped")
    settled = {outcome: sum(progress.settled.get(task, {}).get(outcome, 0) for task in tasks) for outcome in outcomes}
    return {
        "queued": sum(one.queued for one in mine),
        "active": sum(one.active for one in mine),
        "scheduled": sum(one.scheduled for one in mine),
        "owed": sum(progress.owed.get(task, 0) for task in LANE_TASKS[lane] if task != SCAN),
        "retrying": sum(1 for one in mine for job in one.waiting if job.attempts),
        "total": progress.files * len(tasks),
        **settled,
    }


def _job(lane: _Lane, job: Job, paths: dict[tuple[str, str], str]) -> dict[str, Any]:
    """`since` in Unix seconds; `path` for people, else the record id."""
    record_id = record_id_of(job.key)
    return {
        "task": job.function,
        "lane": lane.lane,
        "agent": lane.agent_id,
        "key": job.key,
        "path": paths.get((job.function, record_id), record_id),
        "since": job.started / 1000 if job.started else None,
        "attempts": job.attempts + (job.status == Status.ACTIVE),  # a claim uses none until its run has failed
        "progress": job.progress,
    }


def _error_line(error: str | None) -> str:
    """One line of a job's error: of a traceback the last, which names the exception."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:300]
