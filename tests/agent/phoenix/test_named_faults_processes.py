"""Faults of a plain queue that take a real process: killed, stopped, blocked, asked to end, without a server."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.job import CronJob, Status

from agent.redis_client import connect
from agent.valkey import Valkey
from tests.agent.phoenix.engines import (
    AttemptUsed,
    DoneJobUndone,
    Engine,
    LostJob,
    NoGrace,
    Note,
    RunsTwice,
    Spins,
    StuckForEver,
    TakesWhileStopping,
    TickMissing,
    WorkerProcess,
    both,
    over,
    processes,
    running,
    until,
)

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    with processes() as starts:
        yield starts


@pytest.fixture
def note(tmp_path: Path) -> Note:
    return Note(tmp_path / "note")


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A server that the test may stop and start."""
    server = Valkey(tmp_path / "valkey")
    await server.start()
    yield server
    await server.stop()


async def killed_while_running(engine: Engine, url: str, redis: Redis, note: Note, start: Start, **options: Any) -> Any:
    queue = engine.queue(redis)
    first = await start(engine, url, note.path.parent).ready()
    await queue.enqueue("work", key="work:1", note=str(note.path), how="hang", **options)
    assert await note.wait("start")
    first.signal(signal.SIGKILL)
    await start(engine, url, note.path.parent).ready()
    return await over(queue, "work:1", 4.5)


@both(StuckForEver, "timeout=0 without heartbeats: nothing tells that its worker is dead", by_processes=True)
async def test_a_killed_workers_job_runs_again_whatever_its_timeout(
    engine: Engine, redis: Redis, valkey_url: str, note: Note, start: Start
) -> None:
    job = await killed_while_running(engine, valkey_url, redis, note, start, timeout=0)
    if job is None:
        raise StuckForEver("it stays active, and its key stays taken")
    assert (job.status, job.result) == (Status.COMPLETE, "later")


@both(LostJob, "retries=1: the run that the kill ended was its only one", by_processes=True)
async def test_a_killed_workers_job_runs_again_whatever_its_retries(
    engine: Engine, redis: Redis, valkey_url: str, note: Note, start: Start
) -> None:
    job = await killed_while_running(engine, valkey_url, redis, note, start, timeout=1, retries=1)
    assert job is not None
    if job.status is Status.ABORTED:
        raise LostJob(job.error)
    assert (job.status, job.attempts) == (Status.COMPLETE, 1), "no attempt was used"


@both(RunsTwice, "a blocked event loop cannot cancel its job, and the job runs on", by_processes=True)
async def test_a_job_that_blocks_its_loop_past_its_timeout_never_runs_beside_its_retry(
    engine: Engine, redis: Redis, valkey_url: str, note: Note, start: Start
) -> None:
    queue = engine.queue(redis)
    first = await start(engine, valkey_url, note.path.parent, concurrency=1).ready()
    await queue.enqueue("work", key="work:1", note=str(note.path), how="block", seconds=6, timeout=1, retries=9)
    assert await note.wait("start")
    await start(engine, valkey_url, note.path.parent, concurrency=1).ready()
    assert await note.wait("start", 2, 8)
    _, (_, again) = note.lines("start")[:2]
    await asyncio.sleep(0.5)
    if any(pid == first.process.pid and at > again for pid, at in note.lines("beat")):
        raise RunsTwice("it runs on beside its own retry")
    assert first.process.poll() == 75, "its process ended first"


@both(RunsTwice, "whoever is woken up retries a job that is no longer his", by_processes=True)
async def test_a_worker_that_was_stopped_and_goes_on_changes_nothing(
    engine: Engine, redis: Redis, valkey_url: str, note: Note, start: Start
) -> None:
    queue = engine.queue(redis)
    first = await start(engine, valkey_url, note.path.parent, concurrency=1).ready()
    await queue.enqueue("work", key="work:1", note=str(note.path), seconds=1.2, timeout=2, retries=9)
    assert await note.wait("start")
    first.signal(signal.SIGSTOP)
    await start(engine, valkey_url, note.path.parent, concurrency=1).ready()
    assert await note.wait("start", 2, 8)
    await asyncio.sleep(0.3)
    first.signal(signal.SIGCONT)
    await asyncio.sleep(3.5)
    job = await queue.job("work:1")
    if len(note.lines("start")) > 2:
        raise RunsTwice(f"{len(note.lines('start'))} runs")
    assert (job.status, job.result) == (Status.COMPLETE, "later"), "the new owner's"


@both(NoGrace, "no grace by default", by_processes=True)
async def test_sigterm_lets_a_running_job_end_by_default(
    engine: Engine, redis: Redis, valkey_url: str, note: Note, start: Start
) -> None:
    queue = engine.queue(redis)
    worker = await start(engine, valkey_url, note.path.parent).ready()
    await queue.enqueue("work", key="work:1", note=str(note.path), seconds=1.0, retries=9)
    assert await note.wait("start")
    worker.signal(signal.SIGTERM)
    stopping = time.monotonic()
    await asyncio.to_thread(worker.process.wait, 15)
    if not note.lines("end"):
        raise NoGrace("it was cancelled")
    assert time.monotonic() - stopping < 8.0, "and its grace of 10 s is not waited for"


