"""What surrounds one run of a task: validate, look at the marker, call it, name the outcome, settle.

A result leaves only through `settle`. An exception that is not the input's fault leaves as it came, for the queue to
retry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from agent.lanes import Task, payload_model
from agent.phoenix.outbox import Entry
from agent.phoenix.settle import find_marker, hand_over, settle
from pipelines.context import policy_of
from pipelines.errors import InputRejected, RecordNotFoundError
from pipelines.payload import TaskResult

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from agent.children import Children

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")


class Execution:
    """One run of one job: the `TaskContext` that its task sees, and the steps around it."""

    def __init__(
        self,
        *,
        service: str,
        record_id: str,
        function: Task,
        redis: Redis,
        queue: str,
        children: Children,
        worker: str,
        attempts: int,
        on_progress: Callable[[float, str], Any],
        on_settled: Callable[[], None],
    ) -> None:
        self.service = service
        self.record_id = record_id
        self.token = str(time.time_ns() // 1000)
        self._function = function
        self._redis = redis
        self._queue = queue
        self._children = children
        self._worker = worker
        self._attempts = attempts
        self._on_progress = on_progress
        self._on_settled = on_settled
        self._started = time.time()
        self._parts = 0
        self._version = ""
        self._deadline = 0.0

    async def run(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate, run, settle. Returns the recorded result; raises what the queue shall retry."""
        try:
            payload = payload_model(self._function).model_validate(dict(arguments))
        except ValidationError as error:
            self._version = _version_in(arguments)
            return await self._settle(_refused_arguments(error))
        self._version = payload.version
        known = await find_marker(self._redis, self.service, self.record_id, payload.version)
        if known is not None:
            log.info("job.already_done", task=self.service, record_id=self.record_id, version=payload.version)
            await hand_over(self._redis, self._queue, known)
            self._on_settled()
            return known.result
        self._deadline = time.monotonic() + policy_of(self._function).timeout(payload)
        try:
            result = await self._function(self, payload)
        except InputRejected as error:
            result = TaskResult(outcome="rejected", reason=str(error))
        except RecordNotFoundError as error:
            return await self._settle(TaskResult(outcome="rejected", reason=f"not-found: {error}"), remember=False)
        return await self._settle(result)

    async def _settle(self, result: BaseModel, *, remember: bool = True) -> dict[str, Any]:
        """Record the result. What says nothing of the version itself (it was not there, it was skipped) leaves no
        marker: asked again, the task shall look again."""
        entry = self._entry(result)
        if remember and entry.outcome != "skipped":
            await settle(self._redis, self._queue, entry)
        else:
            await hand_over(self._redis, self._queue, entry)
        self._on_settled()
        log.info(
            "job.settled",
            task=self.service,
            record_id=self.record_id,
            outcome=entry.outcome,
            reason=entry.reason,
            seconds=round(entry.finished_at - entry.started_at, 3),
            attempts=self._attempts,
        )
        return entry.result

    def _entry(self, result: BaseModel, part: int | None = None) -> Entry:
        return Entry(
            service=self.service,
            record_id=self.record_id,
            version=self._version,
            token=int(self.token),
            part=part,
            outcome=getattr(result, "outcome", "done"),
            reason=getattr(result, "reason", None),
            result=result.model_dump(mode="json"),
            worker=self._worker,
            attempts=self._attempts,
            started_at=self._started,
            finished_at=time.time(),
        )

    # What the task sees (pipelines.context.TaskContext).

    async def check(self) -> None:
        """Ownership is the queue's own in this engine; leases come with the claim script."""

    async def progress(self, fraction: float, note: str = "") -> None:
        await self._on_progress(fraction, note)

    async def report(self, part: BaseModel) -> None:
        await hand_over(self._redis, self._queue, self._entry(part, self._parts))
        self._parts += 1
        self._on_settled()

    async def child(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        remaining = max(self._deadline - time.monotonic(), 1.0)
        return await self._children.run(remaining, function, *args, **kwargs)


def _version_in(arguments: Mapping[str, Any]) -> str:
    """The version that arguments which do not validate name all the same; the catalogue files nothing without one."""
    version = arguments.get("version")
    return version if isinstance(version, str) and version else "unknown"


def _refused_arguments(error: ValidationError) -> TaskResult:
    """The first thing that is wrong with a job's arguments, by the field's name."""
    problem = error.errors()[0]
    where = ".".join(str(step) for step in problem["loc"]) or "payload"
    return TaskResult(outcome="rejected", reason=f"bad-payload: {where}: {problem['msg']}")
