"""How much waits and runs on the queues of agents: every lane's, and the legacy base queue from before lanes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from agent.lanes import DOCUMENT_LANES, LANES, queue_name, tasks_of
from agent.phoenix import keys
from agent.redaction import redact_text
from agent.redis_client import reply

QUEUE_TIMEOUT = 5.0
"""Seconds for one queue's counts; a queue that fails spoils only its own row."""

BASE_QUEUE = "all"
"""How the base queue's all-mode worker is called where a lane would be named."""


@dataclass(frozen=True)
class QueueActivity:
    """One queue. Counts are of jobs; `scheduled` waits for the clock, `parked` for a circuit or the end of a pause."""

    queue: str
    agent_id: str
    lane: str | None
    """None: the legacy base queue."""
    queued: int = 0
    active: int = 0
    scheduled: int = 0
    parked: int = 0
    oldest: float | None = None
    """Seconds that the next job in line has waited; None if none waits."""
    workers: int = 0
    """Workers that said in the last seconds that they consume it."""
    paused: bool = False
    """Whether it takes no jobs, or not those of each of its tasks."""
    pauses: tuple[str, ...] = ()
    """What of it is paused: the lane itself (`all` for a base queue), then tasks of it; each goes on by its name."""
    error: str | None = None
    """Why its counts could not be told; they are 0 then."""

    @property
    def unsettled(self) -> int:
        """All jobs that have not come to an end."""
        return self.queued + self.active + self.scheduled + self.parked

    @property
    def is_used(self) -> bool:
        """Whether there is anything about it: a base queue, or a lane for documents, is shown only then.

        A task's pause alone is nothing about a base queue, which would be shown for every one.
        """
        if self.unsettled or self.workers or self.error or BASE_QUEUE in self.pauses:
            return True
        return self.lane is not None and (self.lane not in DOCUMENT_LANES or self.paused)

    @property
    def remark(self) -> str:
        """What is notable about it: `paused` (all of it), `paused: process_file`, `no worker`; mostly nothing."""
        if self.paused:
            return "paused" if self.pauses == (self.lane or BASE_QUEUE,) else f"paused: {', '.join(self.pauses)}"
        return "no worker" if self.unsettled and not self.workers else ""


async def get_queue_activity(redis: Redis, agents: Iterable[str]) -> list[QueueActivity]:
    """A row per lane of each agent, and one for its base queue; never raises for one queue's sake."""
    paused = await _paused(redis)
    rows = [(agent_id, lane) for agent_id in agents for lane in (*LANES, None)]
    return list(await asyncio.gather(*(_row(redis, agent_id, lane, paused) for agent_id, lane in rows)))


async def base_queue_activity(redis: Redis, agent_id: str) -> QueueActivity:
    """The row of the legacy base queue alone."""
    return await _row(redis, agent_id, None, await _paused(redis))


async def _paused(redis: Redis) -> frozenset[str]:
    try:
        async with asyncio.timeout(QUEUE_TIMEOUT):
            return frozenset(name.decode("utf-8", "replace") for name in await reply(redis.smembers(keys.PAUSED)))
    except (RedisError, OSError, TimeoutError):
        return frozenset()  # each queue says by itself what is wrong


async def _row(redis: Redis, agent_id: str, lane: str | None, paused: frozenset[str]) -> QueueActivity:
    name = queue_name(agent_id, lane)
    try:
        async with asyncio.timeout(QUEUE_TIMEOUT):
            counts = await _counts(redis, name)
    except (RedisError, OSError, TimeoutError) as error:
        return QueueActivity(name, agent_id, lane, error=redact_text(str(error) or "no answer in time"))
    pauses = tuple(each for each in dict.fromkeys((lane or BASE_QUEUE, *tasks_of(lane))) if each in paused)
    return QueueActivity(name, agent_id, lane, paused=bool(pauses), pauses=pauses, **counts)


async def _counts(redis: Redis, name: str) -> dict[str, Any]:
    incomplete = keys.incomplete_key(name)
    async with redis.pipeline(transaction=False) as pipe:
        pipe.llen(keys.queued_key(name))
        pipe.type(keys.active_key(name))
        pipe.zcount(incomplete, 1, f"({keys.FAR_FUTURE}")
        pipe.zcount(incomplete, keys.FAR_FUTURE, "+inf")
        pipe.lrange(keys.queued_key(name), 0, 0)
        pipe.zcount(f"saq:{name}:stats", int(time.time() * 1000), "+inf")
        queued, kind, scheduled, parked, first, workers = await pipe.execute()
    # Workers from before this engine keep what runs in a list.
    in_list = kind == b"list"
    active = redis.llen(keys.active_key(name)) if in_list else redis.zcount(keys.active_key(name), "-inf", "(inf")
    return {
        "queued": queued,
        "active": int(await reply(active)),
        "scheduled": scheduled,
        "parked": parked,
        "oldest": await _age(redis, first[0]) if first else None,
        "workers": workers,
    }


async def _age(redis: Redis, job_id: bytes) -> float | None:
    """Seconds since a job was due, by its own text."""
    try:
        job = json.loads(await redis.get(job_id) or b"")
        return max(0.0, time.time() - max(float(job.get("queued", 0)) / 1000, float(job.get("scheduled", 0))))
    except (ValueError, TypeError, AttributeError):
        return None
