"""A lane's queue: SAQ's API and keys, and every change of a job's place one script.

    enqueue --> queued --claim--> active --settle--> settled
      ^            ^                | | '--park----> parked --(circuit, pause)--> queued
      |            '----release-----' '----retry---> scheduled --(time)--> queued
      '--(time)-- scheduled            '--(lease ran out)--> queued, taken over

The server's clock is the only one that decides. A producer may be plain SAQ; a worker may not: `active` is a sorted
set here, to which the server refuses to move a job the plain way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from saq.job import TERMINAL_STATUSES, Job, Status
from saq.queue.redis import PubSubMultiplexer, RedisQueue
from saq.utils import now

from agent.cancelling import end
from agent.phoenix import keys, quick_json
from agent.phoenix.clock import lease_clock
from agent.phoenix.endings import DEFAULT_TTL, Endings, ttl_ms
from agent.phoenix.outbox import outbox_key
from agent.phoenix.runs import Ending, Run, raw
from agent.phoenix.scripts import Scripts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis.asyncio import Redis
    from saq.types import CountKind, ListenCallback, QueueInfo

    from agent.redis_client import Line

LEASE = 15.0
"""Seconds that a claim holds without a renewal."""

UPKEEP_MOST = 500
"""Jobs that one upkeep moves at most, so that no script holds the server for long."""


LOOKED_AT = 5_000
"""Ids that are read in one piece where the whole of a queue is looked at."""


class ForeignWorker(SystemExit):
    """A plain SAQ worker was pointed at a lane's queue. It would swallow an Exception and ask on; this ends it."""


class JobIsRunning(Exception):
    """The job has a worker now; what was asked would run it twice."""


class Step(NamedTuple):
    """What one round trip came to."""

    answers: list[str]
    """To the endings, in order: `settled`, `stale`, or `error: ...`."""
    runs: list[Run]
    """What was claimed."""
    more: bool
    """Whether the queue may hold more that can be claimed, although this is not all that was asked for."""


