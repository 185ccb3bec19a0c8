"""What a claim takes, what it passes over, and how much of it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from agent.phoenix import keys
from agent.phoenix.boot import take_over_queue
from agent.phoenix.endings import UNKNOWN_SERVICE, Endings, Result
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from tests.agent.phoenix.engines import running, until

NAME = "phaze-agent-test-io"


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return LaneQueue(redis, name=NAME)


async def put(queue: LaneQueue, count: int, function: str = "work", **values: Any) -> None:
    await asyncio.gather(*(queue.enqueue(function, key=f"{function}:{n}", **values) for n in range(count)))


@pytest.mark.parametrize("why", ["paused", "aborted", "vanished", "locked"])
async def test_what_may_not_be_taken_never_keeps_back_what_is_behind_it(
    queue: LaneQueue, redis: Redis, why: str
) -> None:
    await put(queue, 1500, "held")
    if why == "paused":
        await redis.sadd(keys.PAUSED, "held")
    for number in range(1500):
        job_id = queue.job_id(f"held:{number}")
        if why == "aborted":
            job = queue.readable(await redis.get(job_id))
            assert job is not None
            await queue.abort(job, "not wanted")
        elif why == "vanished":
            await redis.delete(job_id)
        elif why == "locked":
            lock = f'{{"owner": "x", "token": "1", "since": 0, "until": {4 * 10**12}}}'
            await redis.set(keys.lock_key("held", str(number)), lock)
    ran = asyncio.Event()

    async def work(_context: Any) -> None:
        ran.set()

    await queue.enqueue("work", key="work:behind")
    worker = LaneWorker(queue, [("work", work), ("held", work)], concurrency=2)
    async with running(worker), asyncio.timeout(20):
        await ran.wait()
    assert worker.settled == 1


async def test_a_claim_stops_at_its_bytes_and_says_that_there_is_more(queue: LaneQueue) -> None:
    await put(queue, 12, text="x" * 2**20)
    _, runs, more = await queue.step("w", "io", 12)
    assert 1 <= len(runs) <= 5
    assert more
    assert await queue.count("queued") == 12 - len(runs)


async def test_names_that_are_no_text_are_set_aside_and_hold_up_nobody(queue: LaneQueue, redis: Redis) -> None:
    odd = b"saq:job:" + NAME.encode() + b":work:caf\xe9"
    text = json.dumps({"function": "work", "key": "work:x", "queue": NAME, "kwargs": {}}).encode()
    for job_id, job in ((odd, text), (odd + b"2", text.replace(b'"work", "key"', b'"w\xe9rk", "key"'))):
        await redis.set(job_id, job)
        await redis.zadd(keys.incomplete_key(NAME), {job_id: 0})
        await redis.rpush(keys.queued_key(NAME), job_id)
    await put(queue, 5)
    ran: list[str] = []

    async def work(context: Any) -> None:
        ran.append(context["job"].key)

    worker = LaneWorker(queue, [("work", work)], concurrency=2)
    async with running(worker):
        assert await until(lambda: gone(queue), 20)
    assert sorted(ran) == [f"work:{n}" for n in range(5)]
    assert worker.stale == 0
    for service in ("work", UNKNOWN_SERVICE):  # the other task's name is no task's
        assert await redis.llen(keys.quarantine_key(service)) == 1


async def gone(queue: LaneQueue) -> bool:
    return await queue.count("incomplete") == 0


async def test_jobs_that_waited_for_a_circuit_come_before_those_that_came_after_them(queue: LaneQueue) -> None:
    await put(queue, 3)
    _, runs, _ = await queue.step("w", "io", 3)
    endings = Endings(queue, "w", outbox=False)
    await queue.step("w", "io", 0, [endings.parked(run, "store") for run in runs])
    await put(queue, 5, "later")
    assert await queue.unpark("store", 10) == 3
    _, again, _ = await queue.step("w", "io", 4)
    assert [run.id for run in again[:3]] == [run.id for run in runs], "in their old order"


async def test_jobs_that_waited_for_a_circuit_are_let_go_while_all_slots_are_busy(
    queue: LaneQueue, redis: Redis
) -> None:
    started = time.monotonic()

    async def work(_context: Any) -> None:
        await asyncio.sleep(0.05)

    await put(queue, 10)
    _, runs, _ = await queue.step("w", "io", 10)
    endings = Endings(queue, "w", outbox=False)
    await queue.step("w", "io", 0, [endings.parked(run, "store") for run in runs])
    await put(queue, 2_000, "later")
    worker = LaneWorker(queue, [("work", work), ("later", work)], concurrency=2, sweep=0.5)
    worker._may_take_over = lambda: asyncio.sleep(0, True)  # type: ignore[method-assign]  # the server is young
    async with running(worker):
        assert await until(lambda: none_parked(redis), 20)
        assert await until(lambda: settled(redis, 10), 20)
    assert await queue.count("queued") > 500, f"the backlog is still there after {time.monotonic() - started:.0f} s"


async def none_parked(redis: Redis) -> bool:
    return await redis.llen(keys.parked_key("store")) == 0


async def settled(redis: Redis, count: int) -> bool:
    found = await redis.exists(*(keys.marker_key("work", str(number)) for number in range(count)))
    return bool(found == count)


@pytest.mark.parametrize("place", ["queued", "incomplete"])
async def test_jobs_whose_list_somebody_deleted_are_found_again(queue: LaneQueue, redis: Redis, place: str) -> None:
    ran: list[str] = []

    async def work(context: Any) -> None:
        ran.append(context["job"].key)

    await put(queue, 700)
    _, runs, _ = await queue.step("w", "io", 3)  # and what runs is not started again
    await queue.enqueue("work", key="work:later", scheduled=int(time.time()) + 3600)
    await redis.delete(keys.queued_key(NAME) if place == "queued" else keys.incomplete_key(NAME))
    worker = LaneWorker(queue, [("work", work)], concurrency=50, sweep=0.2)
    worker._may_take_over = lambda: asyncio.sleep(0, True)  # type: ignore[method-assign]  # the server is young
    async with running(worker):
        assert await until(lambda: asyncio.sleep(0, len(ran) >= 697), 30)
        await asyncio.sleep(1)
    assert len(ran) == len(set(ran)) == 697
    assert not {run.id.removeprefix(queue.prefix) for run in runs} & set(ran)


async def test_one_job_that_a_long_queue_lost_is_found_and_no_other_is_queued_again(
    queue: LaneQueue, redis: Redis
) -> None:
    await put(queue, 6_000)
    await queue.step("w", "io", 10)
    lost = [queue.job_id(f"work:{n}") for n in (20, 5_998)]
    for job_id in (*lost, max(queue.job_id(f"work:{n}") for n in range(6_000))):
        await redis.lrem(keys.queued_key(NAME), 0, job_id)
    await queue.sweep()
    assert await queue.count("queued") == 5_990
    assert await redis.lpos(keys.queued_key(NAME), lost[1]) is not None
    assert len(set(await redis.lrange(keys.queued_key(NAME), 0, -1))) == 5_990
    assert await queue.upkeep(orphans=True, aborts=False) == (0, [], [])


async def test_what_is_over_does_not_come_back_because_it_is_still_mentioned(queue: LaneQueue, redis: Redis) -> None:
    await put(queue, 2)
    _, (first, second), _ = await queue.step("w", "io", 2)
    for run in (first, second):
        run.job = queue.deserialize(run.text)
    endings = Endings(queue, "w", outbox=False)
    await queue.step("w", "io", 0, [endings.done(first, Result("done")), endings.aborted(second, "not wanted")])
    await redis.rpush(keys.queued_key(NAME), first.id, second.id, first.id)
    assert (await queue.step("w", "io", 5)).runs == []


async def test_a_worker_does_not_take_over_what_it_still_runs_however_late_its_leases_seem(queue: LaneQueue) -> None:
    """As after a night in which the machine slept: every lease is over, and nobody is dead."""
    await put(queue, 400)
    queue.lease = 0.2
    runs = [run for _ in range(4) for run in (await queue.step("me", "io", 100)).runs]
    await asyncio.sleep(0.9)
    mine = [run.token for run in runs[1:]]
    assert (await queue.upkeep(orphans=True, aborts=False, known=mine))[1] == [runs[0].id], "but what it does not run"
    assert len((await queue.upkeep(orphans=True, aborts=False))[1]) == 399, "another one asks"


async def test_a_plain_worker_gets_nothing_before_ours_has_run_and_after_it_has_gone(
    queue: LaneQueue, redis: Redis
) -> None:
    await take_over_queue(queue)
    await put(queue, 1)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await redis.blmove(keys.queued_key(NAME), keys.active_key(NAME), 1, "LEFT", "RIGHT")
    assert await queue.count("queued") == 1
