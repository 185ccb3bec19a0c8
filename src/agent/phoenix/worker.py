"""The worker of a lane's queue: SAQ's Worker, with one step script instead of its dequeue, update and finish.

One pump ends what has ended and claims what there is room for, in one round trip: under load several runs end
together, and a lone one never waits for company. While nothing is queued a connection of its own waits with a BLMOVE
of a list onto itself, which moves nothing: there is no moment at which a job is taken and not yet owned.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
from redis.exceptions import NoPermissionError, RedisError
from saq import Worker
from saq.types import JobTaskContext
from saq.worker import ensure_coroutine_function

from agent.cancelling import end
from agent.phoenix import keys
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import OWN_DEATHS, CircuitHeld, Endings, Quarantined, Result, version_of
from agent.phoenix.lease import Leases
from agent.phoenix.queue import LaneQueue
from agent.phoenix.ticks import Ticks
from agent.redis_client import reply
from agent.throttle import OncePer
from pipelines.errors import ChildDied, RecordNotFoundError

if TYPE_CHECKING:
    from agent.phoenix.runs import Ending, Run

log = structlog.get_logger()

SWEEP = 5.0
"""Seconds between looks for jobs of dead workers: recovery takes a lease and one of these at most."""

UPKEEP = 1.0
IDLE_WAIT = 5
"""Seconds of one blocking wait; below the connection's reply time-out."""

ALONE_AFTER = 2
"""Takeovers after which a job runs alone, so that its next death can be told from bad luck."""

SETTLE_AT_STOP = 5.0
"""Seconds that a stopping worker tries to hand over what has ended; what it cannot, its leases' ends will."""

MAX_BACKOFF = 10.0
PAUSED_PREFIX = "paused:"
UNPARK_MOST = 1_000

Handler = Callable[..., Awaitable[Any]]


