"""The operator's commands on a running system: what they find, what they change, and what they refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.lanes import queue_name
from agent.phoenix import keys
from agent.phoenix.boot import take_over_queue
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import CircuitHeld, Quarantined
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from pipelines.errors import RecordNotFoundError
from tests.agent.operator.conftest import Phaze

TASK = "push_file"
QUEUE = queue_name("local", "io")


class Lane:
    """A worker on the io lane whose one task does as its argument says."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.queue = LaneQueue(redis, name=QUEUE)
        self.worker = LaneWorker(self.queue, [(TASK, self.body)], lane="io", concurrency=2, sweep=0.5, grace=0.2)
        self.ran: list[str] = []
        self.fine = False

    async def body(self, ctx: Any, *, do: str = "") -> str:
        self.ran.append(ctx["job"].key)
        if do == "hang":
            await asyncio.sleep(60)
        if do == "lose" and not self.fine:
            raise RecordNotFoundError("gone")
        if do == "refuse" and not self.fine:
            raise Quarantined("bad-payload: x")
        if do == "hold" and not self.fine:
            raise CircuitHeld("store")
        if do == "fail" and not self.fine:
            raise ConnectionError("the store is away")
        return "well"

    async def put(self, *records: str, **arguments: Any) -> None:
        for record in records:
            await self.queue.enqueue(TASK, key=f"{TASK}:{record}", **arguments)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not (await found if asyncio.iscoroutine(found := condition()) else found):
                await asyncio.sleep(0.02)


@pytest.fixture
async def lane(redis: Redis) -> AsyncIterator[Lane]:
    lane = Lane(redis)
    running = asyncio.create_task(lane.worker.start())
    yield lane
    lane.worker.event.set()
    await running


@pytest.mark.parametrize(("kind", "do"), [("dlq", "lose"), ("quarantine", "refuse")])
async def test_what_was_set_aside_is_listed_shown_replayed_and_dropped(
    lane: Lane, phaze: Phaze, kind: str, do: str
) -> None:
    place = keys.dead_letters_key(TASK) if kind == "dlq" else keys.quarantine_key(TASK)
    await lane.put("1", "2", "3", "4", do=do)

    async def letters() -> int:
        return int(await lane.redis.llen(place))

    async def four() -> bool:
        return await letters() == 4

    await lane.until(four)
    said = await phaze(kind, "list")
    assert "push_file:1  0 min ago  1 attempt  " in said
    assert "4 jobs" in said
    shown = (await phaze(kind, "show", "push_file:2")).splitlines()
    assert shown[0] == f"push_file:2 on {QUEUE}"
    assert "1 attempt, the last 0 min ago by " in shown[2]
    assert shown[3:] == [f"  do = {do}"]
    assert json.loads(await phaze(kind, "show", "push_file:2", "--json"))["record_id"] == "2"
    assert len(json.loads(await phaze(kind, "list", "--task", TASK, "--json"))) == 4
    assert "would be queued" in await phaze(kind, "replay", "--all", "--dry-run")
    assert await letters() == 4
    lane.fine = True
    assert "push_file:1: queued" in await phaze(kind, "replay", "push_file:1")
    await lane.until(lambda: lane.ran.count("push_file:1") == 2)
    assert "push_file:2: dropped" in await phaze(kind, "drop", "push_file:2")
    assert "2 jobs" in await phaze(kind, "replay", "--task", TASK)
    assert await letters() == 0
    assert "0 jobs" in await phaze(kind, "replay", "--all")


async def test_jobs_of_no_task_are_found_like_any_others(lane: Lane, phaze: Phaze) -> None:
    """A renamed task, a removed package, a misspelling; one whose text nobody can decode, though it names a task."""
    broken = lane.queue.job_id("push_old:2")
    await lane.redis.set(broken, '{"function": "push_old", "kwargs": ')
    await lane.redis.zadd(keys.incomplete_key(QUEUE), {broken: 0})
    await lane.redis.rpush(keys.queued_key(QUEUE), broken)
    await lane.queue.enqueue("push_old", key="push_old:1", note="by hand")

    async def two() -> bool:
        return int(await lane.redis.llen(keys.quarantine_key("unknown"))) == 2

    await lane.until(two)
    said = await phaze("quarantine", "list")
    assert "push_old:1  0 min ago  1 attempt  Quarantined: push_old is not a task of this worker (push_file)" in said
    assert "push_old:2  0 min ago" in said
    assert "note = by hand" in await phaze("quarantine", "show", "push_old:1")
    assert "2 jobs" in await phaze("quarantine", "list", "--task", "push_old")
    assert "there is no task push_odd" in await phaze("quarantine", "list", "--task", "push_odd", code=2)
    assert f"push_old:1 on {QUEUE}: it is in quarantine" in await phaze("why", "push_old:1")
    assert "push_old:1: queued" in await phaze("quarantine", "replay", "push_old:1")
    await lane.until(two)


async def test_letters_of_a_task_that_only_its_worker_has_are_found(lane: Lane, phaze: Phaze) -> None:
    await take_over_queue(lane.queue, ["elsewhere"])
    letter = {"id": lane.queue.job_id("elsewhere:1"), "queue": QUEUE, "service": "elsewhere", "error": "gone"}
    await lane.redis.rpush(keys.dead_letters_key("elsewhere"), json.dumps(letter))
    for arguments in ((), ("--task", "elsewhere")):
        assert "elsewhere:1" in await phaze("dlq", "list", *arguments)
    assert "it is a dead letter" in await phaze("why", "elsewhere:1")


