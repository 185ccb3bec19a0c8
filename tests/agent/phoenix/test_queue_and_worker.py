"""What a lane's queue and worker promise to those who use SAQ's API, the dashboard or plain SAQ beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from saq.job import CronJob, Status
from saq.queue.base import JobError
from saq.queue.redis import RedisQueue

from agent.phoenix import keys
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import CircuitHeld, Endings, Result
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import ForeignWorker, JobIsRunning, LaneQueue
from agent.phoenix.scripts import sha
from pipelines.errors import RecordNotFoundError
from tests.agent.phoenix.engines import NAME, Lanes, Misplaced, Note, Saq, over, processes, running, until

lanes = Lanes()


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return lanes.queue(redis)


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
async def working(queue: LaneQueue, ran: list[str]) -> AsyncIterator[None]:
    """A worker whose task `work` does as it is told."""

    async def work(context: Any, *, do: str = "echo", value: Any = None, seconds: float = 0.0) -> Any:
        ran.append(context["job"].key)
        await asyncio.sleep(seconds)
        if do == "wait":
            await asyncio.sleep(60)
        if do == "lose":
            raise RecordNotFoundError("gone.mp3")
        if do == "lean":
            raise CircuitHeld("store")
        return value

    async with running(lanes.worker(queue, [("work", work)], lane_options={"grace": 0.1})):
        yield


async def status(queue: Any, key: str, wanted: Status) -> bool:
    job = await queue.job(key)
    return job is not None and job.status is wanted


@pytest.mark.usefixtures("working")
@pytest.mark.parametrize("place", ["scheduled", "active", "parked"])
async def test_a_job_is_aborted_wherever_it_is(queue: LaneQueue, redis: Redis, place: str) -> None:
    arguments: dict[str, Any] = {
        "scheduled": {"scheduled": int(time.time()) + 3600},
        "active": {"do": "wait", "timeout": 60},
        "parked": {"do": "lean"},
    }[place]
    await Breakers(queue.scripts, redis).force("store", "open", "a test")
    job = await queue.enqueue("work", key="work:1", **arguments)
    assert job is not None
    if place == "active":
        assert await until(lambda: status(queue, "work:1", Status.ACTIVE), 5)
    if place == "parked":
        assert await until(lambda: redis.llen(keys.parked_key("store")), 5)
    await job.abort("enough")
    done = await over(queue, "work:1", 3)
    assert done is not None
    assert (done.status, done.error) == (Status.ABORTED, "enough")
    assert await queue.count("incomplete") == await queue.count("active") == 0


async def test_a_queued_job_is_aborted_and_never_starts(queue: LaneQueue) -> None:
    job = await queue.enqueue("work", key="work:1")
    assert job is not None
    await job.abort("enough")
    assert await lanes.take(queue, "a") is None
    assert (await queue.job("work:1")).status is Status.ABORTED  # type: ignore[union-attr]


@pytest.mark.usefixtures("working")
async def test_the_dashboards_retry_forgets_a_done_job_and_runs_it_again(queue: LaneQueue, ran: list[str]) -> None:
    assert await queue.apply("work", key="work:1", value=1, poll_interval=0.05) == 1
    assert await queue.apply("work", key="work:1", value=1, poll_interval=0.05) == 1
    assert ran == ["work:1"], "answered from the marker"
    job = await queue.job("work:1")
    assert job is not None
    await queue.retry(job, None)
    assert await until(lambda: status(queue, "work:1", Status.COMPLETE), 5)
    assert ran == ["work:1", "work:1"]


@pytest.mark.usefixtures("working")
async def test_the_dashboards_retry_refuses_a_running_job(queue: LaneQueue, ran: list[str]) -> None:
    job = await queue.enqueue("work", key="work:1", do="wait", timeout=60)
    assert job is not None
    assert await until(lambda: status(queue, "work:1", Status.ACTIVE), 5)
    with pytest.raises(JobIsRunning, match="abort it first"):
        await queue.retry(job, None)
    assert ran == ["work:1"]


@pytest.mark.usefixtures("working")
async def test_a_plain_producer_works_unchanged(queue: LaneQueue, redis: Redis) -> None:
    producer = RedisQueue(redis, name=NAME)
    assert await producer.apply("work", value=[1, {"a": None}], poll_interval=0.05) == [1, {"a": None}]
    job = await producer.enqueue("work", key="work:2", value="x", seconds=0.5)
    assert job is not None
    assert await producer.enqueue("work", key="work:2", value="x") is None, "its key is taken"
    assert await until(lambda: status(queue, "work:2", Status.COMPLETE), 20)
    await job.refresh()
    assert (job.status, job.result) == (Status.COMPLETE, "x")
    await producer._pubsub.close()


@pytest.mark.usefixtures("working")
async def test_a_plain_producer_is_told_of_failures(queue: LaneQueue, redis: Redis) -> None:
    producer = RedisQueue(redis, name=NAME)
    with pytest.raises(JobError, match=r"gone\.mp3"):
        await producer.apply("work", do="lose", poll_interval=0.05)
    job = await producer.enqueue("work", do="lose", seconds=0.5)
    assert job is not None
    await job.refresh(until_complete=5)
    assert (job.status, job.error) == (Status.FAILED, "RecordNotFoundError: gone.mp3")
    await producer._pubsub.close()


@pytest.mark.usefixtures("working")
async def test_an_undecodable_payload_is_set_aside_and_stops_nothing(queue: LaneQueue, redis: Redis) -> None:
    await redis.set(queue.job_id("work:bad"), b"\x80 not JSON")
    await redis.zadd(keys.incomplete_key(NAME), {queue.job_id("work:bad"): 0})
    await redis.rpush(keys.queued_key(NAME), queue.job_id("work:bad"))
    assert await queue.apply("work", value=1, poll_interval=0.05) == 1
    (letter,) = await redis.lrange(keys.quarantine_key("unknown"), 0, -1)
    assert "cannot be decoded" in json.loads(letter)["error"]
    assert await queue.count("incomplete") == 0


@pytest.mark.parametrize("unique", [True, False])
async def test_each_tick_of_each_cron_job_runs_once_in_a_fleet(redis: Redis, unique: bool) -> None:
    ran: list[tuple[int, int]] = []

    async def tidy(context: Any, *, room: int) -> None:
        ran.append((room, context["job"].scheduled))

    tidy.__qualname__ = "tidy"
    crons = [
        CronJob(tidy, cron="* * * * * *", unique=unique, kwargs={"room": room})  # type: ignore[var-annotated]
        for room in (1, 2)
    ]
    queue = lanes.queue(redis)
    fleet = [lanes.worker(one, [], cron_jobs=crons) for one in (queue, lanes.queue(redis))]
    async with running(*fleet):

        async def three_ticks() -> bool:
            return min(Counter(room for room, _ in {*ran, (1, 0), (2, 0)}).values()) > 3

        assert await until(three_ticks, 20), f"(room, tick) that ran: {ran}"
        assert await queue.count("incomplete") <= 2 * len(crons), "one job a tick, and no more than two ticks ahead"
    assert len(ran) == len(set(ran))


@pytest.fixture
def start() -> Iterator[Any]:
    with processes() as starts:
        yield starts


async def test_a_plain_producers_abort_ends_what_waits_and_leaves_what_runs_alone(
    queue: LaneQueue, redis: Redis
) -> None:
    """It says WRONGTYPE in either case: our running jobs are no list. LaneQueue's abort ends both."""
    await queue.sweep()  # as a worker does
    plain = RedisQueue(redis, name=queue.name)
    waiting = await plain.enqueue("work", key="work:waits")
    assert waiting is not None
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await waiting.abort("not wanted")
    assert (await queue.count("queued"), await queue.count("incomplete")) == (0, 0)
    running = await plain.enqueue("work", key="work:runs")
    assert running is not None
    _, (run,), _ = await queue.step("w", "", 1)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await running.abort("not wanted")
    run.job = queue.deserialize(run.text)
    answers, *_ = await queue.step("w", "", 0, [Endings(queue, "w", outbox=True).done(run, Result("done"))])
    assert answers == ["settled"]
    assert await redis.xlen(outbox_key(queue.name)) == 1


