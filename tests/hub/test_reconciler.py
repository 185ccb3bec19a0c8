from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from saq.job import Job
from saq.queue.redis import RedisQueue

from agent.cancelling import end
from agent.hub import reconciler as module
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, FILE_TASKS
from agent.hub.reconciler import Reconciler
from agent.lanes import lane_for_task, queue_name
from agent.phoenix.endings import Endings
from agent.phoenix.keys import FAR_FUTURE, active_key, entries_key, incomplete_key, queued_key
from agent.phoenix.outbox import ENTRY_FIELD, Entry, outbox_key
from agent.phoenix.queue import LaneQueue
from agent.producer import Producer, version_of
from agent.redis_client import connect
from agent.valkey import Valkey
from tests.hub.deliveries import AGENT, result, scan, seen

QUEUE = queue_name(AGENT, lane_for_task(ANALYSIS))


@pytest.fixture
def reconciler(catalogue: Catalogue, redis: Redis) -> Reconciler:
    return Reconciler(catalogue, Producer(redis), redis, check_after=0.0)


async def jobs(redis: Redis) -> list[str]:
    """Ids of all jobs that wait, across queues."""
    found: list[bytes] = []
    for service in FILE_TASKS:
        queue = queue_name(AGENT, lane_for_task(service))
        found += await redis.lrange(queued_key(queue), 0, -1)
    return sorted(job.decode().split(":", 3)[3] for job in set(found))


async def test_what_is_owed_is_queued_once_under_its_key(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis
) -> None:
    scan(catalogue, "/m", [{**seen("/m/a", size=7), "mtime_ns": 17}, seen("/m/b")])
    await reconciler.reconcile()
    await reconciler.reconcile()
    assert await jobs(redis) == sorted(f"{service}:{record}" for service in FILE_TASKS for record in (1, 2))
    job = await RedisQueue(redis, name=QUEUE).job(f"{ANALYSIS}:1")
    assert job is not None
    [version] = {result(ANALYSIS, 1, "/m/a").version}
    assert job.kwargs == {"version": version, "path": "/m/a", "size": 7, "mtime_ns": 17, "root": "/m"}


async def test_a_scan_is_queued(catalogue: Catalogue, reconciler: Reconciler, redis: Redis) -> None:
    [scan_id] = catalogue.request_scans(AGENT, ["/m"])
    await reconciler.reconcile()
    assert await jobs(redis) == [f"scan_directory:{scan_id}"]


async def test_killed_between_queueing_and_noting_it_changes_nothing(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis
) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    await reconciler.reconcile()
    debts = [debt for service in FILE_TASKS for debt in catalogue.unchecked(-60, 100) if debt.service == service]
    catalogue.forget(debts)
    await reconciler.reconcile()
    assert len(await jobs(redis)) == 3


async def test_a_server_that_lost_its_data_gets_everything_again(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis
) -> None:
    scan(catalogue, "/m", [seen(f"/m/{i}") for i in range(600)])
    await reconciler.reconcile()
    before = await jobs(redis)
    await redis.flushall()
    task = asyncio.create_task(reconciler.run())
    async with asyncio.timeout(20):
        while await jobs(redis) != before:
            await asyncio.sleep(0.05)
    assert await end([task])
    assert len(before) == 1800


async def test_a_result_on_its_way_is_not_a_lost_job(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis
) -> None:
    """The worker is done, the relay has not delivered yet: running it again would repeat an hour's work."""
    scan(catalogue, "/m", [seen("/m/a")])
    await reconciler.reconcile()
    await redis.delete(queued_key(QUEUE), incomplete_key(QUEUE), f"saq:job:{QUEUE}:{ANALYSIS}:1")
    entry = result(ANALYSIS, 1, "/m/a", bpm=120)
    await redis.xadd(outbox_key(QUEUE), {ENTRY_FIELD: entry.model_dump_json()})
    for _ in range(3):
        await reconciler.reconcile()
        assert f"{ANALYSIS}:1" not in await jobs(redis)
    catalogue.record(AGENT, [entry])
    await redis.delete(outbox_key(QUEUE))
    for _ in range(3):
        await reconciler.reconcile()
    assert f"{ANALYSIS}:1" not in await jobs(redis)


@pytest.mark.parametrize("place", ["queued", "scheduled", "running"])
async def test_a_job_that_somebody_aborted_is_not_queued_again(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis, place: str
) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    await reconciler.reconcile()
    queue, key = LaneQueue(redis, name=QUEUE, outbox=True), f"{ANALYSIS}:1"
    job = await queue.job(key)
    assert job is not None
    if place == "scheduled":
        await redis.zadd(incomplete_key(QUEUE), {job.id: 4e9})
    if place == "running":
        (run,) = (await queue.step("w", "", 1)).runs
        run.job, run.attempts = queue.readable(run.text), 1
        await job.abort("not wanted")
        await queue.step("w", "", 0, [Endings(queue, "w", outbox=True).aborted(run, "not wanted")])
    else:
        await job.abort("not wanted")
        await job.abort("twice is once")
    for _ in range(3):
        await reconciler.reconcile()
    ((_, fields),) = await redis.xrange(outbox_key(QUEUE))
    assert catalogue.record(AGENT, [Entry.model_validate_json(fields[ENTRY_FIELD])]) == [None]
    await redis.delete(outbox_key(QUEUE))
    for _ in range(3):
        await reconciler.reconcile()
    waiting = await queue.jobs([key])
    assert [found.status.value for found in waiting if found] == ["aborted"]
    (track,) = catalogue.tracks()
    assert [(problem["service"], problem["reason"]) for problem in track.problems] == [
        (ANALYSIS, "aborted: not wanted")
    ]


