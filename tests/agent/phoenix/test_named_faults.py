"""Faults of a plain queue, each as the promise that it breaks: shown on SAQ's own queue, kept on a lane's.

Here the steps are driven by hand, so that the interleaving is the same each time; test_named_faults_processes.py kills
and stops real workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import datetime
from typing import Any

import pytest
from redis.asyncio import ConnectionPool, Redis, UnixDomainSocketConnection
from saq.job import CronJob, Job, Status

from agent.phoenix import keys
from agent.phoenix.worker import LaneWorker
from tests.agent.phoenix.engines import (
    NAME,
    BackoffOverflows,
    DoneJobUndone,
    Engine,
    Held,
    LostJob,
    OtherQueueBlocked,
    PageEmpty,
    RunsTwice,
    StaleResultRecorded,
    StuckForEver,
    SweepStopped,
    both,
    over,
    running,
    until,
)


async def enqueued(queue: Any, key: str = "work:1", **options: Any) -> Job:
    job = await queue.enqueue("work", key=key, **options)
    assert job is not None
    return job


async def orphan(engine: Engine, queue: Any, key: str = "work:1", **options: Any) -> Held:
    """A job whose worker died an hour ago, as far as anybody can tell."""
    await enqueued(queue, key, **options)
    held = await engine.hold(queue, "dead")
    assert held is not None
    await engine.lapse(queue, held)
    return held


@both(RunsTwice, "between BLMOVE and the ACTIVE write the job looks abandoned")
async def test_a_sweep_never_takes_a_job_that_was_just_handed_out(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    await enqueued(queue)
    assert await engine.take(queue, "a")
    await engine.sweep(queue)
    if await engine.take(queue, "b"):
        raise RunsTwice("two workers hold one job")


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it is carried out."""


class Mortal(UnixDomainSocketConnection):
    """A connection whose process is killed before one of its commands goes out."""

    commands_left = 0

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if Mortal.commands_left <= 0:
            raise Killed
        Mortal.commands_left -= 1
        await super().send_packed_command(command, check_health)


@both(LostJob, "abort() takes the job out of every list before retry() puts it back")
async def test_a_sweeper_that_dies_between_any_two_of_its_commands_loses_no_job(
    engine: Engine, redis: Redis, valkey_url: str
) -> None:
    for commands in range(12):
        await redis.flushall()
        queue = engine.queue(redis)
        await orphan(engine, queue, retries=9)
        pool = ConnectionPool(connection_class=Mortal, path=valkey_url.removeprefix("unix://"))
        Mortal.commands_left = 1_000
        client = Redis(connection_pool=pool)
        await client.ping()
        Mortal.commands_left = commands
        died = False
        try:
            await engine.sweep(engine.queue(client))
        except Killed:
            died = True
        Mortal.commands_left = 1_000
        await pool.disconnect()
        await engine.sweep(queue)
        if await engine.take(queue, "b") is None:
            raise LostJob(f"the sweeper died after {commands} commands, and the job was never found again")
        if not died:
            return
    raise AssertionError("the sweeper never came to its end")