async def test_a_plain_worker_on_a_lanes_queue_is_refused_with_the_reason(
    queue: LaneQueue, valkey_url: str, tmp_path: Path, start: Any
) -> None:
    with pytest.raises(ForeignWorker, match="run `phaze worker`"):
        await queue.dequeue()
    worker = start(Misplaced(), valkey_url, tmp_path)
    assert await asyncio.to_thread(worker.process.wait, 20) == 1
    assert "is a lane's queue; run `phaze worker`" in worker.log.read_text("utf-8")


async def test_a_plain_worker_elsewhere_gets_no_job_and_ours_do_it(
    queue: LaneQueue, redis: Redis, valkey_url: str, tmp_path: Path, start: Any
) -> None:
    await queue.sweep()  # as every worker of ours does first
    note = Note(tmp_path / "note")
    worker = await start(Saq(), valkey_url, tmp_path).ready()
    await queue.enqueue("work", key="work:1", note=str(note.path))
    await asyncio.sleep(2.0)
    assert not note.lines("start")
    assert await queue.count("queued") == 1
    assert await redis.type(keys.active_key(NAME)) == b"zset"
    worker.end()
    await start(lanes, valkey_url, tmp_path).ready()
    job = await over(queue, "work:1", 5)
    assert job is not None
    assert job.status is Status.COMPLETE


