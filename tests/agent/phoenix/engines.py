"""One test for two engines: SAQ's own queue and worker, and a lane's. Each speaks the same few words to it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from saq import Worker
from saq.job import Job, Status
from saq.queue.redis import RedisQueue
from saq.utils import now

from agent.phoenix.endings import Endings, Result
from agent.phoenix.queue import LaneQueue
from agent.phoenix.runs import Run
from agent.phoenix.worker import LaneWorker

REPO = Path(__file__).resolve().parents[3]
NAME = "faults"
LEASE = 1.0
ABORT_WAIT = 0.3
"""Seconds that SAQ's sweep waits for one job; 5 by default, which only makes its faults slower."""


class InvariantBroken(AssertionError):
    """A promise of a job queue does not hold. Its subclasses name the promise."""


class RunsTwice(InvariantBroken):
    """A job runs again, or beside itself, though nothing called for it."""


class LostJob(InvariantBroken):
    """A job is over or nowhere, though it never ran to its end."""


class StaleResultRecorded(InvariantBroken):
    """Somebody who lost a job ended it all the same."""


class DoneJobUndone(InvariantBroken):
    """A job that was done is queued or aborted again."""


class StuckForEver(InvariantBroken):
    """A job that nobody works on never becomes anything else."""


class OtherQueueBlocked(InvariantBroken):
    """What happens on one queue is felt on another."""


class SweepStopped(InvariantBroken):
    """One bad entry keeps the others from being looked after."""


class Spins(InvariantBroken):
    """A worker without a server uses the processor."""


class AttemptUsed(InvariantBroken):
    """A stop of the worker is counted against the job."""


class NoGrace(InvariantBroken):
    """A stop of the worker ends a job that needed a moment more."""


class TakesWhileStopping(InvariantBroken):
    """A worker that stops takes another job."""


class BackoffOverflows(InvariantBroken):
    """A job that has failed often can no longer be retried."""


class TickMissing(InvariantBroken):
    """A cron job never runs."""


class PageEmpty(InvariantBroken):
    """A page of jobs shows nothing, though there are such jobs."""


class Held:
    """A job that somebody took, and what there is to end it with."""

    def __init__(self, job: Job | None, run: Run | None = None) -> None:
        self.job = job
        self.run = run


class Saq:
    """SAQ as it comes."""

    name = "saq"
    lease = LEASE

    def queue(self, redis: Redis, name: str = NAME) -> RedisQueue:
        return RedisQueue(redis, name=name)

    def worker(self, queue: Any, functions: Any, **options: Any) -> Worker[Any]:
        queue.sweep = functools.partial(queue.sweep, abort=ABORT_WAIT)
        options.pop("lane_options", None)
        return Worker(queue, functions, timers={"sweep": 1, "schedule": 1, "abort": 1}, **options)

    async def take(self, queue: Any, who: str) -> Held | None:
        """What the server hands out, before the worker has written anything."""
        with contextlib.suppress(TimeoutError):
            job = await queue.dequeue(timeout=0.2)
            return Held(job) if job is not None else None
        return None

    async def hold(self, queue: Any, who: str) -> Held | None:
        """Take a job and begin to run it."""
        held = await self.take(queue, who)
        if held is not None and held.job is not None:
            job = held.job
            job.started, job.worker_id = now(), who
            job.attempts += 1
            await job.update(status=Status.ACTIVE)
        return held

    async def lapse(self, queue: Any, held: Held) -> None:
        """So much time passes that the worker counts as dead."""
        assert held.job is not None
        stored = await queue.job(held.job.key)
        stored.started = now() - 3_600_000
        await queue.redis.set(stored.id, queue.serialize(stored))

    async def sweep(self, queue: Any) -> None:
        await queue.redis.delete(queue.namespace("sweep"))  # its turn, as after `lock` seconds
        await queue.sweep(lock=1, abort=ABORT_WAIT)

    async def schedule(self, queue: Any) -> None:
        await queue.redis.delete(queue.namespace("schedule"))
        await queue.schedule()

    async def finish(self, queue: Any, held: Held, result: Any) -> bool:
        """Whether the queue took the result."""
        assert held.job is not None
        await queue.finish(held.job, Status.COMPLETE, result=result)
        return True

    async def retry(self, queue: Any, held: Held) -> None:
        """It failed; once more, at once."""
        assert held.job is not None
        await queue.retry(held.job, "failed")