@both(StaleResultRecorded, "finish is not fenced")
async def test_a_zombies_result_never_replaces_the_new_owners(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    zombie = await orphan(engine, queue, retries=9)
    await engine.sweep(queue)
    owner = await engine.hold(queue, "new")
    assert owner is not None
    await engine.finish(queue, owner, "new")
    await engine.finish(queue, zombie, "old")
    job = await queue.job("work:1")
    if job.result != "new":
        raise StaleResultRecorded(job.result)
    assert await redis.xlen(f"phoenix:outbox:{NAME}") == 1


@both(DoneJobUndone, "a stale finish leaves the id queued with a COMPLETE payload")
async def test_a_zombies_result_never_marks_a_queued_job_as_done(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    zombie = await orphan(engine, queue, retries=9)
    await engine.sweep(queue)
    await engine.finish(queue, zombie, "old")
    told = await queue.job("work:1")
    if await engine.take(queue, "new") and told.status is Status.COMPLETE:
        raise DoneJobUndone("a COMPLETE job was handed out")


@pytest.mark.parametrize("retries", [1, 9])
@both(DoneJobUndone, "sweep decides on a snapshot and waits before it acts on it")
async def test_a_job_that_ends_during_a_sweep_stays_as_it_ended(engine: Engine, redis: Redis, retries: int) -> None:
    queue = engine.queue(redis)
    held = await orphan(engine, queue, retries=retries)
    sweep = asyncio.create_task(engine.sweep(queue))
    await asyncio.sleep(0.1)
    accepted = await engine.finish(queue, held, "well")
    await sweep
    job = await queue.job("work:1")
    if accepted and job.status is not Status.COMPLETE:
        raise DoneJobUndone(f"its result was taken, and now it is {job.status}: {job.result}")
    again = await engine.hold(queue, "b")
    assert accepted != bool(again), "recorded, or still to be done"
    if again:
        assert await engine.finish(queue, again, "well"), "recorded once, by the new owner"


@both(RunsTwice, "sweep is serial, and its lock ends before it does")
async def test_eight_orphans_and_two_sweepers_run_each_job_once_more(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    for number in range(8):
        await enqueued(queue, f"work:{number}", retries=9)
    dead = [held for _ in range(8) if (held := await engine.hold(queue, "dead"))]
    await asyncio.gather(*(engine.lapse(queue, held) for held in dead))
    runs: list[str] = []
    swept = asyncio.Event()

    async def second_sweeper() -> None:
        await asyncio.sleep(0.5)
        await engine.sweep(queue)

    async def work() -> None:
        while not swept.is_set():
            await asyncio.sleep(0.01)
            if held := await engine.hold(queue, "b"):
                assert held.job is not None
                runs.append(held.job.key)
                await engine.finish(queue, held, "well")

    working = asyncio.create_task(work())
    await asyncio.gather(engine.sweep(queue), second_sweeper())
    await asyncio.sleep(0.3)
    swept.set()
    await working
    assert len(set(runs)) == 8
    if len(runs) > 8:
        raise RunsTwice(f"{len(runs)} runs of 8 jobs")


@both(RunsTwice, "a retry without a delay is pushed, and stays due as well")
async def test_a_scheduled_job_that_is_retried_at_once_runs_once_more(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    await enqueued(queue, scheduled=int(time.time()), retries=9)
    await engine.schedule(queue)
    held = await engine.hold(queue, "a")
    assert held is not None
    await engine.retry(queue, held)
    taken = 0
    for _ in range(3):
        await asyncio.sleep(0.5)  # due times are whole seconds
        await engine.schedule(queue)
        taken += await engine.hold(queue, "a") is not None
    assert taken >= 1
    if taken > 1:
        raise RunsTwice(f"one retry led to {taken} more runs")


@pytest.mark.parametrize("place", ["scheduled", "orphaned"])
@both(StuckForEver, "only a running worker turns ABORTING into ABORTED")
async def test_an_aborted_job_that_nobody_runs_is_aborted_for_good(engine: Engine, redis: Redis, place: str) -> None:
    queue = engine.queue(redis)
    if place == "scheduled":
        job = await enqueued(queue, scheduled=int(time.time()) + 3600)
    else:
        job = await enqueued(queue)
        assert await engine.hold(queue, "dead")
    await job.abort("enough")
    worker = engine.worker(queue, [("work", nothing)])
    async with running(worker):
        if (done := await over(queue, "work:1", 3.5)) is None:
            raise StuckForEver("it is `aborting` and nobody will ever end it")
    assert (done.status, done.error) == (Status.ABORTED, "enough")
    assert done.completed


@both(OtherQueueBlocked, "saq:abort:<key> does not say of which queue")
async def test_aborting_a_job_leaves_the_same_key_on_another_queue_alone(engine: Engine, redis: Redis) -> None:
    here, there = engine.queue(redis, "here"), engine.queue(redis, "there")
    job = await enqueued(here)
    await engine.hold(here, "a")
    await job.abort("enough")
    if await there.enqueue("work", key="work:1") is None:
        raise OtherQueueBlocked("the key cannot be enqueued on the other queue")


@both(SweepStopped, "sweep decodes what it finds, and ends at the first that it cannot")
async def test_one_undecodable_payload_does_not_keep_the_others_from_being_swept(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    await enqueued(queue, "work:bad")
    await redis.set(queue.job_id("work:bad"), b"\x80 not JSON")
    with contextlib.suppress(ValueError):
        await engine.take(queue, "dead")
    await orphan(engine, queue, "work:good", retries=9)
    with contextlib.suppress(ValueError):
        await engine.sweep(queue)
    found = [held for _ in range(3) if (held := await taken_anyhow(engine, queue))]
    if "work:good" not in [held.job.key for held in found if held.job]:
        raise SweepStopped("an orphan behind an undecodable payload was not found")


async def taken_anyhow(engine: Engine, queue: Any) -> Held | None:
    with contextlib.suppress(ValueError):
        return await engine.take(queue, "b")
    return None


@both(StuckForEver, "finish fails to encode the result, and so does the retry that follows")
async def test_a_result_that_is_not_json_is_set_aside_with_its_reason(engine: Engine, redis: Redis) -> None:
    async def work(context: Any) -> object:
        return object()

    queue = engine.queue(redis)
    await enqueued(queue, retries=3)
    async with running(engine.worker(queue, [("work", work)])):
        if (job := await over(queue, "work:1", 1.5)) is None:
            raise StuckForEver("it stays active")
    assert job.status is Status.FAILED
    assert "its result is not JSON" in (job.error or "")
    assert b"its result is not JSON" in (await redis.lrange(keys.quarantine_key("work"), 0, -1))[0]


@both(BackoffOverflows, "2.0 ** 1024 is no float")
async def test_a_job_can_fail_for_ever(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    await enqueued(queue, retries=10_000, retry_delay=2.0, retry_backoff=300)
    held = await engine.hold(queue, "a")
    assert held is not None
    assert held.job is not None
    held.job.attempts = 1_030
    if held.run is not None:
        held.run.attempts = 1_030
    try:
        await engine.retry(queue, held)
    except OverflowError as error:
        raise BackoffOverflows(str(error)) from None
    assert await queue.count("incomplete") == 1


async def nothing(context: Any) -> None:
    """Do nothing."""


async def schedule_at(monkeypatch: pytest.MonkeyPatch, worker: Any, at: int) -> None:
    """Let a worker look for its next ticks while its clock shows `at`."""

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(at, tz)

    async def frozen() -> int:
        return at

    if isinstance(worker, LaneWorker):
        monkeypatch.setattr(worker._ticks, "_now", frozen)
        await worker._ticks.enqueue()
    else:
        monkeypatch.setattr("saq.worker.datetime", Frozen)
        await worker.schedule()


@both(RunsTwice, "the key is free again as soon as the tick is done")
async def test_a_worker_whose_clock_lags_does_not_run_a_tick_again(
    engine: Engine, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    async def tidy(context: Any) -> None:
        runs.append(context["job"].scheduled)

    tidy.__qualname__ = "tidy"
    queue = engine.queue(redis)
    prompt, late = (
        engine.worker(engine.queue(redis), [], cron_jobs=[CronJob(tidy, cron="0 * * * *")]) for _ in range(2)
    )
    an_hour_ago = int(time.time()) - 3600 - 60  # so that the tick is due now
    await redis.setex(f"saq:{queue.name}:sweep", 60, 1)  # plain SAQ's first sweep takes the tick: another fault
    async with running(engine.worker(queue, [("tidy", tidy)])):
        await schedule_at(monkeypatch, prompt, an_hour_ago)

        async def settled() -> bool:
            return bool(runs) and await queue.count("incomplete") == 0

        assert await until(settled, 5)
        await schedule_at(monkeypatch, late, an_hour_ago)
        assert await until(settled, 5)
    if len(runs) > 1:
        raise RunsTwice(f"one tick ran {len(runs)} times")


@both(RunsTwice, "without a key, each look at the clock enqueues the next tick again")
async def test_a_tick_runs_once_with_unique_false_however_often_a_fleet_looks_at_the_clock(
    engine: Engine, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    async def tidy(context: Any) -> None:
        runs.append(context["job"].scheduled)

    tidy.__qualname__ = "tidy"
    crons = [CronJob(tidy, cron="0 * * * *", unique=False)]  # type: ignore[var-annotated]
    queue = engine.queue(redis)
    fleet = [engine.worker(engine.queue(redis), [], cron_jobs=crons) for _ in range(2)]
    for worker in fleet * 2:
        await schedule_at(monkeypatch, worker, int(time.time()) - 3600 - 60)  # so that the tick is due now
    async with running(engine.worker(queue, [("tidy", tidy)])):

        async def settled() -> bool:
            return bool(runs) and await queue.count("incomplete") == 0

        assert await until(settled, 5)
    assert len(set(runs)) == 1
    if len(runs) > 1:
        raise RunsTwice(f"one tick ran {len(runs)} times")


@both(PageEmpty, "the end of the page is limit-1, whatever the offset")
async def test_every_page_of_jobs_shows_its_jobs(engine: Engine, redis: Redis) -> None:
    queue = engine.queue(redis)
    for number in range(25):
        await enqueued(queue, f"work:{number:02}")
    shown = [
        [job["key"] for job in (await queue.info(jobs=True, offset=offset, limit=10))["jobs"]] for offset in (0, 10, 20)
    ]
    if [len(page) for page in shown] != [10, 10, 5]:
        raise PageEmpty(f"pages of {[len(page) for page in shown]} jobs, of 25")
    assert len({key for page in shown for key in page}) == 25


@both(OtherQueueBlocked, "its pattern is saq:job:<name>*")
async def test_a_queue_does_not_hear_another_whose_name_begins_alike(engine: Engine, redis: Redis) -> None:
    one, ten = engine.queue(redis, "lane1"), engine.queue(redis, "lane10")
    heard: list[str] = []
    one._pubsub.publish = lambda channel, message: heard.append(channel)
    await one._pubsub.subscribe("x")
    mine, other = await enqueued(one), await enqueued(ten)

    async def told() -> bool:
        await other.queue.notify(other)  # type: ignore[union-attr]
        await mine.queue.notify(mine)  # type: ignore[union-attr]
        return any(channel == mine.id for channel in heard)

    assert await until(told, 3)
    await one._pubsub.close()
    if other.id in heard:
        raise OtherQueueBlocked("lane1 is told about each job of lane10")