async def commands(redis: Redis) -> int:
    return sum(int(row["calls"]) for row in (await redis.info("commandstats")).values())


async def per_second(redis: Redis, seconds: float) -> float:
    before, started = await commands(redis), time.monotonic()
    await asyncio.sleep(seconds)
    return (await commands(redis) - before - 1) / (time.monotonic() - started)


async def naming(redis: Redis, *words: str, seconds: float) -> list[str]:
    """The commands of some seconds that name one of `words`, and all that the scripts among them call."""
    found: list[str] = []
    caused = False
    with contextlib.suppress(TimeoutError):
        async with redis.monitor() as monitor, asyncio.timeout(seconds):
            while True:
                said = await monitor.next_command()
                if said["client_type"] != "lua":  # a script's calls follow it directly
                    caused = any(word in said["command"] for word in words)
                if caused:
                    found.append(said["command"])
    return found


async def hold_a_thousand(queue: LaneQueue, circuit: str) -> None:
    """Enqueue jobs that lean on an open circuit, until all of them are parked."""
    await Breakers(queue.scripts, queue.redis).force(circuit, "open", "a test")
    await asyncio.gather(*(queue.enqueue("work", key=f"work:held-{n}", circuit=circuit) for n in range(1_000)))

    async def held() -> bool:
        return int(await queue.redis.llen(keys.parked_key(circuit))) == 1_000

    assert await until(held, 30)


async def test_four_idle_workers_ask_little_and_a_thousand_parked_jobs_add_less_than_a_command_a_second(
    redis: Redis,
) -> None:
    async def work(context: Any, circuit: str) -> None:
        raise CircuitHeld(circuit)

    queues = [LaneQueue(redis, name=f"lane-{number}") for number in range(4)]
    workers = [lanes.worker(queue, [("work", work)], lane_options={"sweep": 5.0}) for queue in queues]
    async with running(*workers):
        await asyncio.sleep(2)
        idle = await per_second(redis, 30)  # a round of the upkeep more or less counts little
        await hold_a_thousand(queues[0], "held-store")
        await asyncio.sleep(1)
        caused = await naming(redis, sha("release"), seconds=22)
    held = [command for command in caused if "lane-0" in command or "held-" in command or "TIME" in command]
    logging.getLogger("figures").warning("commands/s: idle %.1f, for 1,000 parked jobs %.2f", idle, len(held) / 22)
    assert idle <= 18
    assert held, "somebody looks whether the circuit lets them through"
    assert len(held) / 22 < 1, held


