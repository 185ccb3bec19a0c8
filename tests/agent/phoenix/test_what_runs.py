"""What runs stays its worker's: beside another queue's orphan, a key set free, a clock that leaps, one bad entry."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError
from saq.job import Status
from saq.queue.redis import RedisQueue

from agent.phoenix import keys
from agent.phoenix.clock import Leaps
from agent.phoenix.endings import Endings, Result
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.runs import Ending, Run
from agent.phoenix.scripts import part
from agent.redis_client import connect
from pipelines.context import Policy, TaskContext, task
from pipelines.errors import LeaseLost
from pipelines.payload import Payload, TaskResult
from tests.agent.phoenix.engines import NAME, Lanes, over, running, until
from tests.agent.phoenix.surrounded import surrounding_worker
from tests.servers import Local

lanes = Lanes()

LEAPING_CLOCK = part("prelude").replace(
    "return time[1] * 1000000 + time[2]",
    "return time[1] * 1000000 + time[2] + tonumber(redis.call('GET', 'test:leap') or 0)",
)


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return lanes.queue(redis)


async def take(queue: LaneQueue, owner: str = "w") -> Run | None:
    _, runs, _ = await queue.step(owner, "", 1)
    for run in runs:
        run.job, run.attempts = queue.readable(run.text), 1
    return runs[0] if runs else None


async def end(queue: LaneQueue, ending: Ending) -> str:
    return (await queue.step("w", "", 0, [ending])).answers[0]


async def renew(queue: LaneQueue, *runs: Run) -> list[bytes]:
    arguments = [part for run in runs for part in (*run.names, run.token)]
    lost: list[bytes] = await queue.scripts("renew", queue.keys, [15_000, *arguments])
    return lost


def recorded(queue: LaneQueue, entries: Any) -> list[str]:
    return [json.loads(fields[b"entry"])["version"] for _, fields in entries]


async def test_aborting_an_orphan_leaves_the_run_of_its_record_on_another_queue_alone(
    queue: LaneQueue, redis: Redis
) -> None:
    await queue.enqueue("work", key="work:1")
    assert await take(queue, "dead")
    await asyncio.sleep(queue.lease + 0.05)
    lane = LaneQueue(redis, name=f"{NAME}-meta")
    await lane.enqueue("work", key="work:1")
    run = await take(lane, "alive")
    assert run is not None
    orphan = await queue.job("work:1")
    assert orphan is not None
    await orphan.abort("not wanted here")
    assert orphan.status is Status.ABORTED
    await lane.enqueue("work", key="again:1")  # the same record, under another key
    assert await take(lane, "third") is None
    assert await end(lane, Endings(lane, "alive", outbox=True).done(run, Result("well"))) == "settled"
    assert await redis.xlen(outbox_key(lane.name)) == 1


async def struck_off(queue: LaneQueue, plain: RedisQueue) -> Run:
    """A run whose key a plain abort has set free."""
    await queue.sweep()  # as a worker does
    job = await plain.enqueue("work", key="work:1", version="v1")
    assert job is not None
    run = await take(queue)
    assert run is not None
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await job.abort("not wanted")
    await queue.redis.delete(job.abort_id)  # its few seconds are over
    return run


async def test_after_a_plain_abort_the_key_of_what_runs_is_taken_again_with_the_next_renewal(
    queue: LaneQueue, redis: Redis
) -> None:
    plain = RedisQueue(redis, name=queue.name)
    run = await struck_off(queue, plain)
    assert await renew(queue, run) == []
    assert await plain.enqueue("work", key="work:1", version="v2") is None
    assert await end(queue, Endings(queue, "w", outbox=True).done(run, Result("well", version="v1"))) == "settled"
    assert await plain.enqueue("work", key="work:1", version="v2") is not None


FIRST_ENDS: dict[str, Callable[[Endings, Run], Ending]] = {
    "done": lambda endings, run: endings.done(run, Result("well", version="v1")),
    "aborted": lambda endings, run: endings.aborted(run, "enough"),
    "retried": lambda endings, run: endings.retried(run, ValueError("failed")),
    "released": lambda endings, run: endings.released(run),
    "parked": lambda endings, run: endings.parked(run, "store"),
}


@pytest.mark.parametrize("first", [*FIRST_ENDS, "dies", "was unheard of"])
@pytest.mark.parametrize("looked_at", [False, True], ids=["", "looked at before"])
async def test_a_job_that_a_plain_abort_let_in_beside_its_forerunner_runs_after_it(
    queue: LaneQueue, redis: Redis, first: str, looked_at: bool
) -> None:
    plain = RedisQueue(redis, name=queue.name)
    run = await struck_off(queue, plain)
    assert await plain.enqueue("work", key="work:1", version="v2") is not None, "no renewal came between"
    assert not await queue.touch(run, progress=0.5), "whose text is the other's now"
    if looked_at:
        assert await take(queue, "another") is None, "as long as the first one runs"
    if first == "dies":
        await asyncio.sleep(queue.lease + 0.05)
        assert await queue.sweep() == []
    elif first == "was unheard of":
        assert await queue.unheard("w", []) == 0
    else:
        assert await end(queue, FIRST_ENDS[first](Endings(queue, "w", outbox=True), run)) == "settled"
    told = ["v1"] if first in ("done", "aborted") else []
    assert recorded(queue, await redis.xrange(outbox_key(NAME))) == told
    second: Run | None = None
    async with asyncio.timeout(20):
        while second is None:
            await queue.upkeep(orphans=False, aborts=False)
            second = await take(queue)
            await asyncio.sleep(0.05)
    assert second.job is not None
    assert (second.job.kwargs, second.takeovers) == ({"version": "v2"}, 0)
    assert await end(queue, Endings(queue, "w", outbox=True).done(second, Result("well", version="v2"))) == "settled"
    assert recorded(queue, await redis.xrange(outbox_key(NAME)))[-1] == "v2"
    assert await take(queue) is None
    assert (await queue.count("incomplete"), await queue.count("active")) == (0, 0)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_clock_that_leaps_takes_no_job_from_the_worker_that_runs_it(
    queue: LaneQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """As after an hour's sleep of the machine: leases were over long ago, and the timers that renew stood still."""
    starts = Counter[str]()
    right, leapt = redis.info, 0

    async def work(context: Any) -> None:
        starts[context["job"].key] += 1
        await asyncio.sleep(30)

    async def info(section: str) -> dict[str, Any]:
        said = await right(section)
        return said | {"server_time_usec": said["server_time_usec"] + leapt, "uptime_in_seconds": 10**6}

    monkeypatch.setattr(redis, "info", info)
    queue.scripts.prelude = LEAPING_CLOCK
    queue.lease = 6.0  # renewed each 2 s, and looked for twenty times in between
    for number in range(10):
        await queue.enqueue("work", key=f"work:{number}", timeout=0)
    options: dict[str, Any] = {"concurrency": 5 * (3 - workers), "lane_options": {"sweep": 0.1, "grace": 0.0}}
    async with running(*(lanes.worker(queue, [("work", work)], **options) for _ in range(workers))):
        assert await until(lambda: asyncio.sleep(0, len(starts) == 10), 10)
        await asyncio.sleep(1.5)  # each has looked once
        for _ in range(3):
            leapt += 3_600_000_000
            await redis.set("test:leap", leapt)
            await asyncio.sleep(2.5)
    assert set(starts.values()) == {1}
    assert await redis.hget(keys.counters_key(NAME), "takeovers") is None