class LaneWorker(Worker[Any]):
    """`LaneWorker(queue, functions=[...], concurrency=4)`, and otherwise as SAQ's Worker.

    Args:
        lane: the name that `phoenix:paused` knows it by.
        grace: seconds that running jobs get at shutdown.
        outbox: whether results go to a control plane.
        timeout_of: (job) -> seconds that a run may take; None: what the job says.
        has_outside_effects: (job) -> whether a run must stop when its lease may have ended.
        on_settled: called after results were recorded.
        breakers: the circuits for which parked jobs wait.
    """

    def __init__(
        self,
        queue: LaneQueue,
        functions: Any,
        *,
        lane: str = "",
        grace: float = 10.0,
        outbox: bool = False,
        timeout_of: Callable[[Any], float] | None = None,
        has_outside_effects: Callable[[Any], bool] | None = None,
        on_settled: Callable[[], None] | None = None,
        breakers: Breakers | None = None,
        sweep: float = SWEEP,
        **options: Any,
    ) -> None:
        super().__init__(queue, functions, **options)
        self.lane_queue = queue
        self.lane = lane
        self.runs: dict[str, Run] = {}
        self.settled = 0
        self.stale = 0
        self._grace = grace
        self._timeout_of = timeout_of or (lambda job: float(job.timeout or 0))
        self._has_outside_effects = has_outside_effects or (lambda job: False)
        self._on_settled = on_settled
        self._sweep_every = sweep
        self._breakers = breakers or Breakers(queue.scripts, queue.redis)
        self._endings = Endings(queue, self.id, outbox=outbox)
        self._ended: list[Ending] = []
        self._wake = asyncio.Event()
        self._dry = False
        self._closing = False
        self._waiting_alone: list[Run] = []
        self._alone: Run | None = None
        self._waiter: asyncio.Task[None] | None = None
        self._complain = OncePer(60.0)
        self._leases = Leases(queue, self.runs)
        self._ticks = Ticks(queue, self.cron_jobs, self.cron_tz)
        self._handlers: dict[str, Handler] = {
            name: ensure_coroutine_function(function, self.pool) for name, function in self.functions.items()
        }

    # The pump.

    def _process(self, previous_task: Any = None) -> None:
        """SAQ starts one of these per slot; here one pump serves all slots."""
        if self._pump_task is None:
            self._pump_task = asyncio.create_task(self._pump(), name="pump")
            self.tasks.add(self._pump_task)
            self._leases.start()

    _pump_task: asyncio.Task[None] | None = None

    def _room(self) -> int:
        if self.event.is_set() or self._waiting_alone or self._alone is not None:
            return 0
        return self.concurrency - len(self.runs)

    async def _pump(self) -> None:
        """Until `_closing` and nothing is left to settle; never cancelled within a step, whose reply would be lost."""
        failures = 0
        while True:
            room = self._room()
            if self._closing and not self._ended:
                return
            if not self._ended and (self._dry or room < 1):
                if self._dry and room > 0 and self._waiter is None:
                    self._waiter = asyncio.create_task(self._wait_for_jobs(), name="idle")
                self._wake.clear()
                await self._wake.wait()
                continue
            ended, self._ended = self._ended, []
            try:
                answers, claimed = await self.lane_queue.step(self.id, self.lane, room, ended)
                failures = 0
            except (RedisError, OSError) as error:
                self._ended = ended + self._ended  # the same endings again: a settle that got through answers so
                failures += 1
                if self._complain():
                    log.warning("queue.unreachable", queue=self.queue.name, error=str(error), failures=failures)
            except Exception:  # a fault of ours must not end the pump: nothing would be settled or claimed again
                self._ended = ended + self._ended
                failures += 1
                log.exception("worker.step_failed", failures=failures)
            if failures:
                await asyncio.sleep(min(0.1 * 2 ** min(failures, 10), MAX_BACKOFF))
                continue
            self._dry = len(claimed) < room
            for ending, answer in zip(ended, answers, strict=True):
                self._note(ending, answer)
            if ended and self._on_settled is not None:
                self._on_settled()
            if claimed:
                self._in_vain = 0
            for run in claimed:
                self._begin(run)

    async def _wait_for_jobs(self) -> None:
        """Until the queue holds something; a queue that holds only what may not be taken is not asked in a loop."""
        key = self.lane_queue.keys[0]
        try:
            if self._in_vain > 1:
                await asyncio.sleep(0.05 if self._in_vain == 2 else 1.0)
            started = time.monotonic()
            found = await self.lane_queue.redis.blmove(key, key, IDLE_WAIT, "LEFT", "LEFT")
            found_at_once = found is not None and time.monotonic() - started < 0.01
            self._in_vain = self._in_vain + 1 if found_at_once else 0
        except (RedisError, OSError):
            await asyncio.sleep(1.0)
        finally:
            self._waiter = None
            self._dry = False
            self._wake.set()

    _in_vain = 0
    """Waits in a row that found something at once, since a claim last took anything."""

    def _note(self, ending: Ending, answer: str) -> None:
        run, job = ending.run, ending.run.job
        seconds = time.time() - run.started
        if answer == "settled" and ending.kind == "settle":
            self.settled += 1
            if ending.status == "complete":
                self.queue.complete += 1
            elif ending.status == "failed":
                self.queue.failed += 1
            else:
                self.queue.aborted += 1
            log.info("job.settled", task=run.service, record_id=run.record, status=ending.status,
                     seconds=round(seconds, 3), attempts=run.attempts)  # fmt: skip
        elif answer == "settled":
            self.queue.retried += ending.kind == "retry"
            log.info(f"job.{EVENTS[ending.kind]}", task=run.service, record_id=run.record, attempts=run.attempts,
                     wait=round(ending.number, 1), where=ending.where or None)  # fmt: skip
        elif answer == "stale":
            self.stale += 1
            log.warning("job.stale", task=run.service, record_id=run.record, fence=run.token)
        else:
            log.error("job.settle_failed", key=job.key if job else run.id, error=answer)

    # One run.

    def _begin(self, run: Run) -> None:
        self.runs[run.id] = run
        log.debug("job.claimed", task=run.service, record_id=run.record, fence=run.token)
        if run.takeovers >= ALONE_AFTER and self.concurrency > 1:
            self._waiting_alone.append(run)
            self._start_alone()
        else:
            self._start(run)

    def _start_alone(self) -> None:
        if self._alone is None and self._waiting_alone and len(self.runs) == len(self._waiting_alone):
            self._alone = self._waiting_alone.pop(0)
            self._start(self._alone)

    def _start(self, run: Run) -> None:
        run.task = asyncio.create_task(self._carry_out(run))
        self.tasks.add(run.task)

    async def _carry_out(self, run: Run) -> None:
        run.begun = True
        try:
            ending = await self._run(run)
        except Exception as error:  # a fault of ours must not cost the job: its lease would end and it would run again
            log.exception("job.ending_failed", task=run.service, record_id=run.record)
            ending = self._endings.quarantined(run, error)
        self.runs.pop(run.id, None)
        if run.task is not None:
            self.tasks.discard(run.task)
        if run is self._alone:
            self._alone = None
        if self._waiting_alone:
            self._start_alone()
        if ending is not None:
            self._ended.append(ending)
        self._dry = False
        self._wake.set()

    async def _run(self, run: Run) -> Ending | None:
        endings = self._endings
        try:
            job = self.queue.deserialize(run.text)
            assert job is not None
        except Exception as error:
            return endings.quarantined(run, Quarantined(f"the stored job cannot be decoded: {error}"))
        run.job = job
        run.attempts = job.attempts + 1
        handler = self._handlers.get(job.function)
        if handler is None or not run.service:
            known = ", ".join(sorted(self._handlers))
            return endings.quarantined(run, Quarantined(f"{job.function} is not a task of this worker ({known})"))
        if run.own_deaths >= OWN_DEATHS:
            return endings.quarantined(run, Quarantined(f"it ended its process {run.own_deaths} times"))
        if run.cancelled_for is not None:
            return self._cancelled(run)
        if run.marker is not None and (answer := self._answer(run)) is not None:
            return answer
        return await self._guarded(run, handler)

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
        job.started, job.worker_id, job.attempts = int(run.started * 1000), self.id, run.attempts
        run.outside_effects = self._has_outside_effects(job)
        timeout = self._timeout_of(job)
        stop: asyncio.TimerHandle | None = None
        if timeout > 0:
            run.deadline = time.monotonic() + timeout
            stop = asyncio.get_running_loop().call_later(timeout, self._time_out, run)
        context: Any = {**self.context, "job": job, "run": run}
        assert run.task is not None
        self.job_task_contexts[job] = JobTaskContext(task=run.task, aborted=None)
        try:
            await self._before_process(context)
            value = await handler(context, **(job.kwargs or {}))
            return self._done(run, value if isinstance(value, Result) else Result(value))
        except asyncio.CancelledError:
            context["exception"] = None
            return self._cancelled(run)
        except CircuitHeld as held:
            return endings.parked(run, held.circuit)
        except RecordNotFoundError as error:
            return endings.buried(run, error)
        except Quarantined as error:
            return endings.quarantined(run, error)
        except ChildDied as error:
            context["exception"] = error
            if run.own_deaths + 1 >= OWN_DEATHS:
                return endings.quarantined(
                    run, Quarantined(f"{OWN_DEATHS} of its child processes died; the last: {error}")
                )
            return self._failed(run, error, own_death=True)
        except Exception as error:
            context["exception"] = error
            return self._failed(run, error)
        finally:
            if stop is not None:
                stop.cancel()
            self.job_task_contexts.pop(job, None)
            if self.after_process:
                with contextlib.suppress(Exception):
                    await self._after_process(context)

    def _done(self, run: Run, result: Result) -> Ending:
        try:
            return self._endings.done(run, result)
        except (TypeError, ValueError) as error:
            return self._endings.quarantined(run, Quarantined(f"its result is not JSON: {error}"))

    def _failed(self, run: Run, error: BaseException, *, own_death: bool = False) -> Ending:
        log.warning("job.failed", task=run.service, record_id=run.record, attempts=run.attempts,
                    error=f"{type(error).__name__}: {error}")  # fmt: skip
        return self._endings.retried(run, error, own_death=own_death)

    def _cancelled(self, run: Run) -> Ending | None:
        match run.cancelled_for:
            case "timeout":
                return self._failed(run, TimeoutError(f"it ran longer than its {self._timeout_of(run.job):.0f} s"))
            case "abort":
                return self._endings.aborted(run, (run.job and run.job.error) or "aborted")
            case "lost" | "distrusted":
                log.warning("job.lost", task=run.service, record_id=run.record, why=run.cancelled_for)
                return None if run.cancelled_for == "lost" else self._endings.released(run)
            case _:
                return self._endings.released(run)

    def _time_out(self, run: Run) -> None:
        run.cancel("timeout")  # a body that takes no notice is ended with its process, by the leases' thread

    # Upkeep.

    async def upkeep(self) -> list[asyncio.Task[None]]:
        """Start the loops beside the pump."""
        return [asyncio.create_task(self._keep_up()), asyncio.create_task(self._inform())]

    async def _keep_up(self) -> None:
        swept = -self._sweep_every
        while not self.event.is_set():
            started = time.monotonic()
            try:
                orphans = started - swept >= self._sweep_every and await self._may_take_over()
                due, taken, asked = await self.lane_queue.upkeep(orphans=orphans, aborts=bool(self.runs))
                if orphans:
                    swept = started
                if due or taken:
                    self._dry = False
                    self._wake.set()
                for job_id in taken:
                    log.warning("job.taken_over", id=job_id)
                if orphans:
                    await self._unpark()
                await self._ticks.enqueue()
                for job_id in asked:
                    if job_id in self.runs:
                        await self._abort(self.runs[job_id])
            except (RedisError, OSError):
                pass  # the pump says so
            except Exception:
                log.exception("worker.upkeep_failed")
            await asyncio.sleep(UPKEEP)

    async def _abort(self, run: Run) -> None:
        """End a run as somebody wants, with the reason that was left in the stored job."""
        stored = self.lane_queue.readable(await self.lane_queue.redis.get(run.id))
        if stored is not None and run.job is not None:
            run.job.error = stored.error
        run.cancel("abort")

    async def _unpark(self) -> None:
        """Let go what waits for a circuit, as far as the circuit and our slots allow."""
        waiting = await reply(self.lane_queue.redis.smembers(self.lane_queue.keys[6]))
        for name in sorted(name.decode() for name in waiting):
            if name.startswith(PAUSED_PREFIX):
                still = await reply(self.lane_queue.redis.sismember(keys.PAUSED, name.removeprefix(PAUSED_PREFIX)))
                room = 0 if still else UNPARK_MOST
            else:
                room = min(await self._breakers.room(name), max(1, 2 * self._room()))
            if room and await self.lane_queue.unpark(name, room) < room:
                await reply(self.lane_queue.redis.srem(self.lane_queue.keys[6], name))

    async def _may_take_over(self) -> bool:
        """Not for one lease after the server started: its clients may still be on their way back to it.

        A user who may not ask for that (the start warned) is one whose jobs are taken over all the same.
        """
        try:
            info = await self.lane_queue.redis.info("server")
        except NoPermissionError:
            return True
        return int(info["uptime_in_seconds"]) > self.lane_queue.lease

    async def _inform(self) -> None:
        while not self.event.is_set():
            with contextlib.suppress(RedisError, OSError):
                await self.worker_info(ttl=self.timers["worker_info"] + 1)
            await asyncio.sleep(self.timers["worker_info"])

    # The end.

    async def stop(self) -> None:
        """Take nothing more, give running jobs the grace, hand back what is left, settle what has ended."""
        self.event.set()
        async with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
        for run in self._waiting_alone:
            self.runs.pop(run.id, None)
            self._ended.append(self._endings.released(run))
        self._waiting_alone.clear()
        running = [run.task for run in self.runs.values() if run.task is not None]
        if running:
            log.info("worker.stopping", running=len(running), grace=self._grace)
            await asyncio.wait(running, timeout=self._grace)
            for run in list(self.runs.values()):
                run.cancel("shutdown")
            await asyncio.wait(running, timeout=self._cancellation_hard_deadline_s)
        self._closing = True
        self._wake.set()
        if self._pump_task is not None:
            await asyncio.wait([self._pump_task], timeout=SETTLE_AT_STOP)
        self._leases.stop()
        leftover = [task for task in (self._pump_task, self._waiter, *self.tasks) if task is not None]
        await end(leftover, within=self._cancellation_hard_deadline_s)
        self.pool.shutdown(False, cancel_futures=True)
        if self.shutdown:
            callbacks = [self.shutdown] if callable(self.shutdown) else self.shutdown
            for callback in callbacks:
                await callback(self.context)


EVENTS = {"retry": "retried", "release": "released", "park": "parked"}
