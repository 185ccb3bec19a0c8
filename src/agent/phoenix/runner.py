"""One run of a job in its worker: from the claimed text to what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from agent.metrics import WAIT_SECONDS
from agent.phoenix.endings import OWN_DEATHS, CircuitHeld, Endings, NotStarted, Quarantined, Result, version_of
from agent.phoenix.outbox import ENDED_ITS_PROCESS, MAX_NAME, is_name
from pipelines.errors import ChildDied, RecordNotFoundError

if TYPE_CHECKING:
    from saq import Worker
    from saq.job import Job

    from agent.phoenix.runs import Ending, Run

log = structlog.get_logger()

MAX_ATTEMPTS = 2**31
"""More than a job can fail in a thousand years; what a stranger wrote beyond it counts as none."""

Handler = Callable[..., Awaitable[Any]]


class Runner:
    """Runs the tasks of one worker, and says how each run ended.

    Args:
        worker: SAQ's side: its hooks, its context, its table of what runs.
        handlers: task -> coroutine function.
        endings: builds what a run comes to.
        timeout_of: (job) -> seconds that a run may take, 0 for ever; a handler that knows better says `run.limit()`.
    """

    def __init__(
        self,
        worker: Worker[Any],
        handlers: Mapping[str, Handler],
        endings: Endings,
        *,
        timeout_of: Callable[[Job], float],
    ) -> None:
        self._worker = worker
        self._handlers = handlers
        self._endings = endings
        self._timeout_of = timeout_of

    async def carry_out(self, run: Run) -> Ending | None:
        """How the run ended; None if it is no longer ours to end."""
        endings = self._endings
        try:
            job = self._worker.queue.deserialize(run.text.decode())
            assert job is not None
        except Exception as error:
            return endings.quarantined(run, Quarantined(f"the stored job cannot be decoded: {error}"))
        run.job = job
        run.attempts = (job.attempts if isinstance(job.attempts, int) and 0 <= job.attempts < MAX_ATTEMPTS else 0) + 1
        handler = self._handlers.get(job.function)
        if handler is None or not run.service:
            known = ", ".join(sorted(self._handlers))
            return endings.quarantined(run, Quarantined(f"{job.function} is not a task of this worker ({known})"))
        if not is_name(run.record):
            return endings.quarantined(run, Quarantined(f"its record id must be 1 to {MAX_NAME} characters of text"))
        if job.kwargs and not isinstance(job.kwargs, dict):
            kind = type(job.kwargs).__name__
            return endings.quarantined(run, Quarantined(f"bad-payload: kwargs is a {kind}, not an object of arguments"))
        if run.own_deaths >= OWN_DEATHS:
            return endings.quarantined(run, Quarantined(f"{ENDED_ITS_PROCESS} {run.own_deaths} times"))
        if run.cancelled_for is not None:
            return self._cancelled(run)
        if run.marker is not None and (answer := self._answer(run)) is not None:
            return answer
        return await self._guarded(run, handler)

    async def after(self, run: Run) -> None:
        """SAQ's hooks for afterwards, once nothing can go wrong with the run any more."""
        if run.context is not None and self._worker.after_process:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await self._worker._after_process(run.context)

    def _answer(self, run: Run) -> Ending | None:
        assert run.marker is not None
        try:
            stored = run.marker.decode("utf-8")
            marker = json.loads(stored)
            if marker["version"] != version_of(run):
                return None
        except (ValueError, TypeError, KeyError):
            return None  # somebody wrote over it: as if there were none
        return self._endings.answered(run, marker, stored)

    async def _guarded(self, run: Run, handler: Handler) -> Ending | None:
        job, endings = run.job, self._endings
        assert job is not None
        job.started, job.worker_id, job.attempts = int(run.started * 1000), self._worker.id, run.attempts
        due = max(job.queued / 1000, job.scheduled)
        WAIT_SECONDS.observe(job.function, max(0.0, run.started - due))
        if (timeout := self._timeout_of(job)) > 0:
            run.limit(timeout)
        context: Any = {**self._worker.context, "job": job, "run": run}
        try:
            if self._worker.before_process:
                await self._worker._before_process(context)
            value = await handler(context, **(job.kwargs or {}))
            return self._done(run, value if isinstance(value, Result) else Result(value))
        except asyncio.CancelledError as error:
            context["exception"] = None
            if run.cancelled_for is None and not self._worker.event.is_set():
                return self._failed(run, error)  # nobody wanted it to end but itself
            return self._cancelled(run)
        except CircuitHeld as held:
            return endings.parked(run, held.circuit)
        except NotStarted as error:
            log.info("job.not_started", task=run.service, record_id=run.record, why=str(error))
            return endings.released(run)
        except RecordNotFoundError as error:
            return endings.buried(run, error)
        except Quarantined as error:
            return endings.quarantined(run, error)
        except ChildDied as error:
            context["exception"] = error
            if self._worker.event.is_set():  # the stop may have been said to the child as well
                return endings.released(run)
            if run.own_deaths + 1 >= OWN_DEATHS:
                return endings.quarantined(
                    run, Quarantined(f"{OWN_DEATHS} of its child processes died; the last: {error}")
                )
            return self._failed(run, error, own_death=True)
        except BaseException as error:  # sys.exit() in a body, or a group of them, is its own failure and nobody else's
            context["exception"] = error
            return self._failed(run, error)
        finally:
            run.no_limit()
            run.context = context

    def _done(self, run: Run, result: Result) -> Ending:
        try:
            return self._endings.done(run, result)
        except (TypeError, ValueError) as error:
            return self._endings.quarantined(run, Quarantined(f"its result is not JSON: {error}"))

    def _failed(self, run: Run, error: BaseException, *, own_death: bool = False) -> Ending:
        # A child's error brings its traceback as text: the first line is for whoever reads the log.
        said, _, trace = f"{type(error).__name__}: {error}".partition("\n")
        more = {"traceback": trace} if trace else {}
        log.warning("job.failed", task=run.service, record_id=run.record, attempts=run.attempts, error=said, **more)
        return self._endings.retried(run, error, own_death=own_death)

    def _cancelled(self, run: Run) -> Ending | None:
        match run.cancelled_for:
            case "timeout":
                return self._failed(run, TimeoutError(f"it ran longer than its {run.timeout:.0f} s"))
            case "abort":
                return self._endings.aborted(run, (run.job and run.job.error) or "aborted")
            case "lost" | "distrusted":
                log.warning("job.lost", task=run.service, record_id=run.record, why=run.cancelled_for)
                return None if run.cancelled_for == "lost" else self._endings.released(run)
            case _:
                return self._endings.released(run)
