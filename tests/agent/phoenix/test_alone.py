"""Poison is told from bad luck: by real workers that die, and step by step."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Away
from saq.job import Status

from agent.phoenix import keys
from agent.phoenix.alone import ALONE_AFTER, Alone
from agent.phoenix.endings import OWN_DEATHS
from agent.phoenix.queue import LaneQueue
from agent.phoenix.runs import Run
from tests.agent.phoenix.engines import NAME, Lanes, Note, WorkerProcess, over, processes, running, until
from tests.agent.phoenix.test_model import MOVED_CLOCK

lanes = Lanes()
Start = Callable[..., WorkerProcess]


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return lanes.queue(redis)


@pytest.fixture
def start() -> Iterator[Start]:
    with processes() as starts:
        yield starts


@pytest.fixture
def note(tmp_path: Path) -> Note:
    return Note(tmp_path / "note")


async def taken_over(queue: LaneQueue, times: int) -> None:
    """So many workers died under everything that is queued."""
    for number in range(times):
        await queue.step(f"dead-{number}", "", 100)
        await asyncio.sleep(queue.lease + 0.05)
        await queue.sweep()


def waiting(key: str, takeovers: int) -> Run:
    deaths = f"{takeovers}:0".encode()
    return Run([key.encode(), b"{}", b"work", b"1", key.encode(), None, deaths], claimed_before=0, lease=15)


class Slots:
    """A worker's share: what it holds, what was started, what was given back."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.started: list[str] = []
        self.back: list[str] = []
        self.alone = Alone(
            None,  # type: ignore[arg-type]  # nothing is announced here
            self.runs.values,
            start=lambda run: self.started.append(run.id),
            hand_back=self._hand_back,
        )

    def _hand_back(self, run: Run) -> None:
        del self.runs[run.id]
        self.back.append(run.id)

    def claim(self, key: str, takeovers: int = 0) -> None:
        self.runs[key] = waiting(key, takeovers)
        self.alone.begin(self.runs[key])

    def end(self, key: str) -> None:
        self.alone.ended(self.runs.pop(key))


def test_a_suspect_waits_for_what_runs_and_then_has_the_worker_to_itself() -> None:
    slots = Slots()
    slots.claim("good")
    slots.claim("suspect", ALONE_AFTER)
    assert slots.alone.busy
    slots.claim("late")
    slots.claim("another suspect", ALONE_AFTER + 1)
    assert slots.started == ["good"]
    assert slots.back == ["late", "another suspect"], "nobody holds what others may run"
    slots.end("good")
    assert slots.started == ["good", "suspect"]
    slots.claim("later")
    assert slots.back[-1] == "later"
    slots.alone.give_up()
    assert slots.started == ["good", "suspect"], "it has begun; its end is its own"
    slots.end("suspect")
    assert not slots.alone.busy
    slots.claim("next")
    assert slots.started[-1] == "next"


def test_a_suspect_that_has_not_begun_when_its_worker_stops_is_handed_back() -> None:
    slots = Slots()
    slots.claim("good")
    slots.claim("suspect", ALONE_AFTER)
    slots.alone.give_up()
    slots.end("good")
    assert (slots.started, slots.back) == (["good"], ["suspect"])