async def test_a_hundred_other_jobs_of_a_lane_hardly_feel_a_thousand_that_are_held(redis: Redis) -> None:
    """p95 from enqueue to the end at most twice the idle one; a busy machine gets three tries."""
    ended: dict[str, float] = {}

    async def work(context: Any, circuit: str = "") -> None:
        if circuit:
            raise CircuitHeld(circuit)
        ended[context["job"].key] = time.monotonic()

    async def p95(queue: LaneQueue, name: str) -> float:
        began: dict[str, float] = {}
        for number in range(100):
            key = f"work:{name}-{number}"
            began[key] = time.monotonic()
            await queue.enqueue("work", key=key)
            await asyncio.sleep(0.005)

        async def all_ended() -> bool:
            return began.keys() <= ended.keys()

        assert await until(all_ended, 30)
        return sorted(ended[key] - began[key] for key in began)[94]

    figures = []
    for attempt in range(3):
        queue = LaneQueue(redis, name=f"lane-{attempt}")
        async with running(lanes.worker(queue, [("work", work)], lane_options={"sweep": 5.0})):
            await p95(queue, f"warm-{attempt}")
            idle = await p95(queue, f"idle-{attempt}")
            await hold_a_thousand(queue, f"store-{attempt}")
            held = await p95(queue, f"beside-{attempt}")
        figures.append((round(1000 * idle, 1), round(1000 * held, 1)))
        if held <= 2 * idle:
            break
    logging.getLogger("figures").warning("p95 in ms, idle and beside 1,000 parked jobs: %s", figures)
    assert held <= 2 * idle, figures


async def test_what_a_worker_calls_at_its_end_may_be_a_plain_function_or_a_coroutine(queue: LaneQueue) -> None:
    called: list[str] = []

    def plain(_context: Any) -> None:
        called.append("plain")

    async def coroutine(_context: Any) -> None:
        called.append("coroutine")

    async def work(_context: Any) -> None: ...

    for given in (plain, coroutine, [plain, coroutine]):
        worker = lanes.worker(queue, [("work", work)], shutdown=given)
        async with running(worker):
            await asyncio.sleep(0.1)
        assert worker._stopped
    assert called == ["plain", "coroutine"] * 2


@pytest.mark.usefixtures("working")
@pytest.mark.parametrize("form", ["plain", "coroutine"])
async def test_who_begins_to_listen_when_the_job_is_over_is_told_all_the_same(queue: LaneQueue, form: str) -> None:
    await queue.apply("work", key="work:1", value=1, poll_interval=0.05)
    told: list[tuple[str, Status]] = []

    def stop(key: str, state: Status) -> bool:
        told.append((key, state))
        return True

    async def stop_later(key: str, state: Status) -> bool:
        return stop(key, state)

    await queue.listen(["work:1"], stop if form == "plain" else stop_later, 20)
    assert told == [("work:1", Status.COMPLETE)]


async def test_listening_ends_with_its_time_and_without_keys_at_once(queue: LaneQueue) -> None:
    await queue.enqueue("work", key="work:1")
    with pytest.raises(TimeoutError):
        await queue.listen(["work:1"], lambda *_: True, 0.7)
    await queue.listen([], lambda *_: True, 20)


async def test_a_worker_that_has_stopped_is_on_no_list(queue: LaneQueue, redis: Redis) -> None:
    async def listed() -> bool:
        return bool((await queue.info())["workers"])

    async def work(context: Any) -> None:
        pass

    async with running(lanes.worker(lanes.queue(redis), [("work", work)])):
        assert await until(listed, 10)
    assert not await listed()
    assert await redis.zcard(f"saq:{NAME}:stats") == 0
    assert not [key async for key in redis.scan_iter(f"saq:{NAME}:worker_info:*")]