class Lanes:
    """A lane's queue and worker, with short times."""

    name = "lanes"
    lease = LEASE

    def queue(self, redis: Redis, name: str = NAME) -> LaneQueue:
        return LaneQueue(redis, name=name, lease=self.lease)

    def worker(self, queue: Any, functions: Any, **options: Any) -> LaneWorker:
        return LaneWorker(
            queue, functions, **{"sweep": 0.5, "grace": 2.0, **options.pop("lane_options", {})}, **options
        )

    async def take(self, queue: Any, who: str) -> Held | None:
        _, runs, _ = await queue.step(who, "", 1)
        if not runs:
            return None
        (run,) = runs
        run.job = queue.readable(run.text)
        if run.job is not None:
            run.attempts = run.job.attempts + 1
        return Held(run.job, run)

    hold = take

    async def lapse(self, queue: Any, held: Held) -> None:
        await asyncio.sleep(self.lease + 0.05)

    async def sweep(self, queue: Any) -> None:
        await queue.sweep()

    async def schedule(self, queue: Any) -> None:
        await queue.schedule()

    async def finish(self, queue: Any, held: Held, result: Any) -> bool:
        assert held.run is not None
        ending = Endings(queue, "w", outbox=True).done(held.run, Result(result))
        ((answer,), *_) = await queue.step("w", "", 0, [ending])
        return bool(answer == "settled")

    async def retry(self, queue: Any, held: Held) -> None:
        assert held.run is not None
        ending = Endings(queue, "w", outbox=True).retried(held.run, ValueError("failed"))
        ending.number = 0.0
        await queue.step("w", "", 0, [ending])


class Misplaced(Saq):
    """SAQ's worker on a lane's queue."""

    name = "misplaced"

    def queue(self, redis: Redis, name: str = NAME) -> LaneQueue:
        return LaneQueue(redis, name=name, lease=self.lease)


Engine = Saq | Lanes


def both(broken: type[InvariantBroken], reason: str, *, by_processes: bool = False) -> Any:
    """Run a test on both engines; SAQ's is to fail, with `broken` and nothing else.

    `by_processes`: SAQ's failure takes real processes, whose timing under load is not ours to promise; that half runs
    with `make faults`, ours always.
    """
    marks = [
        pytest.mark.xfail(strict=True, raises=broken, reason=reason),
        pytest.mark.filterwarnings("ignore"),
        *([pytest.mark.plain_saq] if by_processes else []),
    ]
    return pytest.mark.parametrize(
        "engine", [pytest.param(Saq(), marks=marks, id="saq"), pytest.param(Lanes(), id="lanes")]
    )


@contextlib.asynccontextmanager
async def running(*workers: Worker[Any]) -> AsyncIterator[None]:
    """The workers, in this process."""
    tasks = [asyncio.create_task(worker.start()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.event.set()
        await asyncio.wait(tasks, timeout=20)


async def until(condition: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    """The first true value of `condition`, or None after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if value := await condition():
            return value
        if time.monotonic() > deadline:
            return None
        await asyncio.sleep(0.02)


async def over(queue: Any, key: str, seconds: float) -> Job | None:
    """The job once it is over; None if it is not after `seconds`."""

    async def look() -> Job | None:
        job = await queue.job(key)
        return job if job and job.status in (Status.COMPLETE, Status.FAILED, Status.ABORTED) else None

    found: Job | None = await until(look, seconds)
    return found


class Note:
    """A file to which each start, end and sign of life of a job appends a line: what, process id, Unix time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, what: str) -> list[tuple[int, float]]:
        if not self.path.exists():
            return []
        rows = [line.split() for line in self.path.read_text("utf-8").splitlines()]
        return [(int(pid), float(at)) for said, pid, at in rows if said == what]

    def write(self, what: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{what} {os.getpid()} {time.time()}\n")

    async def wait(self, what: str, count: int = 1, seconds: float = 15.0) -> bool:
        async def look() -> bool:
            return len(self.lines(what)) >= count

        return bool(await until(look, seconds))


class WorkerProcess:
    """A worker in a process of its own, to be killed or stopped."""

    def __init__(self, engine: Engine, url: str, log: Path, **options: Any) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.agent.phoenix.worker_process", engine.name, url, json.dumps(options)],
                cwd=REPO,
                stdout=output,
                stderr=output,
            )

    async def ready(self) -> WorkerProcess:
        async def look() -> bool:
            assert self.process.poll() is None, self.log.read_text("utf-8")
            return "worker is ready" in self.log.read_text("utf-8", "replace")

        assert await until(look, 20), self.log.read_text("utf-8")
        return self

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers, and ends those that still run."""
    started: list[WorkerProcess] = []

    def start(engine: Engine, url: str, folder: Path, **options: Any) -> WorkerProcess:
        started.append(WorkerProcess(engine, url, folder / f"worker-{len(started)}.log", **options))
        return started[-1]

    try:
        yield start
    finally:
        for worker in started:
            worker.end()
