"""The worker of a lane's queue: SAQ's Worker, with a pump of step scripts instead of its dequeue, update and finish."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import structlog
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as NoReply
from saq import Worker
from saq.worker import ensure_coroutine_function

from agent import metrics
from agent.cancelling import end
from agent.logs import together
from agent.phoenix.alone import Alone
from agent.phoenix.clock import Leaps
from agent.phoenix.endings import Endings
from agent.phoenix.lease import RENEWALS, Leases
from agent.phoenix.parked import LOOK, Parked
from agent.phoenix.pulse import Pulse, Turns
from agent.phoenix.pump import Pump
from agent.phoenix.queue import LaneQueue
from agent.phoenix.runner import Runner
from agent.phoenix.ticks import Ticks
from agent.throttle import OncePer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from saq.job import Job

    from agent.phoenix.runs import Ending, Run

log = structlog.get_logger()

SWEEP = 5.0
"""Seconds between looks for jobs of dead workers: recovery takes a lease and one of these at most."""

UPKEEP = 1.0

SETTLE_AGAIN = 5.0
"""Seconds until an ending that the server could not write is sent once more."""

SETTLE_AT_STOP = 5.0
"""Seconds that a stopping worker tries to hand over what has ended; what it cannot, its leases' ends will."""

SIGN_OFF = 1.0
"""Seconds that a stopping worker tries to leave the list of workers; else its entry's ttl takes it off."""