async def test_what_has_its_worker_to_itself_says_so_in_its_lock_and_the_rest_is_done_by_others(
    queue: LaneQueue, redis: Redis
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def work(context: Any) -> str:
        began.set()
        if context["job"].key == "work:suspect":
            await go.wait()
        return "well"

    await queue.enqueue("work", key="work:suspect")
    await taken_over(queue, ALONE_AFTER)
    for number in range(3):
        await queue.enqueue("work", key=f"work:{number}")
    first, second = (lanes.worker(lanes.queue(redis), [("work", work)], concurrency=4) for _ in range(2))
    async with running(first):
        await asyncio.wait_for(began.wait(), 10)
        assert [run.record for run in first.runs.values()] == ["suspect"]
        assert json.loads(await redis.get(keys.lock_key("work", "suspect")))["alone"] == "yes"
        async with running(second):
            for number in range(3):
                assert await over(queue, f"work:{number}", 10)
            go.set()
            assert await over(queue, "work:suspect", 10)
    assert await redis.hgetall(keys.deaths_key(NAME)) == {}, "it ended well, and is as any other"


async def test_without_the_servers_word_a_suspect_is_handed_back_and_does_not_run(
    queue: LaneQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    async def work(context: Any) -> None:
        ran.append(context["job"].key)

    right, away = queue.alone, 3

    async def unheard(run: Run) -> bool:
        nonlocal away
        away -= 1
        if away >= 0:
            raise Away("it does not get through")
        return await right(run)

    monkeypatch.setattr(queue, "alone", unheard)
    await queue.enqueue("work", key="work:suspect")
    await taken_over(queue, ALONE_AFTER)
    async with running(lanes.worker(queue, [("work", work)], concurrency=2)):
        job = await over(queue, "work:suspect", 10)
    assert job is not None
    assert (job.status, job.attempts, len(ran), away) == (Status.COMPLETE, 1, 1, -1)


async def dead_under(queue: LaneQueue, *owners: str, alone: bool = True) -> None:
    """Each owner takes one job, says that it runs alone, and dies."""
    for owner in owners:
        _, (run,) = (await queue.step(owner, "", 1))[:2]
        assert await queue.alone(run) or not alone
    await asyncio.sleep(queue.lease + 0.05)


async def deaths(redis: Redis) -> dict[str, str]:
    stored = await redis.hgetall(keys.deaths_key(NAME))
    return {key.decode().rpartition(":")[2]: text.decode() for key, text in stored.items()}


async def test_only_a_death_alone_is_the_jobs_own(queue: LaneQueue, redis: Redis) -> None:
    await queue.enqueue("work", key="work:1")
    await dead_under(queue, "a")
    await queue.sweep()
    assert await deaths(redis) == {"1": "1:1"}
    await queue.step("b", "", 1)
    await asyncio.sleep(queue.lease + 0.05)
    await queue.sweep()
    assert await deaths(redis) == {"1": "2:1"}, "its next owner did not say so"


async def test_workers_that_die_at_once_die_of_nothing_although_their_leases_end_one_by_one(
    queue: LaneQueue, redis: Redis
) -> None:
    for record in "12":
        await queue.enqueue("work", key=f"work:{record}")
    await dead_under(queue, "a")
    # The other's last renewal was a moment later: when the first is missed, it has not renewed for half a lease.
    await queue.step("b", "", 1)
    job = queue.job_id("work:2")
    lock = json.loads(await redis.get(keys.lock_key("work", "2")))
    soon = lock["until"] - int(queue.lease * 600)
    lock = {"owner": "b", "token": lock["token"], "alone": "yes", "since": lock["since"], "until": soon}
    await redis.set(keys.lock_key("work", "2"), json.dumps(lock))
    await redis.zadd(keys.active_key(NAME), {job: soon})
    assert len(await queue.sweep()) == 1
    await asyncio.sleep(queue.lease / 2)
    assert len(await queue.sweep()) == 1
    assert await deaths(redis) == {"1": "1:0", "2": "1:0"}


async def test_jobs_that_were_taken_over_often_take_turns(queue: LaneQueue) -> None:
    for record in "12":
        await queue.enqueue("work", key=f"work:{record}")
    await taken_over(queue, 4)
    await queue.enqueue("work", key="work:3")
    _, first, _ = await queue.step("a", "", 10)
    assert sorted(run.record for run in first) in (["1", "3"], ["2", "3"])
    await asyncio.sleep(2.1)
    await queue.upkeep(orphans=False, aborts=False)
    assert (await queue.step("b", "", 10))[1] == [], "the other waits as long as the first one's lock stands"
    await queue.sweep()
    runs: list[Run] = []
    async with asyncio.timeout(20):
        while not runs:
            await asyncio.sleep(0.1)
            await queue.upkeep(orphans=False, aborts=False)
            runs = [run for run in (await queue.step("b", "", 10))[1] if run.record in "12"]
    assert len(runs) == 1


async def test_a_job_whose_text_is_gone_leaves_no_deaths_to_a_later_one(queue: LaneQueue, redis: Redis) -> None:
    await queue.enqueue("work", key="work:1")
    await dead_under(queue, "a")
    await queue.sweep()
    await queue.step("b", "", 1)
    await redis.delete(queue.job_id("work:1"))
    await asyncio.sleep(queue.lease + 0.05)
    await queue.sweep()
    assert await deaths(redis) == {}
    await queue.enqueue("work", key="work:1")
    await dead_under(queue, "a")
    await queue.sweep()
    await redis.delete(queue.job_id("work:1"))
    await queue.step("b", "", 1)
    assert await deaths(redis) == {}


@pytest.mark.parametrize("name", [keys.deaths_key(NAME), keys.counters_key(NAME)])
async def test_a_job_is_taken_over_although_its_deaths_cannot_be_counted(
    queue: LaneQueue, redis: Redis, name: str
) -> None:
    await queue.enqueue("work", key="work:1")
    await queue.step("a", "", 1)
    await redis.set(name, "somebody else's")
    await asyncio.sleep(queue.lease + 0.05)
    assert await queue.sweep() == [queue.job_id("work:1")]


async def quarantined(redis: Redis) -> set[str]:
    letters = await redis.lrange(keys.quarantine_key("work"), 0, -1)
    return {json.loads(letter)["id"].rpartition(":")[2] for letter in letters}


@pytest.mark.parametrize(
    ("poison", "good", "workers"),
    [(2, 5, 1), (1, 0, 1), (2, 2, 2)],
    ids=["two of seven", "the only job", "one a worker"],
)
async def test_jobs_that_kill_their_worker_are_quarantined_and_the_others_are_done(
    queue: LaneQueue, redis: Redis, valkey_url: str, note: Note, start: Start, poison: int, good: int, workers: int
) -> None:
    """Whoever watches over the workers starts each again at once."""
    for number in range(poison):
        await queue.enqueue("work", key=f"work:bad{number}", note=str(note.path), how="die", seconds=0.3, timeout=0)
    for number in range(good):
        await queue.enqueue("work", key=f"work:{number}", note=str(note.path))
    running: list[WorkerProcess] = []
    died = 0
    async with asyncio.timeout(100):
        while await queue.count("incomplete"):
            died += len(running)
            running = [worker for worker in running if worker.process.poll() is None]
            died -= len(running)
            while len(running) < workers:
                running.append(start(lanes, valkey_url, note.path.parent, concurrency=3))
            await asyncio.sleep(0.05)
    assert await quarantined(redis) == {f"bad{number}" for number in range(poison)}
    for number in range(good):
        job = await queue.job(f"work:{number}")
        assert job is not None
        assert job.status is Status.COMPLETE
    assert died <= poison * (2 * ALONE_AFTER + OWN_DEATHS + 1)


async def test_killing_all_workers_over_and_over_quarantines_nothing(
    queue: LaneQueue, redis: Redis, valkey_url: str, note: Note, start: Start
) -> None:
    """Five times, so that the third death alone would have been reached by whoever counted these."""
    jobs = [f"work:{number}" for number in range(4)]
    for key in jobs:
        await queue.enqueue("work", key=key, note=str(note.path), how="wait", timeout=0)
    for _ in range(5):
        workers = [start(lanes, valkey_url, note.path.parent, concurrency=2) for _ in range(2)]
        pids = {worker.process.pid for worker in workers}

        async def both_run(pids: set[int] = pids) -> bool:
            return pids <= {pid for pid, _ in note.lines("start")}

        assert await until(both_run, 30)
        for worker in workers:
            worker.signal(signal.SIGKILL)
    note.write("go")
    start(lanes, valkey_url, note.path.parent, concurrency=2)
    for key in jobs:
        job = await over(queue, key, 30)
        assert job is not None
        assert job.status is Status.COMPLETE
    assert await quarantined(redis) == set()


@pytest.mark.parametrize(("poison", "workers"), [(2, 1), (2, 2), (3, 2), (5, 3)])
@pytest.mark.parametrize("restart", [0.5, 3.0, 20.0])
async def test_jobs_that_kill_their_workers_in_step_are_told_apart_in_the_end(
    queue: LaneQueue, redis: Redis, poison: int, workers: int, restart: float
) -> None:
    """Time is moved: leases of 15 s, deaths 0.3 s after each claim, a supervisor that starts all at the same pace."""
    queue = LaneQueue(redis, name=NAME)
    queue.scripts.prelude = MOVED_CLOCK
    now = 1_800_000_000.0
    alive_from = dict.fromkeys(range(workers), now)
    generation = Counter[int]()
    guilty: set[str] = set()
    await redis.set("test:clock", int(now * 1e6))
    for number in range(poison):
        await queue.enqueue("work", key=f"work:bad{number}")
    for _ in range(2000):
        now += 0.3
        await redis.set("test:clock", int(now * 1e6))
        await queue.upkeep(orphans=True, aborts=False)
        for worker in alive_from:
            if alive_from[worker] > now:
                continue
            _, runs, _ = await queue.step(f"{worker}-{generation[worker]}", "", 1)
            if not runs:
                continue
            if runs[0].own_deaths >= OWN_DEATHS:
                guilty.add(runs[0].record)
                await redis.zrem(keys.active_key(NAME), runs[0].id)
                await redis.zrem(keys.incomplete_key(NAME), runs[0].id)
                await redis.delete(keys.lock_key("work", runs[0].record))
                continue
            if runs[0].takeovers >= ALONE_AFTER:
                assert await queue.alone(runs[0])
            generation[worker] += 1
            alive_from[worker] = now + restart
        if len(guilty) == poison:
            break
    assert len(guilty) == poison, f"after {now - 1_800_000_000:.0f} s"
    assert generation.total() <= poison * 10, "deaths that it took"
