"""What waits for circuits costs next to nothing however many there are, and no more is let go than may probe them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.phoenix import keys
from agent.phoenix.breaker import FAILURES, PROBES, SUCCESSES, Breakers
from agent.phoenix.endings import Endings
from agent.phoenix.parked import LOOK, Parked
from agent.phoenix.queue import LaneQueue
from tests.agent.phoenix.engines import Lanes, running, until

lanes = Lanes()
USERS = 1_000
SLOTS = 4
OPEN = 50


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return lanes.queue(redis)


@pytest.fixture
def breakers(queue: LaneQueue, redis: Redis) -> Breakers:
    return Breakers(queue.scripts, redis, open_ms=OPEN)


async def opened(breakers: Breakers, circuit: str = "store") -> None:
    for number in range(FAILURES):
        with pytest.raises(ConnectionError):
            async with breakers.guard(circuit, f"failed-{number}"):
                raise ConnectionError("away")


async def half_open(breakers: Breakers, circuit: str = "store") -> None:
    await opened(breakers, circuit)
    await asyncio.sleep(OPEN / 1000 + 0.01)


async def park(queue: LaneQueue, number: int, circuit_of: Callable[[int], str] = lambda _: "store") -> None:
    for at in range(number):
        await queue.enqueue("work", key=f"work:{queue.name}-{at}")
    endings = Endings(queue, "me", outbox=False)
    parked = 0
    while runs := (await queue.step("me", "", 100)).runs:
        gone = [endings.parked(run, circuit_of(parked + at)) for at, run in enumerate(runs)]
        await queue.step("me", "", 0, gone)
        parked += len(runs)


def of_user(number: int) -> str:
    return keys.user_circuit("llm", f"user-{number}")


async def commands(redis: Redis, doing: Coroutine[Any, Any, Any]) -> int:
    """The commands that it costs, those in scripts as well."""
    await redis.config_resetstat()
    await doing
    stats = await redis.info("commandstats")
    return sum(int(row["calls"]) for name, row in stats.items() if name != "cmdstat_config|resetstat")


@pytest.mark.parametrize("users", [1, USERS])
@pytest.mark.parametrize("held", ["forced open", "open", "half open, no slot free"])
async def test_jobs_that_wait_for_a_thousand_circuits_cost_less_than_a_command_a_second(
    queue: LaneQueue, redis: Redis, breakers: Breakers, users: int, held: str
) -> None:
    await park(queue, max(users, SLOTS + 1), lambda number: of_user(number % users))
    lasting = Breakers(queue.scripts, redis)
    if held == "forced open":
        await asyncio.gather(*(breakers.force(of_user(number), "open", "a test") for number in range(users)))
    else:
        for number in range(users):
            await asyncio.gather(*(
                (lasting if held == "open" else breakers)._call("tell", of_user(number), "w", 0, "failed")
                for _ in range(FAILURES)
            ))  # fmt: skip
    parked = Parked(queue, SLOTS)
    if held == "half open, no slot free":
        await asyncio.sleep(OPEN / 1000 + 0.01)
        await Parked(queue, SLOTS).release()
        assert await queue.count("queued") == min(SLOTS, PROBES * users)
    queued = await queue.count("queued")
    assert await commands(redis, parked.release()) / LOOK < 1
    assert await commands(redis, parked.release()) == 0, "it is not yet time to look again"
    assert await queue.count("queued") == queued


@pytest.mark.parametrize("slots", [1, SLOTS])
async def test_no_more_jobs_wait_for_a_slot_to_probe_a_circuit_than_may_probe_it_and_no_more_than_there_are_slots(
    queue: LaneQueue, redis: Redis, slots: int
) -> None:
    began = 0

    async def busy(_context: Any) -> None:
        nonlocal began
        began += 1
        await asyncio.sleep(60)

    options = {"sweep": 0.1, "grace": 0.0}
    worker = lanes.worker(queue, [("busy", busy), ("work", busy)], concurrency=slots, lane_options=options)
    for number in range(slots):
        await queue.enqueue("busy", key=f"busy:{number}", timeout=0)
    async with running(worker):
        assert await until(lambda: asyncio.sleep(0, began == slots), 10)
        await opened(Breakers(queue.scripts, redis, open_ms=2_000))
        await park(queue, 20)
        wait = min(slots, PROBES)
        assert await until(lambda: waiting(queue, wait), 15)
        await asyncio.sleep(3.3)  # a turn of the upkeep each second
        assert await redis.llen(keys.parked_key("store")) == 20 - wait
    assert began == slots


async def waiting(queue: LaneQueue, number: int) -> bool:
    return await queue.redis.llen(keys.parked_key("store")) == 20 - number


async def test_probes_go_one_after_the_other_until_the_circuit_is_closed_and_then_all(
    queue: LaneQueue, redis: Redis, breakers: Breakers
) -> None:
    """In their old order."""
    await half_open(breakers)
    await park(queue, 10)
    went: list[str] = []
    for number in range(SUCCESSES):
        await Parked(queue, 1).release()
        (run,) = (await queue.step("w", "", 9)).runs
        run.job, run.attempts = queue.readable(run.text), 1
        went.append(run.record)
        async with breakers.guard("store", run.token):
            pass
        await queue.step("w", "", 0, [Endings(queue, "w", outbox=False).aborted(run, f"probe {number}")])
    assert (await breakers.look("store")).state == "closed"
    await Parked(queue, 1).release()
    went += [run.record for run in (await queue.step("w", "", 20)).runs]
    assert went == [f"{queue.name}-{number}" for number in range(10)]
    await Parked(queue, 1).release()
    assert await redis.smembers(keys.parked_index_key(queue.name)) == set()


async def test_probes_out_leave_room_for_the_others_only(queue: LaneQueue, redis: Redis, breakers: Breakers) -> None:
    await half_open(breakers)
    await park(queue, 10)
    assert (await breakers._call("ask", "store", "a prober"))[0] == b"pass"
    await Parked(queue, 20).release()
    assert await queue.count("queued") == PROBES - 1
    await redis.zrem(keys.permits_key("store"), "a prober")
    await Parked(queue, 20).release()
    assert await queue.count("queued") == PROBES


async def test_each_of_many_circuits_gets_its_turn_where_one_slot_is_free(
    queue: LaneQueue, redis: Redis, breakers: Breakers
) -> None:
    for number in range(5):
        await half_open(breakers, of_user(number))
    await park(queue, 10, lambda number: of_user(number % 5))
    for prober in range(PROBES):
        await breakers._call("ask", of_user(0), f"killed-{prober}")
    went = set()
    for _ in range(9):
        await Parked(queue, 1).release()
        went |= {int(run.record.rpartition("-")[2]) % 5 for run in (await queue.step("w", "", 9)).runs}
    assert went == {1, 2, 3, 4}, "all but the one whose probes are all out"


async def test_jobs_of_a_queue_that_nobody_serves_keep_no_other_from_probing(
    queue: LaneQueue, redis: Redis, breakers: Breakers
) -> None:
    left = lanes.queue(redis, "a-machine-that-is-off")
    await half_open(breakers)
    await park(left, 250)
    await park(queue, 1)
    for _ in range(6):
        await Parked(queue, SLOTS).release()
    assert await queue.count("queued") == 1
    assert await left.count("queued") == PROBES


async def test_one_list_that_somebody_broke_keeps_no_others_from_being_let_go(
    queue: LaneQueue, redis: Redis, breakers: Breakers
) -> None:
    await half_open(breakers, "half-open")
    await park(queue, 6, lambda number: ("free", "half-open", "broken")[number % 3])
    await half_open(breakers, "broken-too")
    await redis.sadd(keys.parked_index_key(queue.name), "broken-too")
    for broken in ("broken", "broken-too"):
        await redis.delete(keys.parked_key(broken))
        await redis.set(keys.parked_key(broken), "somebody else's")
    for _ in range(2):
        await Parked(queue, SLOTS).release()
    assert {int(run.record[-1]) % 3 for run in (await queue.step("w", "", 9)).runs} == {0, 1}


async def test_a_circuit_that_somebody_deleted_lets_all_go_and_one_that_was_open_before_is_known_once_it_holds(
    queue: LaneQueue, redis: Redis, breakers: Breakers
) -> None:
    await half_open(breakers, "deleted")
    await redis.delete(keys.breaker_key("deleted"))
    await breakers.force("older", "open", "a test")
    await redis.zrem(keys.HELD_CIRCUITS, "older")
    assert (await breakers._call("ask", "older", "w"))[0] == b"hold"
    await park(queue, 20, lambda number: ("deleted", "older")[number % 2])
    for _ in range(2):
        await Parked(queue, SLOTS).release()
    assert await queue.count("queued") == 10
    assert await redis.llen(keys.parked_key("older")) == 10


async def test_no_users_name_is_anothers_key(redis: Redis, breakers: Breakers) -> None:
    """As `bob:permits` might be, where permits are kept beside states."""
    names = ["bob", "bob:permits", "permits:bob", "bob:user:bob"]
    built = [build(keys.user_circuit("llm", name)) for build in (keys.breaker_key, keys.permits_key) for name in names]
    assert len(set(built)) == len(built)
    for name in names:
        await half_open(breakers, keys.user_circuit("llm", name))
        assert (await breakers._call("ask", keys.user_circuit("llm", name), "w"))[0] == b"pass"


async def test_both_permits_of_a_run_behind_two_half_open_circuits_live_as_long_as_its_lease(
    queue: LaneQueue, redis: Redis
) -> None:
    short = Breakers(queue.scripts, redis, open_ms=OPEN, permit_ms=700)
    user = keys.user_circuit("llm", "bob")
    await half_open(short, user)
    await half_open(short, "llm")
    inside, ends = asyncio.Event(), asyncio.Event()

    async def work(context: Any) -> None:
        token = context["run"].token
        async with short.guard(user, token), short.guard("llm", token):
            inside.set()
            await ends.wait()

    await queue.enqueue("work", key="work:1", timeout=0)
    async with running(lanes.worker(queue, [("work", work)], concurrency=1)):
        await asyncio.wait_for(inside.wait(), 10)
        await asyncio.sleep(2.0)
        assert [(await short.look(circuit)).probes for circuit in (user, "llm")] == [1, 1]
        ends.set()
        assert await until(lambda: asyncio.sleep(0, True), 1)
    assert await redis.exists(keys.PROBES, keys.USER_PROBES) == 0
