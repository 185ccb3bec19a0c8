"""What surrounds one run of a task: validate its payload, ask its circuit, call it, name the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from redis.exceptions import RedisError

from agent.cancelling import end
from agent.lanes import Task, payload_model
from agent.phoenix.breaker import outcome_for_provider, outcome_for_user, outcome_of
from agent.phoenix.clock import lease_clock
from agent.phoenix.endings import Quarantined, Result
from agent.phoenix.keys import user_circuit
from agent.phoenix.outbox import Entry, outbox_key
from agent.phoenix.paying import Paying, RunPayer
from agent.phoenix.streams import progress_message
from agent.redaction import redact_text, without_known
from agent.redis_client import persist
from pipelines.context import policy_of
from pipelines.errors import InputChanged, InputRejected, LeaseLost, NotGranted
from pipelines.payer import LONGEST_MODEL, ApiKey, Spent, paid_by
from pipelines.payload import Outcome, TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.children import Children
    from agent.desk import Desk
    from agent.phoenix.breaker import Breakers, Judge
    from agent.phoenix.breaker import Outcome as BreakerOutcome
    from agent.phoenix.queue import LaneQueue
    from agent.phoenix.runs import Run
    from pipelines.saying import Listener

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_MARGIN = 15.0
"""Seconds on top of a task's own time, for its child process to be killed and the failure to be told apart."""

ANY_PROVIDER = "llm"
"""What a user's circuit is called after where the task names no dependency."""

PROGRESS_PERIOD = 1.0
"""Seconds between two writes of a job's progress."""

PROGRESS_WAIT = 1.0
"""Seconds for one of them; progress that nobody hears of must not hold up the work."""

PROGRESS_REST = 15.0
"""Seconds until the next one, after one that failed."""


