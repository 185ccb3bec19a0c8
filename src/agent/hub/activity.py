"""What the lanes are doing now, out of the queues' counters and the catalogue's.

Cheap enough to be asked several times a second: one answer serves all who ask the same for a moment, and no more than
a tenth of the time goes into making it. Later rooms: heartbeats, the legacy base queue, parked jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError
from saq.job import Job, Status

from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FILE_TASKS, OUTCOMES, SCAN
from agent.hub.holds import Holding, Holds
from agent.hub.progress import Progress
from agent.hub.scans import OPEN
from agent.lanes import DOCUMENT_LANES, LANE_TASKS, LANES, queue_name, record_id_of
from agent.phoenix import keys
from agent.phoenix.queue import LaneQueue
from agent.producer import version_of
from agent.redaction import redact_text

FRESH = 0.2
"""Seconds for which an answer serves again."""

COST = 10.0
"""An answer also serves for this many times what it took to make."""

SHOWN_ACTIVE = 50
SHOWN_RETRYING = 500
LOOKED_AT = 2_000
"""Jobs of a lane that are looked at to tell whether all that is left waits for a late retry."""

LATE = 3
"""Failed attempts after which nobody waits for a job that waits for its next one."""

QUEUE_TIMEOUT = 5.0

RUNNING = frozenset({Status.ACTIVE, Status.ABORTING})


class UnknownAgent(LookupError):
    """There is no such agent; the message names those there are."""


@dataclass
class _Answer:
    """One answer, and for how long it serves."""

    status: dict[str, Any]
    asked: int
    """What had been asked of the hub when the making of the answer began."""
    fresh_until: float


@dataclass
class _Lane:
    """One lane of one agent: counters, and the jobs that were looked at."""

    agent_id: str
    lane: str
    queued: int = 0
    active: int = 0
    scheduled: int = 0
    parked: int = 0
    """Those of the scheduled that wait for something else than the clock."""
    running: tuple[Job, ...] = ()
    waiting: tuple[Job, ...] = ()
    """Scheduled ones, the next due first; when little else is left also the queued ones."""


class Activity:
    """`await activity.status()`: see there."""

    def __init__(self, catalogue: Catalogue, redis: Redis | None) -> None:
        self._catalogue = catalogue
        self._redis = redis
        self._holding = None if redis is None else Holding(redis)
        self._queues: dict[str, LaneQueue] = {}
        self._lock = asyncio.Lock()
        self._answers: dict[str | None, _Answer] = {}
        """By agent; None: all of them."""
        self._asked = 0

    def invalidate(self) -> None:
        """Something was asked of the hub that the next answer must know of."""
        self._asked += 1

    async def status(self, agent_id: str | None = None) -> dict[str, Any]:
        """The JSON of GET /api/status: of one agent only, or of all.

        `lanes`: lane -> queued, active, scheduled (jobs on its queues), owed, total and one count per outcome (present
        files); those for documents only while they have jobs. `others`: task that no file is owed -> results. `idle`:
        nothing is owed and no scan is open. `settled_or_retrying`: the same, save for jobs that failed three times and
        wait, and for what is held. `held`: what is paused, or a circuit that stays open -> one line with the remedy; of
        what is owed. `queue`: `ok`, or `unreachable`, and then queue counts are 0.

        Raises UnknownAgent and CatalogueUnavailable.
        """
        async with self._lock:
            started = time.monotonic()
            known = self._answers.get(agent_id)
            if known is not None and started < known.fresh_until and known.asked == self._asked:
                return known.status
            asked = self._asked
            status = await self._compute(agent_id)
            ended = time.monotonic()
            self._answers[agent_id] = _Answer(status, asked, ended + max(FRESH, COST * (ended - started)))
            return status

    async def _agents(self, agent_id: str | None) -> list[str]:
        agents = await asyncio.to_thread(self._catalogue.agents)
        if agent_id is None:
            return agents
        if agent_id not in agents:
            raise UnknownAgent(f"there is no agent {agent_id!r:.100}; there are {', '.join(agents) or 'none yet'}")
        return [agent_id]

    async def _compute(self, agent_id: str | None) -> dict[str, Any]:
        agents = await self._agents(agent_id)
        reachable = self._redis is not None
        lanes: list[_Lane] = []
        holds = Holds()
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT):
                lanes = [await self._look(agent, lane) for agent in agents for lane in LANES]
                if self._holding is not None:
                    holds = await self._holding.look([queue_name(one.agent_id, one.lane) for one in lanes], LOOKED_AT)
        except (RedisError, OSError):
            reachable, lanes, holds = False, [], Holds()
        # After the queues: a job that ends in between is then seen as settled, not as nowhere.
        progress = await asyncio.to_thread(self._catalogue.progress, agent_id)
        shown = [(lane, job) for lane in lanes for job in lane.running]
        retrying = [(lane, job) for lane in lanes for job in lane.waiting if job.attempts][:SHOWN_RETRYING]
        named = {_record(job) for _, job in (*shown, *retrying)}
        paths = await asyncio.to_thread(self._catalogue.paths, named) if named else {}
        owed = sum(progress.owed.values())
        return {
            "queue": "ok" if reachable else "unreachable",
            "files": progress.files,
            "scans": {OPEN: 0, **progress.scans},
            "lanes": {lane: _lane_counts(lane, lanes, progress) for lane in LANES if _is_shown(lane, lanes)},
            "active": [_job(lane, job, paths) for lane, job in shown],
            "retrying": [{**_job(lane, job, paths), "error": _error_line(job.error)} for lane, job in retrying],
            "others": progress.others,
            "owed": owed,
            "idle": owed == 0,
            "settled_or_retrying": owed == 0
            or (reachable and await self._only_late_ones(agent_id, lanes, holds, progress.owed)),
            "held": holds.said(progress.owed),
        }

    async def _look(self, agent_id: str, lane: str) -> _Lane:
        found = _Lane(agent_id, lane)
        if self._redis is None:
            return found
        name = queue_name(agent_id, lane)
        queue, queued_key, incomplete = self._queue(name), keys.queued_key(name), keys.incomplete_key(name)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.llen(queued_key)
            pipe.zcount(keys.active_key(name), "-inf", "(inf")
            pipe.zcount(incomplete, 1, "+inf")
            pipe.zcount(incomplete, keys.FAR_FUTURE, "+inf")
            pipe.zrangebyscore(keys.active_key(name), "-inf", "(inf", start=0, num=SHOWN_ACTIVE)  # not its guard
            found.queued, found.active, found.scheduled, found.parked, active = await pipe.execute()
        waiting: list[bytes] = []
        if found.scheduled:
            waiting = await self._redis.zrangebyscore(incomplete, 1, "+inf", start=0, num=LOOKED_AT)
        # A job that was waiting may have been taken since: then it runs, whatever list it was on.
        found.running = await self._jobs(queue, active)
        found.waiting = tuple(job for job in await self._jobs(queue, waiting) if job.status not in RUNNING)
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

    async def _only_late_ones(
        self, agent_id: str | None, lanes: list[_Lane], holds: Holds, owed: Mapping[str, int]
    ) -> bool:
        """Whether all that is owed is held, or has failed `LATE` times and waits for the time of its next attempt."""
        free = sum(count for task, count in owed.items() if task not in holds.tasks)
        moving = sum(lane.active + (0 if _is_held(lane.lane, holds) else lane.queued) for lane in lanes)
        running = {_record(job) for lane in lanes for job in lane.running}
        if moving > SHOWN_ACTIVE or any(owed.get(task) and task in holds.tasks for task, _ in running):
            return False  # what runs goes on, also where no more is taken
        waiting = [job for lane in lanes for job in lane.waiting if job.function not in holds.tasks]
        if free > LOOKED_AT:
            # Too many to match one by one. The next due are the ones with the fewest attempts: their waits are short.
            counted = sum(lane.scheduled - lane.parked for lane in lanes) + holds.parked
            nothing_runs = not any(lane.active for lane in lanes)
            return nothing_runs and counted >= free and all(_is_late(job, holds) for job in waiting)
        look = partial(self._catalogue.owed_versions, LOOKED_AT, agent_id, without=holds.tasks)
        left = await asyncio.to_thread(look)
        # A late one of another version is about to give way to the one that is owed.
        late = {_record(job) for job in waiting if _is_late(job, holds) and _is_of(job, left.get(_record(job)))}
        return left.keys() <= (late | holds.records) - running


def _readable(queue: LaneQueue, blob: bytes | None) -> Job | None:
    """A stored job; None for one that has ended meanwhile, and for what is none."""
    try:
        return queue.deserialize(blob)
    except (TypeError, ValueError, KeyError):
        return None


def _record(job: Job) -> tuple[str, str]:
    return job.function, record_id_of(job.key)


def _is_late(job: Job, holds: Holds) -> bool:
    return job.attempts >= LATE or _record(job) in holds.records


def _is_of(job: Job, version: str | None) -> bool:
    return version_of(job) in (None, version)


def _is_held(lane: str, holds: Holds) -> bool:
    """Whether nothing at all is taken from the lane."""
    return all(task in holds.tasks for task in LANE_TASKS[lane])


def _is_shown(lane: str, lanes: list[_Lane]) -> bool:
    jobs = (one.queued + one.active + one.scheduled for one in lanes if one.lane == lane)
    return lane not in DOCUMENT_LANES or any(jobs)


def _lane_counts(lane: str, lanes: list[_Lane], progress: Progress) -> dict[str, int]:
    mine = [one for one in lanes if one.lane == lane]
    tasks = [task for task in LANE_TASKS[lane] if task in FILE_TASKS and task in progress.settled]
    settled = {outcome: sum(progress.settled.get(task, {}).get(outcome, 0) for task in tasks) for outcome in OUTCOMES}
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
    """`since` in Unix seconds, so many `seconds` ago; `path` for people, else the record id; `progress` 0 to 1, `note`
    how far in words."""
    record_id = record_id_of(job.key)
    return {
        "task": job.function,
        "lane": lane.lane,
        "agent": lane.agent_id,
        "key": job.key,
        "path": paths.get((job.function, record_id), record_id),
        "since": job.started / 1000 if job.started else None,
        "seconds": round(max(0.0, time.time() - job.started / 1000), 1) if job.started else 0.0,
        "attempts": job.attempts + (job.status == Status.ACTIVE),  # a claim uses none until its run has failed
        "progress": job.progress,
        "note": redact_text(str((job.meta or {}).get("note") or ""))[:100],
    }


def _error_line(error: str | None) -> str:
    """One line of a job's error, without secrets: of a traceback the last, which names the exception."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    return redact_text(lines[-1] if "Traceback (most recent call last)" in (error or "") else lines[0])[:300]
