"""A slot is free again whatever becomes of what ran in it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as NoReply
from saq.job import Status

from agent.phoenix import keys
from agent.phoenix.endings import LONGEST_TTL
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from tests.agent.phoenix.engines import running, until

NAME = "phaze-agent-test-io"
ODD_TTLS = [None, "a week", 600.0, 1e30, float("inf"), float("nan"), 10**18, sys.maxsize]


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return LaneQueue(redis, name=NAME)


async def as_text(queue: LaneQueue, key: str, **fields: Any) -> None:
    """A job as a producer of another kind might write it."""
    job = {"function": "work", "key": key, "queue": NAME, "kwargs": {}, **fields}
    job_id = queue.job_id(key)
    await queue.redis.set(job_id, json.dumps(job))
    await queue.redis.zadd(keys.incomplete_key(NAME), {job_id: 0})
    await queue.redis.rpush(keys.queued_key(NAME), job_id)


@pytest.mark.parametrize("prefix", ["work:", ""], ids=["of a record", "of its own"])
@pytest.mark.parametrize(
    "fields",
    [
        *({"ttl": ttl} for ttl in ODD_TTLS), {"queued": "today"}, {"function": "unknown"},
        {"function": "unknown", "ttl": None}, {"function": "unknown", "queued": "today"}, {"attempts": "many"},
    ],
    ids=str,
)  # fmt: skip
async def test_odd_fields_of_a_job_cost_no_slot_and_its_work_is_not_repeated(
    queue: LaneQueue, fields: dict[str, Any], prefix: str
) -> None:
    ran: list[str] = []

    async def work(context: Any) -> str:
        ran.append(context["job"].key)
        return "done"

    for number in range(3):
        await as_text(queue, f"{prefix}odd{number}", **fields)
    for number in range(3):
        await queue.enqueue("work", key=f"work:good{number}")
    worker = LaneWorker(queue, [("work", work)], concurrency=2, outbox=True)
    async with running(worker):
        assert await until(lambda: nothing_unsettled(queue), 15)
        assert worker.room() == 2
    assert {f"work:good{number}" for number in range(3)} <= set(ran)
    assert len(ran) == len(set(ran))


@pytest.mark.parametrize("due", [0, keys.FAR_FUTURE], ids=["queued", "scheduled"])
@pytest.mark.parametrize("ttl", [0, -1, 600.5, *ODD_TTLS], ids=str)
async def test_a_job_with_an_odd_time_to_live_is_aborted_where_it_waits(
    queue: LaneQueue, redis: Redis, ttl: Any, due: float
) -> None:
    await as_text(queue, "1", ttl=ttl)
    await redis.zadd(keys.incomplete_key(NAME), {queue.job_id("1"): due})
    job = await queue.job("1")
    assert job is not None
    await job.abort("not wanted")
    assert await nothing_unsettled(queue)
    assert (await queue.step("w", "", 5)).runs == []
    assert 0 < await redis.pttl(job.id) <= LONGEST_TTL * 1000, "what was ended by hand is seen for a while"


async def test_jobs_with_odd_times_to_live_are_aborted_while_they_run(queue: LaneQueue, redis: Redis) -> None:
    ttls = [0, -1, 600.5, *ODD_TTLS]
    begun: list[str] = []

    async def work(context: Any) -> None:
        begun.append(context["job"].key)
        await asyncio.sleep(30)

    for number, ttl in enumerate(ttls):
        await as_text(queue, str(number), ttl=ttl)
    async with running(LaneWorker(queue, [("work", work)], concurrency=len(ttls))):
        assert await until(lambda: asyncio.sleep(0, len(begun) == len(ttls)), 10)
        for job in await queue.jobs(begun):
            assert job is not None
            await job.abort("not wanted")
        assert await until(lambda: nothing_unsettled(queue), 15)
    lives = [await redis.pttl(queue.job_id(str(number))) for number in range(len(ttls))]
    assert lives[:2] == [-1, -2], "0 is for ever, and -1 not at all"
    assert all(0 < life <= LONGEST_TTL * 1000 for life in lives[2:])


@pytest.mark.parametrize("key", [keys.deaths_key(NAME), keys.entries_key("work")])
async def test_an_abort_that_cannot_be_written_leaves_the_job_in_its_place(
    queue: LaneQueue, redis: Redis, key: str
) -> None:
    await as_text(queue, "work:1")
    await redis.set(key, "somebody else's")
    job = await queue.job("work:1")
    assert job is not None
    with pytest.raises(ResponseError, match="is a string, not a hash; rename it"):
        await job.abort("not wanted")
    await redis.delete(key)
    assert await queue.count("incomplete") == 1
    assert [run.id for run in (await queue.step("w", "", 5)).runs] == [job.id]


@pytest.mark.parametrize(
    ("key", "kwargs", "reason"),
    [
        ("work:" + "x" * 1025, {}, "record id"),
        ("work:a\0b", {}, "record id"),
        ("work:1", {"version": "v" * 1025}, "version"),
        ("work:1", {"version": "\0"}, "version"),
        ("work:1", {"size": 16 * 2**20}, "report it in parts"),
    ],
    ids=["long id", "NUL id", "long version", "NUL version", "large result"],
)
async def test_what_the_catalogue_cannot_keep_is_set_aside_with_the_reason(
    queue: LaneQueue, redis: Redis, key: str, kwargs: dict[str, Any], reason: str
) -> None:
    async def work(_context: Any, *, version: str = "1", size: int = 0) -> str:
        return "x" * size

    await as_text(queue, key, kwargs=kwargs)
    async with running(LaneWorker(queue, [("work", work)], concurrency=1, outbox=True)):
        assert await until(lambda: nothing_unsettled(queue), 15)
    (letter,) = await redis.lrange(keys.quarantine_key("work"), 0, -1)
    assert reason in json.loads(letter)["error"]
    assert not await redis.keys("processed:*")


async def nothing_unsettled(queue: LaneQueue) -> bool:
    return await queue.count("incomplete") == 0


@pytest.mark.parametrize(
    "error",
    [BaseExceptionGroup("of both", [asyncio.CancelledError(), ValueError()]), GeneratorExit(), SystemExit(3),
     KeyboardInterrupt()],
    ids=repr,
)  # fmt: skip
async def test_whatever_a_body_raises_is_its_own_failure(queue: LaneQueue, error: BaseException) -> None:
    async def work(context: Any) -> str:
        if context["job"].key == "work:0" and not context["job"].error:
            raise error
        return "done"

    jobs = [await queue.enqueue("work", key=f"work:{number}") for number in range(3)]
    worker = LaneWorker(queue, [("work", work)], concurrency=1)
    async with running(worker):
        for job in jobs:
            assert job is not None
            await job.refresh(until_complete=20)
            assert job.status is Status.COMPLETE
    assert jobs[0] is not None
    assert jobs[0].attempts == 2


async def test_an_abort_while_a_hook_runs_costs_no_slot(queue: LaneQueue) -> None:
    hooked = asyncio.Event()

    async def slow_hook(_context: Any) -> None:
        hooked.set()
        await asyncio.sleep(3)

    async def work(_context: Any) -> str:
        return "done"

    worker = LaneWorker(queue, [("work", work)], concurrency=1, after_process=slow_hook)
    first = await queue.enqueue("work", key="work:1")
    second = await queue.enqueue("work", key="work:2")
    assert first is not None
    assert second is not None
    async with running(worker):
        await asyncio.wait_for(hooked.wait(), 10)
        await first.abort("not wanted")
        await second.refresh(until_complete=20)
        await first.refresh()
        assert (first.status, second.status) == (Status.COMPLETE, Status.COMPLETE)
        assert worker.room() == 1


async def test_what_is_claimed_as_the_worker_stops_is_handed_back(queue: LaneQueue, redis: Redis) -> None:
    async def work(_context: Any) -> None:
        await asyncio.sleep(30)

    for delay in (0, 0.0005, 0.001, 0.002, 0.003) * 4:
        worker = LaneWorker(queue, [("work", work)], concurrency=4, grace=0.0)
        async with running(worker):
            await asyncio.sleep(0.05)
            await queue.enqueue("work", key="work:1")
            await asyncio.sleep(delay)
        assert await queue.count("active") == 0
        assert await queue.count("queued") == 1
        assert await redis.hlen(keys.deaths_key(NAME)) == 0
        await redis.flushdb()


async def test_a_run_that_was_taken_over_unheard_is_ended_when_its_job_comes_back(queue: LaneQueue) -> None:
    """After a partition a worker may claim a job whose body it still runs."""
    bodies: list[str] = []
    ended: list[str] = []

    async def work(context: Any) -> str:
        bodies.append(context["run"].token)
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            ended.append(context["run"].token)
            raise
        return "done"

    worker = LaneWorker(queue, [("work", work)], concurrency=2)
    job = await queue.enqueue("work", key="work:1")
    assert job is not None
    async with running(worker):
        assert await until(lambda: asyncio.sleep(0, len(bodies) == 1), 10)
        await queue.unheard(worker.id, [])  # as another worker's sweep would take it from us
        worker._pump.wake()
        await job.refresh(until_complete=20)
        assert worker.room() == 2
    assert job.status is Status.COMPLETE
    assert ended == bodies[:1]
    assert len(bodies) == 2


async def test_one_step_of_the_upkeep_that_fails_keeps_no_other_from_being_done(queue: LaneQueue, redis: Redis) -> None:
    async def work(_context: Any) -> None:
        await asyncio.sleep(30)

    await redis.set(keys.HELD_CIRCUITS, "somebody else's")
    await redis.sadd(keys.parked_index_key(NAME), "store")
    worker = LaneWorker(queue, [("work", work)], concurrency=1, sweep=0.2)
    worker._may_take_over = lambda: asyncio.sleep(0, True)  # type: ignore[method-assign]  # the server is young
    job = await queue.enqueue("work", key="work:1", timeout=60)
    assert job is not None
    async with running(worker):
        async with asyncio.timeout(10):
            while job.status is not Status.ACTIVE:
                await asyncio.sleep(0.05)
                await job.refresh()
        await asyncio.sleep(1.5)
        await job.abort("not wanted")
        await job.refresh(until_complete=10)
    assert job.status is Status.ABORTED


async def test_what_is_too_much_for_the_line_goes_in_smaller_pieces(
    queue: LaneQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, sizes = queue.step, []

    async def thin(worker: str, lane: str, n: int, endings: Any = (), *, over: Any = None) -> Any:
        sizes.append(max(n, len(endings)))
        if max(n, len(endings)) > 3 and over.timeout < 15:
            raise NoReply("it takes too long")
        return await right(worker, lane, n, endings, over=over)

    async def work(_context: Any) -> str:
        return "done"

    monkeypatch.setattr(queue, "step", thin)
    for number in range(40):
        await queue.enqueue("work", key=f"work:{number}")
    worker = LaneWorker(queue, [("work", work)], concurrency=32)
    async with running(worker):
        assert await until(lambda: nothing_unsettled(queue), 60)
    assert sizes[0] == 16
    assert min(sizes) <= 4, "it was halved until it got through"
