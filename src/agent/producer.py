"""Put jobs on lanes, under deterministic keys, so that asking twice queues once.

A plain SAQ producer works as well; this one is for code that knows the lane table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog
from saq.job import Job, Status
from saq.utils import now

from agent.lanes import job_key, lane_for_task, queue_name
from agent.phoenix.queue import LaneQueue
from pipelines.payload import Payload

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

PENDING = frozenset({Status.NEW, Status.QUEUED, Status.ACTIVE, Status.ABORTING})

RESULT_TTL = 600
"""Seconds for which a settled job stays visible in the queue; the marker and the catalogue know longer."""


class Producer:
    """Enqueues by task name; the lane table picks the queue. Bounded by the connection's own time-outs."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._queues: dict[str, LaneQueue] = {}

    def queue(self, agent_id: str, task: str) -> LaneQueue:
        """The queue of the lane that runs `task` on that agent."""
        name = queue_name(agent_id, lane_for_task(task))
        if name not in self._queues:
            self._queues[name] = LaneQueue(self._redis, name=name, outbox=True)
        return self._queues[name]

    async def enqueue(self, agent_id: str, task: str, record_id: str, payload: Payload) -> bool:
        """Queue one job. False if a job with its key already waits or runs: nothing is queued then."""
        job = await self.queue(agent_id, task).enqueue(
            task, key=job_key(task, record_id), ttl=RESULT_TTL, **payload.model_dump(mode="json")
        )
        return job is not None

    async def supersede(self, agent_id: str, task: str, record_id: str, payload: Payload) -> bool:
        """Give the job that waits under this key this payload, where its own is of another version.

        False while the job of another version runs: its end frees the key. A job that answers for a stream's entries
        is left as it is: its arguments are somebody's own.
        """
        queue, key = self.queue(agent_id, task), job_key(task, record_id)
        stored = await self._redis.get(queue.job_id(key))
        if stored is None or (old := queue.readable(stored)) is None:
            return False
        if version_of(old) == payload.version:
            return True
        new = Job(task, kwargs=payload.model_dump(mode="json"), queue=queue, key=key, ttl=RESULT_TTL)
        new.queued, new.status = now(), Status.QUEUED
        arguments = [new.id, stored, task, record_id, queue.serialize(new)]
        if (answer := await queue.scripts("supersede", queue.keys, arguments)) == b"waits":
            log.info("job.superseded", task=task, record_id=record_id, old=version_of(old), version=payload.version)
        return bool(answer != b"runs")

    async def pending(self, agent_id: str, task: str, record_ids: Sequence[str]) -> dict[str, str | None]:
        """record id -> version of those whose job waits, is scheduled or runs; the others are left out.

        The version is None where the job names none.
        """
        if not record_ids:
            return {}
        jobs = await self.queue(agent_id, task).jobs([job_key(task, record_id) for record_id in record_ids])
        return {
            record_id: version_of(job)
            for record_id, job in zip(record_ids, jobs, strict=True)
            if job is not None and job.status in PENDING
        }

    async def close(self) -> None:
        """Close the connections."""
        for queue in self._queues.values():
            await queue.disconnect()
        await self._redis.aclose()


def version_of(job: Job) -> str | None:
    """The version that a job's arguments name; None where they name none."""
    version = (job.kwargs or {}).get("version")
    return version if isinstance(version, str) else None