@both(AttemptUsed, "a cancelled job uses an attempt", by_processes=True)
async def test_a_job_that_a_stop_cuts_short_uses_no_attempt(engine: Engine, redis: Redis) -> None:
    async def work(context: Any) -> None:
        await asyncio.sleep(60)

    queue = engine.queue(redis)
    await queue.enqueue("work", key="work:1", retries=9)
    async with running(engine.worker(queue, [("work", work)], lane_options={"grace": 0.1})):
        assert await until(lambda: status_is(queue, Status.ACTIVE), 5)
        await asyncio.sleep(0.1)
    job = await queue.job("work:1")
    assert await queue.count("queued") == 1
    if job.attempts:
        raise AttemptUsed("a stop of the worker counts as a failure of the job")


async def status_is(queue: Any, status: Status) -> bool:
    job = await queue.job("work:1")
    return bool(job and job.status is status)


@both(TakesWhileStopping, "idle slots are waited for as well, and go on taking", by_processes=True)
async def test_a_stopping_worker_takes_no_more_jobs(engine: Engine, redis: Redis) -> None:
    began: list[str] = []

    async def work(context: Any) -> None:
        began.append(context["job"].key)
        await asyncio.sleep(1.0)

    queue = engine.queue(redis)
    grace: dict[str, Any] = {"shutdown_grace_period_s": 2} if engine.name == "saq" else {}
    worker = engine.worker(queue, [("work", work)], concurrency=4, **grace)
    async with running(worker):
        await queue.enqueue("work", key="work:1", retries=9)
        assert await until(lambda: status_is(queue, Status.ACTIVE), 5)
        worker.event.set()
        await asyncio.sleep(0.2)
        await queue.enqueue("work", key="work:2", retries=9)
    if "work:2" in began:
        raise TakesWhileStopping("it took a job after it was told to stop")


@both(LostJob, "a cancel during before_process is swallowed", by_processes=True)
async def test_a_stop_before_the_job_has_begun_puts_it_back(engine: Engine, redis: Redis) -> None:
    async def before(context: Any) -> None:
        await asyncio.sleep(60)

    async def work(context: Any) -> None:
        """Never reached."""

    queue = engine.queue(redis)
    await queue.enqueue("work", key="work:1", retries=9)
    worker = engine.worker(queue, [("work", work)], before_process=before, lane_options={"grace": 0.1})
    async with running(worker):
        assert await until(lambda: status_is(queue, Status.ACTIVE), 5)
        await asyncio.sleep(0.1)
    if await queue.count("queued") != 1:
        raise LostJob("it stays ACTIVE and is in no queue")


@both(TickMissing, "both have the key cron:<function>", by_processes=True)
async def test_two_cron_jobs_on_one_function_both_run(engine: Engine, redis: Redis) -> None:
    ran: list[int] = []

    async def tidy(context: Any, *, room: int) -> None:
        ran.append(room)

    tidy.__qualname__ = "tidy"
    crons = [CronJob(tidy, cron="* * * * * *", kwargs={"room": room}) for room in (1, 2)]  # type: ignore[var-annotated]
    queue = engine.queue(redis)
    async with running(engine.worker(queue, [], cron_jobs=crons)):
        await asyncio.sleep(3.5)
    assert 1 in ran
    if 2 not in ran:
        raise TickMissing("the second one never runs")


@both(Spins, "the dequeue loop asks again at once", by_processes=True)
async def test_a_worker_without_a_server_rests_and_complains_once_a_minute(
    engine: Engine, own_server: Valkey, note: Note, start: Start
) -> None:
    worker = await start(engine, own_server.url, note.path.parent).ready()
    await asyncio.sleep(0.5)
    await own_server.stop()
    await asyncio.sleep(0.5)
    before = worker.cpu()
    await asyncio.sleep(5)
    used = (worker.cpu() - before) / 5
    if used > 0.25:
        raise Spins(f"{used:.0%} of a processor")
    assert used < 0.02, f"{used:.1%} of a processor"
    assert worker.log.read_text("utf-8").count("queue.unreachable") == 1
    await own_server.start()
    redis = connect(own_server.url)
    queue = engine.queue(redis)
    await queue.enqueue("work", key="work:1", note=str(note.path))
    assert await over(queue, "work:1", 12), "it goes on as soon as the server is back"
    await redis.aclose()


@both(DoneJobUndone, "the finish is lost, and the sweep aborts or retries what is done", by_processes=True)
async def test_a_job_that_ends_while_the_server_is_away_is_recorded_and_runs_once(
    engine: Engine, own_server: Valkey, note: Note, start: Start
) -> None:
    worker = await start(engine, own_server.url, note.path.parent).ready()
    redis = connect(own_server.url)
    queue = engine.queue(redis)
    await queue.enqueue("work", key="work:1", note=str(note.path), seconds=1.0, timeout=2, retries=1)
    assert await note.wait("start")
    await own_server.stop()
    if not await note.wait("end"):
        raise DoneJobUndone("it never came to its end")
    await asyncio.sleep(2.0)  # longer than a client tries a command again by itself
    await own_server.start()
    job = await over(queue, "work:1", 8)
    await redis.aclose()
    assert worker.process.poll() is None
    if job is None or job.status is not Status.COMPLETE or len(note.lines("start")) > 1:
        raise DoneJobUndone(f"it was done, and now it is {job and job.status}")