async def test_the_rest_of_a_large_debt_waits_in_the_catalogue(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 50)
    scan(catalogue, "/m", [seen(f"/m/{i}") for i in range(120)])
    for _ in range(3):
        await reconciler.reconcile()
    assert await redis.llen(queued_key(QUEUE)) == 50
    await redis.ltrim(queued_key(QUEUE), 20, -1)  # a worker took twenty
    await reconciler.reconcile()
    assert await redis.llen(queued_key(QUEUE)) == 50
    assert await redis.zcard(incomplete_key(QUEUE)) == 70


async def job_of(redis: Redis) -> Job:
    job = await LaneQueue(redis, name=QUEUE).job(f"{ANALYSIS}:1")
    assert job is not None
    return job


async def test_new_content_is_queued_as_soon_as_the_job_for_the_old_one_has_run(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis
) -> None:
    scan(catalogue, "/m", [seen("/m/a", "old")])
    await reconciler.reconcile()
    queue = LaneQueue(redis, name=QUEUE)
    [run] = (await queue.step("w", "analyze", 1)).runs
    before = await redis.get(run.id)
    scan(catalogue, "/m", [seen("/m/a", "new")])
    for _ in range(3):
        await reconciler.reconcile()
    assert await redis.get(run.id) == before, "what runs is left alone"
    assert await redis.llen(queued_key(QUEUE)) == 0
    await redis.delete(active_key(QUEUE), incomplete_key(QUEUE), run.id)
    catalogue.record(AGENT, [result(ANALYSIS, 1, "old")])
    await reconciler.reconcile()
    assert version_of(await job_of(redis)) == result(ANALYSIS, 1, "new").version
    assert await redis.lrange(queued_key(QUEUE), 0, -1) == [run.id.encode()]


@pytest.mark.parametrize("place", ["queued", "retry", "parked"])
async def test_a_job_of_another_version_that_waits_gives_way_at_once(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis, place: str
) -> None:
    """A profile that cannot be had fails for ever: its job must not hold up the one of the next profile."""
    scan(catalogue, "/m", [seen("/m/a", "old")])
    await reconciler.reconcile()
    job = await job_of(redis)
    due = {"queued": 0, "retry": int(time.time()) + 300, "parked": FAR_FUTURE}[place]
    if place != "queued":
        job.attempts, job.error = 9, "ToolMissing: none is installed"
        await redis.set(job.id, job.queue.serialize(job))
        await redis.zadd(incomplete_key(QUEUE), {job.id: due})
        await redis.lrem(queued_key(QUEUE), 0, job.id)
    scan(catalogue, "/m", [seen("/m/a", "new")])
    for _ in range(2):
        await reconciler.reconcile()
    now_ = await job_of(redis)
    assert (version_of(now_), now_.attempts, now_.error) == (result(ANALYSIS, 1, "new").version, 0, None)
    held = place == "parked"
    assert await redis.lrange(queued_key(QUEUE), 0, -1) == ([] if held else [job.id.encode()])
    assert await redis.zscore(incomplete_key(QUEUE), job.id) == (FAR_FUTURE if held else 0)
    if not held:
        assert len((await LaneQueue(redis, name=QUEUE).step("w", "analyze", 9)).runs) == 1


async def test_a_job_that_answers_for_a_streams_entry_keeps_its_arguments(
    catalogue: Catalogue, reconciler: Reconciler, redis: Redis
) -> None:
    scan(catalogue, "/m", [seen("/m/a", "old")])
    await reconciler.reconcile()
    await redis.hset(entries_key(ANALYSIS), "1", f"v 1-1 {QUEUE}")
    scan(catalogue, "/m", [seen("/m/a", "new")])
    await reconciler.reconcile()
    assert version_of(await job_of(redis)) == result(ANALYSIS, 1, "old").version


@contextlib.asynccontextmanager
async def running(reconciler: Reconciler) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reconciler.run())
    yield task
    assert await end([task])


async def test_the_loop_outlives_its_queue_server(catalogue: Catalogue, tmp_path: Path) -> None:
    server = Valkey(tmp_path / "valkey", fsync="no")
    await server.start()
    client = connect(server.url)
    reconciler = Reconciler(catalogue, Producer(client), client)
    try:
        async with running(reconciler) as task:
            await server.stop()
            await asyncio.to_thread(scan, catalogue, "/m", [seen("/m/a")])
            reconciler.poke()
            await asyncio.sleep(0.5)
            assert not task.done()
            await server.start()
            async with asyncio.timeout(20):
                while len(await _patient_jobs(client)) < 3:
                    await asyncio.sleep(0.1)
    finally:
        await client.aclose()
        await server.stop()


async def _patient_jobs(client: Redis) -> list[str]:
    with contextlib.suppress(Exception):
        return await jobs(client)
    return []
