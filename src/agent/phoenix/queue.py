"""A lane's queue: SAQ's, with each task's own policy instead of what a producer left at SAQ's defaults."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from saq.queue.redis import RedisQueue

from agent.lanes import payload_model
from agent.phoenix.backoff import retry_delay
from pipelines.context import policy_of

if TYPE_CHECKING:
    from saq.job import Job

    from agent.lanes import Task

RETRIES = 1_000_000_000
"""SAQ counts tries; ours never run out."""

KEEPALIVE = 5.0
"""Seconds between signs of life of a running job; the sweep takes it for dead after three."""

TIMEOUT_MARGIN = 15
"""Seconds on top of a task's own time, for its child process to be killed and the failure to be told apart."""

HANDED_BACK = "cancelled"
"""What SAQ's worker gives as the error of a job that a shutdown interrupts."""


class LaneQueue(RedisQueue):
    """The queue of the tasks in `functions`, by name."""

    def __init__(self, *args: Any, functions: dict[str, Task], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._functions = functions
        self.waiting: set[asyncio.Task[Any]] = set()
        """The worker's slots that wait for a job right now."""

    async def dequeue(self, timeout: float = 0.0, poll_interval: float = 0.0) -> Job | None:
        """The next job, with its time-out, sign of life and retries as its task wants them."""
        slot = asyncio.current_task()
        if slot is not None:
            self.waiting.add(slot)
        try:
            job = await super().dequeue(timeout, poll_interval)
        finally:
            self.waiting.discard(cast("asyncio.Task[Any]", slot))
        if job is not None and (function := self._functions.get(job.function)) is not None:
            job.retries = RETRIES
            job.heartbeat = int(KEEPALIVE * 3)
            job.timeout = int(_own_timeout(function, job)) + TIMEOUT_MARGIN
        return job

    async def retry(self, job: Job, error: str | None) -> None:
        """Schedule the next attempt after its backoff; a job handed back at shutdown waits for nothing."""
        job.retry_delay = 0.0 if error == HANDED_BACK else retry_delay(job.attempts)
        job.retry_backoff = False
        await super().retry(job, error)


def _own_timeout(function: Task, job: Job) -> float:
    """Seconds by the task's policy; 0 where the arguments do not validate, which the run itself will refuse."""
    try:
        payload = payload_model(function).model_validate(job.kwargs or {})
    except ValueError:
        return 0.0
    return policy_of(function).timeout(payload)