async def test_a_letter_whose_job_waits_again_is_not_queued_twice(lane: Lane, phaze: Phaze) -> None:
    await lane.put("1", do="lose")
    await lane.until(lambda: lane.redis.llen(keys.dead_letters_key(TASK)))
    await phaze("pause", "io")
    await lane.put("1")
    assert "push_file:1: waiting" in await phaze("dlq", "replay", "push_file:1")
    assert await lane.queue.count("queued") == 1


async def test_wrong_use_is_one_line_with_exit_code_2(phaze: Phaze, lane: Lane) -> None:
    assert "name the jobs by key" in await phaze("dlq", "replay", code=2)
    assert "there is no push_file:9" in await phaze("dlq", "drop", "push_file:9", code=2)
    assert "is not <task>:<record id>" in await phaze("why", "17", code=2)
    refused = await phaze("pause", "everything", code=2)
    assert "is neither a lane nor a task" in refused
    assert refused.count("router") == 1  # a lane, and its one task
    assert "there is no circuit" in await phaze("breaker", "open", "nope", "--reason", "x", code=2)


async def test_without_a_server_the_remedy_is_told(phaze: Phaze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHAZE_REDIS_URL")
    assert "PHAZE_REDIS_URL is not set" in await phaze("why", "push_file:1", code=1)
    monkeypatch.setenv("PHAZE_REDIS_URL", "redis://:hidden@127.0.0.1:1")
    said = await phaze("dlq", "list", code=1)
    assert "does not answer" in said
    assert "hidden" not in said


async def test_a_paused_lane_takes_nothing_and_a_paused_tasks_jobs_are_held(lane: Lane, phaze: Phaze) -> None:
    await phaze("pause", "io")
    await lane.put("1")
    await asyncio.sleep(1.5)
    assert lane.ran == []
    assert "the lane is paused" in await phaze("why", "push_file:1")
    await phaze("resume", "io")
    await lane.until(lambda: lane.ran == ["push_file:1"])
    await phaze("pause", TASK)
    await lane.put("2")
    await lane.until(lambda: lane.redis.llen(keys.parked_key(f"paused:{TASK}")))
    assert "waits until `phaze resume push_file`: push_file is paused" in await phaze("why", "push_file:2")
    assert "1 job queued" in await phaze("resume", TASK)
    assert "`phaze resume all`" in await phaze("pause", "all")
    assert b"all" in await lane.redis.smembers(keys.PAUSED)
    assert "all goes on" in await phaze("resume", "all")
    await lane.until(lambda: "push_file:2" in lane.ran)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"do": "hang"}, "it runs, on "),
        ({"do": "lose"}, "it is a dead letter"),
        ({"do": "refuse"}, "it is in quarantine"),
        ({"do": "hold"}, "it waits for store"),
        ({"do": "fail"}, "failed 1 time: ConnectionError: the store is away"),
        ({"do": ""}, " ago: done, version "),
    ],
)
async def test_why_tells_where_a_job_is(lane: Lane, phaze: Phaze, arguments: dict[str, str], said: str) -> None:
    if arguments["do"] == "hold":
        await Breakers(lane.queue.scripts, lane.redis).force("store", "open", "for the test")
    await lane.put("1", **arguments)
    await lane.until(lambda: lane.ran)
    await asyncio.sleep(0.5)
    assert said in await phaze("why", "push_file:1")
    assert json.loads(await phaze("why", "push_file:1", "--json"))["queue"] == QUEUE


async def test_why_of_a_job_nobody_knows(phaze: Phaze) -> None:
    assert "no queue knows it" in await phaze("why", "push_file:1")


async def test_forget_makes_a_done_version_run_again(lane: Lane, phaze: Phaze) -> None:
    await lane.put("1")
    await lane.until(lambda: lane.redis.exists(keys.marker_key(TASK, "1")))
    await phaze("forget", "push_file:1", code=1)  # nobody said yes
    assert await lane.redis.exists(keys.marker_key(TASK, "1"))
    assert "is forgotten" in await phaze("forget", "push_file:1", "--yes")
    assert "nothing was remembered" in await phaze("forget", "push_file:1", "--yes")
    await lane.put("1")
    await lane.until(lambda: len(lane.ran) == 2)


async def test_a_circuit_is_held_and_given_back(lane: Lane, phaze: Phaze) -> None:
    breakers = Breakers(lane.queue.scripts, lane.redis)
    async with breakers.guard("store", "owner"):
        """It works."""
    with pytest.raises(ConnectionError):
        async with breakers.guard("store", "owner"):
            raise ConnectionError
    assert "store: closed, 1 failure in a row" in await phaze("breaker", "list")
    assert "store: forced open (maintenance)" in await phaze("breaker", "open", "store", "--reason", "maintenance")
    with pytest.raises(CircuitHeld):
        async with breakers.guard("store", "owner"):
            """Not reached."""
    assert "forced closed (trust me)" in await phaze("breaker", "close", "store", "--reason", "trust me")
    assert "store: closed" in await phaze("breaker", "reset", "store")