class Execution:
    """One run of one job: the `TaskContext` that its task sees, and the steps around it."""

    def __init__(
        self,
        run: Run,
        *,
        function: Task,
        queue: LaneQueue,
        children: Children,
        breakers: Breakers,
        worker: str,
        desk: Desk | None = None,
        paying: Paying | None = None,
    ) -> None:
        self._run = run
        self._function = function
        self._queue = queue
        self._children = children
        self._breakers = breakers
        self._worker = worker
        self._desk = desk
        self._paying = paying
        self._payer: RunPayer
        self._parts = 0
        self._version = ""
        self._deadline = 0.0
        self._progress_due = 0.0

    async def run(self, arguments: Mapping[str, Any]) -> Result:
        """The result to record. Raises Quarantined, CircuitHeld, and what shall be retried."""
        try:
            model = payload_model(self._function)
            payload = model.model_validate(dict(arguments))
        except ValidationError as error:
            raise Quarantined(f"bad-payload: {first_problem(error)}") from None
        self._version = payload.version
        if extra := arguments.keys() - model.model_fields.keys():
            log.warning("job.extra_fields", task=self._run.service, record_id=self.record_id, fields=sorted(extra))
        policy = policy_of(self._function)
        seconds = policy.timeout(payload)
        self._deadline = time.monotonic() + seconds
        self._run.outside_effects = policy.outside_effects
        self._run.limit(seconds + TIMEOUT_MARGIN)
        circuit = (policy.dependency(payload) or None) if policy.dependency is not None else None
        user = (str(policy.user(payload)) or None) if policy.user is not None else None
        self._payer = RunPayer(
            self._run, self._queue, self._paying, user=user, version=payload.version, worker=self._worker
        )
        async with self._guarded(circuit, user):
            try:
                result = await self._body(payload)
            except InputRejected as error:
                result = TaskResult(outcome="rejected", reason=str(error))
            except InputChanged:
                result = TaskResult(outcome="skipped", reason="changed-since-scan")
        value = without_known(as_json(result))
        outcome: Outcome = getattr(result, "outcome", "done")
        reason = getattr(result, "reason", None)
        if reason is not None:
            value["reason"] = reason = redact_text(reason)
        return Result(
            value,
            outcome,
            reason,
            payload.version,
            # What says nothing of the version itself leaves no marker: asked again, the task shall look again.
            remember=outcome != "skipped",
            onward=getattr(result, "onward", None),
        )

    @contextlib.asynccontextmanager
    async def _guarded(self, circuit: str | None, user: str | None) -> AsyncIterator[None]:
        """Behind the dependency's circuit; where a user pays, behind the user's own first."""
        token, guard = self._run.token, self._breakers.guard
        if user is None:
            async with guard(circuit, token, self._or_late(outcome_of)):
                yield
            return
        own, provider = user_circuit(circuit or ANY_PROVIDER, user), self._or_late(outcome_for_provider)
        async with guard(own, token, outcome_for_user), guard(circuit, token, provider):
            yield

    def _or_late(self, judge: Judge) -> Judge:
        """The same, but that a run which its time limit has ended is its dependency failing: one that hangs says no
        more than that."""

        def judged(error: BaseException) -> BreakerOutcome:
            said = judge(error)
            return "failed" if said == "void" and self._run.cancelled_for == "timeout" else said

        return judged

    async def _body(self, payload: BaseModel) -> Any:
        """The task itself, once more with a new key where its user's was refused.

        Its time ends with it: what follows waits on the server at most, whose lease must live.
        """
        try:
            with paid_by(self._payer):
                try:
                    return await self._function(self, payload)
                except Exception as error:
                    if not await self._payer.renewed(error):
                        raise
                return await self._function(self, payload)
        finally:
            self._run.no_limit()
            await self._payer.close()

    # What the task sees (pipelines.context.TaskContext).

    @property
    def record_id(self) -> str:
        return self._run.record

    @property
    def token(self) -> str:
        return self._run.token

    async def check(self) -> None:
        if self._run.cancelled_for is not None or lease_clock() > self._run.trusted_until:
            raise LeaseLost(f"{self._run.service} {self._run.record} is no longer ours; write nothing more")

    async def progress(self, fraction: float, note: str = "") -> None:
        if self._progress_is_due():
            await self._write_progress(fraction, note)

    def _progress_is_due(self) -> bool:
        now = time.monotonic()
        if self._run.job is None or now < self._progress_due:
            return False
        self._progress_due = now + PROGRESS_PERIOD
        return True

    async def _write_progress(self, fraction: float, note: str) -> None:
        """Progress is worth no job: what goes wrong with it is only logged."""
        job = self._run.job
        assert job is not None
        try:
            async with asyncio.timeout(PROGRESS_WAIT):
                note = redact_text(note)
                said = progress_message(self._run.service, self._run.record, "running", progress=fraction, note=note)
                await self._queue.touch(self._run, said, progress=fraction, meta={**job.meta, "note": note})
        except (RedisError, OSError) as error:
            self._progress_due = time.monotonic() + PROGRESS_REST
            log.debug("job.progress_not_said", task=self._run.service, error=f"{type(error).__name__}: {error}")

    async def report(self, part: BaseModel) -> None:
        entry = Entry(
            service=self._run.service,
            record_id=self._run.record,
            version=self._version,
            token=int(self._run.token),
            part=self._parts,
            outcome="done",
            result=without_known(as_json(part)),
            worker=self._worker,
            attempts=self._run.attempts,
            started_at=self._run.started,
            finished_at=time.time(),
        )
        places, entries = [outbox_key(self._queue.name)], [entry.model_dump_json()]
        # Twice in the outbox does no harm: the catalogue files a part by its number. Lost would lose the run.
        await persist(lambda: self._queue.scripts("report", places, entries), self._deadline - time.monotonic())
        self._parts += 1

    async def ask(self, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
        if self._desk is None:
            raise NotGranted(f"this worker answers nothing, not even {subject}")
        return await self._desk.ask(self.record_id, subject, question)

    async def child(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._hearing() as heard:
            return await self._children.run_heard(heard, self._remaining(), function, *args, **kwargs)

    async def child_as_user(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._hearing() as heard:
            return await self._payer.child(heard, self._remaining(), function, *args, **kwargs)

    async def api_key(self) -> ApiKey:
        return await self._payer.api_key()

    async def usage(self, prompt_tokens: int, completion_tokens: int, model: str = "") -> None:
        self._payer.spent(Spent(prompt_tokens, completion_tokens, model[:LONGEST_MODEL]))
        await self._payer.flush()

    def _remaining(self) -> float:
        return max(self._deadline - time.monotonic(), 1.0)

    @contextlib.asynccontextmanager
    async def _hearing(self) -> AsyncIterator[Listener]:
        """A listener that writes what a child says of its progress, one thing at a time."""
        writing: set[asyncio.Task[None]] = set()

        def heard(fraction: float, note: str) -> None:
            if not writing and self._progress_is_due():
                writing.add(task := asyncio.create_task(self._write_progress(fraction, note)))
                task.add_done_callback(writing.discard)

        try:
            yield heard
            if writing:
                await asyncio.wait(writing)
        finally:
            await end(writing)


def as_json(result: BaseModel) -> dict[str, Any]:
    """What JSON can hold of a result; Quarantined where it holds something that JSON cannot, as it will next time."""
    try:
        return result.model_dump(mode="json")
    except ValueError as error:
        raise Quarantined(f"its result is not JSON: {error}") from None


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong with a job's arguments, by the field's name."""
    problem = error.errors()[0]
    where = ".".join(str(step) for step in problem["loc"]) or "payload"
    return f"{where}: {problem['msg']}"