class LaneQueue(RedisQueue):
    """`LaneQueue(redis, name=...)` wherever SAQ wants a RedisQueue; its worker is LaneWorker.

    `outbox`: whether a control plane wants its jobs, which is told then of what is aborted before it runs.
    """

    def __init__(
        self, redis: Redis, name: str = "default", *, lease: float = LEASE, outbox: bool = False, **options: Any
    ) -> None:
        options.setdefault("load", quick_json.loads)
        super().__init__(redis, name=name, **options)
        self._outbox = outbox
        self.lease = lease
        self.scripts = Scripts(redis)
        self.prefix = keys.job_prefix(name)
        self._pubsub = PubSubMultiplexer(redis.pubsub(), prefix=self.prefix)  # SAQ's would hear `lane10` on `lane1`
        self.keys = (
            keys.queued_key(name),
            keys.active_key(name),
            keys.incomplete_key(name),
            outbox_key(name),
            keys.deaths_key(name),
            keys.aborts_key(name),
            keys.parked_index_key(name),
            keys.counters_key(name),
        )

    # What a worker does.

    async def step(
        self, worker: str, lane: str, n: int, endings: Sequence[Ending] = (), *, over: Line | None = None
    ) -> Step:
        """End runs and claim up to `n` jobs, in one round trip."""
        before = lease_clock()
        arguments: list[Any] = [self.prefix, worker, int(self.lease * 1000), lane, n]
        for ending in endings:
            arguments += ending.arguments()
        answers, taken, more = await self.scripts("step", self.keys, arguments, over=over)
        return Step(
            [answer.decode("utf-8", "replace") for answer in answers],
            [Run(reply, claimed_before=before, lease=self.lease) for reply in taken],
            bool(more),
        )

    async def unheard(self, worker: str, known: Sequence[str], *, over: Line | None = None) -> int:
        """Give back what is claimed in `worker`'s name under other tokens than the known ones; how many jobs."""
        held = await (over or self.redis).execute_command("ZRANGEBYSCORE", self._active, "-inf", "(inf")
        given = 0
        for ids in (held[at : at + UPKEEP_MOST] for at in range(0, len(held), UPKEEP_MOST)):
            arguments = [self.prefix, worker, len(ids), *ids, *known]
            given += int(await self.scripts("unheard", self.keys, arguments, over=over))
        return given

    async def upkeep(
        self, *, orphans: bool, aborts: bool, known: Iterable[str] = (), uptime: int = 0
    ) -> tuple[int, list[str], list[str]]:
        """Queue what is due; take over from dead workers; which running jobs somebody wants to end.

        `known`: the tokens of the asker's own runs, which are not taken over. `uptime`: seconds that the server is up,
        0 if it does not say; the end of a run from before that is not its own fault.
        """
        arguments = [self.prefix, UPKEEP_MOST, int(orphans), int(aborts), int(self.lease * 1000), uptime, *known]
        due, taken, asked, lost = await self.scripts("upkeep", self.keys, arguments)
        if lost:
            await self._bring_back_lost()
        return int(due), _ids(taken), _ids(asked)

    async def _bring_back_lost(self) -> None:
        """Queue again what waits in no place. All of the queue is read for that, in pieces; ids are kept as hashes."""
        listed: set[int] = set()
        for at in range(0, await super().count("queued"), LOOKED_AT):
            ids = await self.redis.lrange(self._queued, at, at + LOOKED_AT - 1)  # type: ignore[misc]  # it is async
            listed.update(map(hash, ids))
        for at in range(0, await self.redis.zcount(self._incomplete, 0, 0), LOOKED_AT):
            ids = await self.redis.zrange(self._incomplete, at, at + LOOKED_AT - 1)
            lost = [job_id for job_id in ids if hash(job_id) not in listed]
            for n in range(0, len(lost), UPKEEP_MOST):
                await self.scripts("lost", self.keys, lost[n : n + UPKEEP_MOST])

    async def unpark(self, circuit: str, most: int) -> int:
        """Let go up to `most` of the jobs that wait for `circuit`; how many. Fewer than `most`: none is left."""
        places = [keys.parked_key(circuit), keys.parked_index_key(self.name)]
        taken, _ = await self.scripts("unpark", places, [most, circuit])
        return int(taken)

    async def hurry(self) -> int:
        """Queue now what failed and waits for its next attempt; how many. What waits for its first stays."""
        moved = start = 0
        waits = ("(0", f"({keys.FAR_FUTURE}")
        while ids := await self.redis.zrangebyscore(self._incomplete, *waits, start=start, num=UPKEEP_MOST):
            jobs = await self._stored(ids)
            tried = [job_id for job_id, job in zip(ids, jobs, strict=True) if job is not None and job.attempts]
            queued = int(await self.scripts("hurry", self.keys, tried))
            moved += queued
            start += len(ids) - queued
        return moved

    async def alone(self, run: Run) -> bool:
        """Note that a run has its worker to itself, for who counts deaths; False if it is no longer ours."""
        return bool(await self.scripts("alone", [], [*run.names[1:], run.token]))

    async def touch(self, run: Run, said: str = "", **fields: Any) -> bool:
        """Change fields of a running job (progress, meta) as its owner; False if it is no longer ours.

        `said`: what listeners to the record's progress are told.
        """
        job = run.job
        assert job is not None
        for name, value in fields.items():
            setattr(job, name, value)
        job.touched = now()
        stored = self.copy(job)
        stored.attempts = run.attempts - 1  # the attempt counts once it has failed, not while it runs
        job_id, _, record = run.names
        lock = raw(keys.lock_key(run.service, run.record))
        arguments = [job_id, self.serialize(stored), Status.ACTIVE, lock, run.token, record, said]
        return bool(await self.scripts("update", self.keys, arguments))

    # What SAQ's API does here.

    async def dequeue(self, timeout: float = 0.0, poll_interval: float = 0.0) -> Job | None:
        """Refused: a plain worker's claim has no lease, and its sweep would abort jobs that run."""
        raise ForeignWorker(
            f"{self.name} is a lane's queue; run `phaze worker` (or agent.phoenix.worker.LaneWorker), not saq's Worker"
        )

    async def sweep(self, lock: int = 60, abort: float = 5.0) -> list[str]:
        """Take over the jobs of dead workers (SAQ's name for it)."""
        _, taken, _ = await self.upkeep(orphans=True, aborts=False)
        return taken

    async def schedule(self, lock: int = 1) -> list[str]:
        """Queue what is due (SAQ's name for it)."""
        await self.upkeep(orphans=False, aborts=False)
        return []

    async def count(self, kind: CountKind) -> int:
        """Jobs that wait, run, or are unsettled in any way. O(1), or O(log n) of those that run."""
        if kind == "active":
            return int(await self.redis.zcount(self._active, "-inf", "(inf"))
        return await super().count(kind)

    async def info(self, jobs: bool = False, offset: int = 0, limit: int = 10) -> QueueInfo:
        """What the dashboard shows; with `jobs`, the running ones and `limit` unsettled ones from `offset` on."""
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.llen(self._queued)
            pipe.zcount(self._active, "-inf", "(inf")
            pipe.zcard(self._incomplete)
            pipe.zrangebyscore(self._stats, now(), "inf")
            pipe.zrangebyscore(self._active, "-inf", "(inf", start=0, num=limit if jobs else 1)  # not its guard
            pipe.zrange(self._incomplete, offset, offset + limit - 1)
            queued, active, incomplete, stats, running, unsettled = await pipe.execute()
        shown = list(dict.fromkeys([*running, *unsettled])) if jobs and limit > 0 else []
        return {
            "workers": await self._worker_infos(stats),
            "name": self.name,
            "queued": queued,
            "active": active,
            "scheduled": max(0, incomplete - queued - active),
            "jobs": [job.to_dict() for job in await self._stored(shown) if job is not None],
        }

    async def sign_off(self, worker: str) -> None:
        """Take a worker that has stopped off the list of those that are there; who dies is on it for its entry's ttl.

        The names are those of SAQ's `write_worker_info`.
        """
        key = self.namespace(f"worker_info:{worker}")
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.delete(key)
            pipe.zrem(self._stats, key)
            await pipe.execute()

    async def _worker_infos(self, stats: Sequence[bytes]) -> dict[str, Any]:
        if not stats:
            return {}
        found = await self.redis.mget(stats)
        return {
            key.decode().rsplit(":", 1)[-1]: json.loads(text) for key, text in zip(stats, found, strict=True) if text
        }

    async def _stored(self, ids: Sequence[bytes | str]) -> list[Job | None]:
        return [self.readable(text) for text in await self.redis.mget(ids)] if ids else []

    def readable(self, text: bytes | None) -> Job | None:
        """The stored job; None for one that is gone or that nobody can decode (its worker will say so)."""
        try:
            return self.deserialize(text)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    async def jobs(self, job_keys: Any) -> list[Job | None]:
        """The stored jobs, in order."""
        return await self._stored([self.job_id(key) for key in job_keys])

    async def listen(
        self, job_keys: Iterable[str], callback: ListenCallback, timeout: float | None = 10, poll_interval: float = 0.5
    ) -> None:
        """Call `callback` with each change of state until it says True; TimeoutError after `timeout` seconds.

        Nobody hears what the server said before a subscription stood, so jobs that are over are looked up as well.
        """
        waiting = list(job_keys)
        hearing = asyncio.create_task(self._hear(waiting, callback, timeout))
        try:
            while waiting and not (await asyncio.wait({hearing}, timeout=poll_interval))[0]:
                over = [job for job in await self.jobs(waiting) if job and job.status in TERMINAL_STATUSES]
                waiting = [key for key in waiting if key not in {job.key for job in over}]
                for job in over:
                    if await _says(callback, job.key, job.status):
                        return
            await hearing
        finally:
            if not hearing.done():
                await end({hearing})

    async def _hear(self, waiting: Sequence[str], callback: ListenCallback, timeout: float | None) -> None:
        """SAQ's own, but that the subscription has ended when this has, and not some time later."""
        ids = [self.job_id(key) for key in waiting]
        if not ids:
            return
        async with aclosing(self._pubsub.listen(*ids, timeout=timeout)) as messages:
            async for message in messages:
                status = Status[message["data"].decode().upper()]
                if await _says(callback, self.job_key_from_id(message["channel"]), status):
                    return

    async def _update(self, job: Job, status: Status | None = None, **kwargs: Any) -> None:
        """Change a stored job's text, if it still exists; its place and its time to live stay."""
        stored = None if status else await self.job(job.key)
        job.status = status or (stored.status if stored else job.status)
        await self.scripts("update", self.keys, [job.id, self.serialize(job), job.status, "", "", "", ""])

    async def abort(self, job: Job, error: str, ttl: float = 5) -> None:
        """End a job, wherever it is: at once if it does not run, else by its worker."""
        job.error = error
        asked = self._restated(job, Status.ABORTING)
        over = self._restated(job, Status.ABORTED)
        visible = max(1000, ttl_ms(job.ttl or DEFAULT_TTL))  # what somebody ended by hand is seen, and not for ever
        entry = await self._entry_of_abort(job, error) if self._outbox else ""
        answer = await self.scripts("abort", self.keys, [self.prefix, job.id, over, visible, asked, entry])
        if answer == b"aborted":
            self.aborted += 1
        job.status = {b"aborted": Status.ABORTED, b"asked": Status.ABORTING}.get(answer, job.status)

    async def _entry_of_abort(self, job: Job, error: str) -> str:
        """As a run that ended now would leave it: fencing tokens are the server's microseconds."""
        seconds, micros = await self.redis.time()
        token = str(seconds * 1_000_000 + micros).encode()
        named = [raw(job.id), b"", raw(job.function), raw(_record_id(job.key)), token, None, None]
        run = Run(named, claimed_before=0.0, lease=0.0)
        run.job = job
        return Endings(self, "", outbox=True).entry_of_abort(run, error)

    def _restated(self, job: Job, status: Status) -> bytes | str:
        copy = self.copy(job)
        copy.status, copy.completed = status, now() if status is Status.ABORTED else copy.completed
        return self.serialize(copy)

    async def retry(self, job: Job, error: str | None) -> None:
        """Run a job again now (the dashboard's button). A done one is forgotten first; a running one is refused."""
        score = await self.redis.zscore(self._active, job.id)
        if score is not None and await self._lease_lives(float(score)):
            raise JobIsRunning(f"{job.key} is running; abort it first")
        due = await self.redis.zscore(self._incomplete, job.id)
        if due is None:
            await self.redis.delete(keys.marker_key(job.function, _record_id(job.key)))
            job.attempts, job.error, job.result, job.completed, job.started = 0, None, None, 0, 0
            job.scheduled, job.progress = 0, 0.0
            await self.enqueue(job)
        elif due > 0:
            await self.redis.zadd(self._incomplete, {job.id: 1}, xx=True)

    async def _lease_lives(self, till: float) -> bool:
        seconds, micros = await self.redis.time()
        return bool(till > seconds * 1000 + micros // 1000)


async def _says(callback: ListenCallback, key: str, status: Status) -> bool:
    answer = callback(key, status)
    return bool(await answer if isinstance(answer, Awaitable) else answer)


def _record_id(key: str) -> str:
    _, colon, record_id = key.partition(":")
    return record_id if colon else key


def _ids(raw: Sequence[bytes]) -> list[str]:
    return [job_id.decode("utf-8", "surrogateescape") for job_id in raw]