class LaneWorker(Worker[Any]):
    """`LaneWorker(queue, functions=[...], concurrency=4)`, and otherwise as SAQ's Worker.

    Args:
        lane: the name that `phoenix:paused` knows it by.
        grace: seconds that running jobs get at shutdown.
        outbox: whether results go to a control plane.
        timeout_of: (job) -> seconds that a run may take, 0 for ever; None: what the job says.
        health: a file that is touched while the worker is healthy.
    """

    def __init__(
        self,
        queue: LaneQueue,
        functions: Any,
        *,
        lane: str = "",
        grace: float = 10.0,
        outbox: bool = False,
        timeout_of: Callable[[Job], float] | None = None,
        sweep: float = SWEEP,
        health: Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(queue, functions, **options)
        self.lane_queue = queue
        self.lane = lane
        self.runs: dict[str, Run] = {}
        self._latest: dict[str, Run] = {}
        """Job id -> its run that was claimed last, while it has not ended."""
        self.claimed = asyncio.Event()
        """Set whenever a job was taken off the queue, for who waits for room there and clears it."""
        self.settled = 0
        self.stale = 0
        self._log = log.bind()  # found once: the module's own looks for its configuration at each line
        self._grace = grace
        self._sweep_every = sweep
        self._parked = Parked(queue, self.concurrency, look=min(LOOK, 2 * sweep))
        self._endings = Endings(queue, self.id, outbox=outbox, tasks=self.functions)
        self._unwritten: dict[str, Run] = {}
        self._leaps = Leaps(queue.lease / RENEWALS, queue.lease)
        self._server_up = 0
        """Seconds that the server had been up when it was last asked; 0: it did not say."""
        self._alone = Alone(queue, lambda: self.runs.values(), start=self._start, hand_back=self._hand_back)
        self._leases = Leases(queue, self._held)
        self._ticks = Ticks(queue, self.cron_jobs, self.cron_tz)
        self._pump = Pump(queue, self)
        self._pumping = False
        self._complain = OncePer(60.0)
        self._upkeep_turns = Turns()
        self._pulse = Pulse(self._pump.turns, self._upkeep_turns, self._asks, health)
        self._runner = Runner(
            self,
            {name: ensure_coroutine_function(function, self.pool) for name, function in self.functions.items()},
            self._endings,
            timeout_of=timeout_of or (lambda job: float(job.timeout or 0)),
        )

    def _held(self) -> list[Run]:
        """Runs whose lease is to be kept: those that run, and those that have ended and are not settled yet."""
        held = (self._unwritten, self._pump.unsettled, self.runs)
        return [run for place in held for run in list(place.values())]

    # What the pump asks for.

    def known(self) -> list[str]:
        """Tokens of all runs that are ours."""
        return [run.token for run in self._held()]

    def _process(self, previous_task: Any = None) -> None:
        """SAQ starts one of these per slot; here one pump serves all slots."""
        if not self._pumping:
            self._pumping = True
            metrics.SLOTS.labels(self.lane).set(self.concurrency)
            metrics.IN_FLIGHT.labels(self.lane).set_function(lambda: len(self.runs))
            self._pump.start()
            self._leases.start()

    def room(self) -> int:
        """Jobs that may be claimed now; none while one runs alone, or waits for that."""
        if self.event.is_set() or self._alone.busy:
            return 0
        return self.concurrency - len(self.runs)

    def _asks(self) -> bool:
        """Whether the pump has anything to ask the server."""
        return self.room() > 0 or bool(self._pump.unsettled)

    def note(self, endings: Sequence[Ending], answers: Sequence[str]) -> None:
        """What became of endings."""
        counts = Counter[tuple[str, str]]()
        now = time.time()
        try:
            with together():
                for ending, answer in zip(endings, answers, strict=True):
                    seconds = now - ending.run.started
                    outcome = self._note(ending, answer, seconds)
                    service = ending.run.service
                    task = service if service in self.functions else "unknown"  # what strangers enqueue makes no series
                    counts[task, outcome] += 1
                    metrics.RUN_SECONDS.observe(task, seconds)
        finally:
            for labels, count in counts.items():
                metrics.runs(*labels).inc(count)

    def _note(self, ending: Ending, answer: str, seconds: float) -> str:
        run = ending.run
        outcome = ending.outcome if answer == "settled" else answer
        if answer == "settled" and ending.kind == "settle":
            self.settled += 1
            if ending.status == "complete":
                self.queue.complete += 1
            elif ending.status == "failed":
                self.queue.failed += 1
            else:
                self.queue.aborted += 1
            self._log.info("job.settled", task=run.service, record_id=run.record, outcome=outcome,
                           seconds=round(seconds, 3), attempts=run.attempts)  # fmt: skip
        elif answer == "settled":
            self.queue.retried += ending.kind == "retry"
            log.info(f"job.{outcome}", task=run.service, record_id=run.record, attempts=run.attempts,
                     wait=round(ending.number, 1), where=ending.where or None)  # fmt: skip
        elif answer == "stale":
            self.stale += 1
            log.warning("job.stale", task=run.service, record_id=run.record, fence=run.token)
        else:
            outcome = "error"
            log.error("job.settle_failed", id=run.id, error=answer, again_in=SETTLE_AGAIN)
            self._settle_later(ending)
        return outcome

    def _settle_later(self, ending: Ending) -> None:
        """The server cannot write it until somebody has repaired a key; until then the run and its result are ours."""
        self._unwritten[ending.run.token] = ending.run

        def again() -> None:
            self._pump.add(ending)
            del self._unwritten[ending.run.token]

        asyncio.get_running_loop().call_later(SETTLE_AGAIN, again)

    # One run.

    def begin(self, run: Run) -> None:
        """Start a claimed run; one that was taken over too often, once it can run alone."""
        if (older := self._latest.get(run.id)) is not None:  # its lease had ended unheard: it is this run's now
            older.cancel("lost")
        self.runs[run.token] = self._latest[run.id] = run
        self.claimed.set()
        self._log.debug("job.claimed", task=run.service, record_id=run.record, fence=run.token)
        self._alone.begin(run)

    def _hand_back(self, run: Run) -> None:
        self._forget(run)
        self._pump.add(self._endings.released(run))

    def _forget(self, run: Run) -> None:
        self.runs.pop(run.token, None)
        if self._latest.get(run.id) is run:
            del self._latest[run.id]

    def _start(self, run: Run) -> None:
        run.task = asyncio.create_task(self._carry_out(run))
        self.tasks.add(run.task)

    async def _carry_out(self, run: Run) -> None:
        run.begun = True
        ending: Ending | None = None
        try:
            may_go = not self._alone.busy or await self._alone.announced(run)
            ending = await self._runner.carry_out(run) if may_go else self._endings.released(run)
        except Exception as error:  # a fault of ours must not cost the job: its lease would end and it would run again
            log.exception("job.ending_failed", task=run.service, record_id=run.record)
            ending = self._endings.unspeakable(run, error)
        finally:
            run.no_limit()
            if ending is not None:
                self._pump.add(ending)  # and wakes it
            else:
                self._pump.wake()
            self._forget(run)
            self._alone.ended(run)
        if self.after_process:
            await self._runner.after(run)
        if run.task is not None:
            self.tasks.discard(run.task)

    # Upkeep.

    async def upkeep(self) -> list[asyncio.Task[None]]:
        """Start the loops beside the pump."""
        loops = (self._keep_up(), self._inform(), self._pulse.run(self.event))
        return [asyncio.create_task(loop) for loop in loops]

    async def _keep_up(self) -> None:
        swept = -self._sweep_every
        while not self.event.is_set():
            started = time.monotonic()
            sweeps = started - swept >= self._sweep_every
            if await self._quietly(self._look_after(sweeps)) and sweeps:
                swept = started
            self._upkeep_turns.end()
            await self._quietly(self._parked.release())
            await self._quietly(self._ticks.enqueue())
            await asyncio.sleep(UPKEEP)

    async def _quietly(self, step: Coroutine[Any, Any, bool | None]) -> bool:
        """One step of the upkeep; whatever is wrong with it keeps no other from being done. False if it was not."""
        try:
            return await step is not False
        except (NoConnection, NoReply, OSError):
            return False  # the pump says so
        except Exception:
            if self._complain():
                log.exception("worker.upkeep_failed")
            return False

    async def _look_after(self, sweeps: bool) -> bool:
        """What time brings about; True if dead workers' jobs were looked for, where that was wanted."""
        orphans = sweeps and await self._may_take_over()
        due, taken, asked = await self.lane_queue.upkeep(
            orphans=orphans,
            aborts=bool(self.runs),
            known=[run.token for run in self._held()] if orphans else (),
            uptime=self._server_up,
        )
        self._upkeep_turns.answer()
        if due or taken:
            self._pump.wake()
        metrics.TAKEOVERS.inc(len(taken))
        for job_id in taken:
            log.warning("job.taken_over", id=job_id)
        for run in [run for run in self.runs.values() if run.id in asked]:
            await self._abort(run)
        return orphans or not sweeps

    async def _abort(self, run: Run) -> None:
        """End a run as somebody wants, with the reason that was left in the stored job."""
        stored = self.lane_queue.readable(await self.lane_queue.redis.get(run.names[0]))
        if stored is not None and run.job is not None:
            run.job.error = stored.error
        run.cancel("abort")

    async def _may_take_over(self) -> bool:
        """Not for one lease after the server started, whose clients may still be on their way back to it, or after its
        clock leapt, for us at least: a machine slept, or somebody set it.

        A user who may not ask for that (the start warned) is one whose jobs are taken over all the same.
        """
        try:
            info = await self.lane_queue.redis.info("server")
        except NoPermissionError:
            return True
        self._server_up = int(info["uptime_in_seconds"])
        told = info.get("server_time_usec")  # a proxy may leave it out
        calm = told is None or self._leaps.settled(int(told) / 1e6)
        return calm and self._server_up > self.lane_queue.lease

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
        await self._pump.claim_no_more()
        self._alone.give_up()
        if self.runs:
            log.info("worker.stopping", running=len(self.runs), grace=self._grace)
            await self._until_none_runs(self._grace)
            for run in list(self.runs.values()):
                run.cancel("shutdown")
            await self._until_none_runs(self._cancellation_hard_deadline_s)
        await self._pump.close(SETTLE_AT_STOP)
        self._leases.stop()
        await end(list(self.tasks), within=self._cancellation_hard_deadline_s)
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(SIGN_OFF):
                await self.lane_queue.sign_off(self.id)
        self.pool.shutdown(False, cancel_futures=True)
        if self.shutdown:
            callbacks = [self.shutdown] if callable(self.shutdown) else self.shutdown
            for callback in callbacks:  # plain ones as well, as SAQ takes them
                if isawaitable(said := callback(self.context)):
                    await said

    async def _until_none_runs(self, within: float) -> None:
        tasks = [run.task for run in self.runs.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within)