def test_after_a_leap_of_the_servers_clock_one_waits_and_not_for_a_slow_answer() -> None:
    leaps, now = Leaps(most=5.0, wait=0.2), time.monotonic
    assert leaps.settled(now() + 100)
    assert leaps.settled(now() + 104), "so much passes, more or less, until an answer is here"
    assert leaps.settled(now() + 50), "set back, it ends no lease too early"
    assert not leaps.settled(now() + 60)
    assert not leaps.settled(now() + 60)
    time.sleep(0.25)
    assert leaps.settled(now() + 60)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a clock that counts sleep")
async def test_what_slept_past_its_lease_is_told_so_before_it_writes_anything(
    queue: LaneQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.get_running_loop().create_future()
    real, slept = time.clock_gettime, 0.0

    @task(Policy(timeout=lambda payload: 60.0, outside_effects=True))
    async def push(ctx: TaskContext, payload: Payload) -> TaskResult:
        nonlocal slept
        await ctx.check()
        slept = 3600.0
        try:
            await ctx.check()
        except LeaseLost as error:
            told.set_result(str(error))
        return TaskResult()

    monkeypatch.setattr(time, "clock_gettime", lambda c: real(c) + (slept if c == time.CLOCK_BOOTTIME else 0.0))
    await queue.enqueue("push", key="push:1", version="v")
    async with running(surrounding_worker(queue, {"push": push})):
        assert "write nothing more" in await asyncio.wait_for(told, 10)


async def test_a_run_from_before_the_servers_start_died_of_no_job(start_server: Callable[..., Local]) -> None:
    """As when a machine loses its power again and again, with one worker, and one long job that is innocent."""
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    async with connect(server.url) as client, connect(server.url) as watching:
        await power_cuts(server, lanes.queue(client), lanes.queue(watching))
        assert await client.hget(keys.deaths_key(NAME), lanes.queue(client).job_id("work:1")) == b"2:0"


async def power_cuts(server: Local, queue: LaneQueue, watched: LaneQueue) -> None:
    await queue.enqueue("work", key="work:1")
    await queue.redis.sadd(keys.PAUSED, "watched")
    watcher = lanes.worker(watched, [], concurrency=1, lane_options={"lane": "watched", "sweep": 0.2})
    async with running(watcher):
        for number in range(2):
            run = await take(queue, f"dead-{number}")
            assert run is not None
            assert await queue.alone(run)
            server.kill()
            server.start()
            assert await until(lambda: waits(queue), 20)


async def waits(queue: LaneQueue) -> bool:
    try:
        return await queue.count("queued") == 1
    except (RedisError, OSError):
        return False  # it loads its data


async def test_an_id_that_is_no_text_keeps_no_lease_from_being_renewed(queue: LaneQueue, redis: Redis) -> None:
    began: list[bytes] = []

    async def work(context: Any) -> None:
        began.append(context["run"].names[0])
        await asyncio.sleep(3 * queue.lease)

    odd = f"saq:job:{NAME}:".encode() + b"\xff:1"
    await redis.set(odd, json.dumps({"function": "work", "key": "x:1", "queue": NAME, "timeout": 0}))
    await redis.zadd(keys.incomplete_key(NAME), {odd: 0})
    await redis.rpush(keys.queued_key(NAME), odd)
    await queue.enqueue("work", key="work:good", timeout=0)
    worker, another = (lanes.worker(lanes.queue(redis), [("work", work)], concurrency=2) for _ in range(2))
    for each in (worker, another):
        each._may_take_over = lambda: asyncio.sleep(0, True)  # type: ignore[method-assign]  # the server is young
    async with running(worker, another):
        assert await over(queue, "work:good", 20)
        assert await until(lambda: none_unsettled(queue), 20)
    assert sorted(began) == sorted([odd, queue.job_id("work:good").encode()])


async def none_unsettled(queue: LaneQueue) -> bool:
    return await queue.count("incomplete") == 0


@pytest.mark.parametrize("bad", ["text", "lock"])
async def test_a_key_of_another_type_keeps_no_other_job_from_being_renewed_or_taken_over(
    queue: LaneQueue, redis: Redis, bad: str
) -> None:
    for number in range(4):
        await queue.enqueue("work", key=f"work:{number}")
    runs = [run for owner in "ab" for run in (await queue.step(owner, "", 2)).runs]
    key = runs[0].id if bad == "text" else keys.lock_key("work", "0")
    await redis.delete(key)
    await redis.rpush(key, "somebody else's")
    lost = [runs[0].names[0]] if bad == "lock" else []
    assert await renew(queue, *runs) == lost
    for run in runs:
        await redis.zadd(keys.active_key(NAME), {run.id: 1})
        lock = await redis.getset(keys.lock_key("work", run.record), "") if run is not runs[0] else None
        if lock:
            text = json.loads(lock) | {"until": 1}
            await redis.set(keys.lock_key("work", run.record), json.dumps(text))
    taken = set(await queue.sweep())
    assert taken >= {run.id for run in runs[1:]}
    assert await queue.count("active") == 0


async def test_a_suspect_whose_text_is_gone_keeps_no_other_from_its_turn(queue: LaneQueue, redis: Redis) -> None:
    for number in range(2):
        await queue.enqueue("work", key=f"work:{number}")
        await redis.hset(keys.deaths_key(NAME), queue.job_id(f"work:{number}"), "4:0")
    first = await take(queue)
    assert first is not None
    await redis.delete(first.id)
    await asyncio.sleep(queue.lease + 0.05)
    await queue.sweep()
    assert not await redis.exists(keys.lock_key("work", first.record))
    second = await take(queue)
    assert second is not None
    assert second.record != first.record


async def test_an_end_of_a_run_whose_marker_is_another_type_is_stale_and_spoils_no_other(
    queue: LaneQueue, redis: Redis
) -> None:
    endings = Endings(queue, "w", outbox=True)
    for number in range(2):
        await queue.enqueue("work", key=f"work:{number}")
    lost, mine = await take(queue), await take(queue)
    assert lost is not None
    assert mine is not None
    lost.token = "1"
    await redis.rpush(keys.marker_key("work", lost.record), "somebody else's")
    answers, *_ = await queue.step("w", "", 0, [endings.done(lost, Result("late")), endings.done(mine, Result("well"))])
    assert answers == ["stale", "settled"]


def test_the_leaping_clock_is_the_only_difference() -> None:
    assert part("prelude") != LEAPING_CLOCK
