"""How many probes a half-open circuit lets out, however long they take, and that looking at it changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.phoenix import keys
from agent.phoenix.breaker import FAILURES, PROBES, SUCCESSES, Breakers
from agent.phoenix.endings import CircuitHeld
from agent.phoenix.queue import LaneQueue
from tests.agent.phoenix.engines import Lanes, running, until

lanes = Lanes()
OPEN = 200
PERMIT = 500


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return lanes.queue(redis)


@pytest.fixture
def breakers(queue: LaneQueue, redis: Redis) -> Breakers:
    return Breakers(queue.scripts, redis, open_ms=OPEN, permit_ms=PERMIT)


async def opened(breakers: Breakers) -> None:
    for number in range(FAILURES):
        with pytest.raises(ConnectionError):
            async with breakers.guard("store", f"failed-{number}"):
                raise ConnectionError("away")


async def asked(breakers: Breakers, owner: str) -> bool:
    verdict, _ = await breakers._call("ask", "store", owner)
    return bool(verdict == b"pass")


async def test_no_more_probes_than_promised_are_in_flight_however_long_they_take(
    queue: LaneQueue, redis: Redis, breakers: Breakers
) -> None:
    """Each outlives its permit several times over; its lease is renewed, and the permit with it."""
    now, most, done = 0, 0, 0
    fine = asyncio.Event()

    async def work(context: Any) -> None:
        nonlocal now, most, done
        async with breakers.guard("store", context["run"].token):
            now += 1
            if not done:  # the first to go well lets all go
                most = max(most, now)
            try:
                if not fine.is_set():
                    await asyncio.sleep(4 * PERMIT / 1000)
            finally:
                now -= 1
                done += 1

    await opened(breakers)
    for number in range(12):
        await queue.enqueue("work", key=f"work:{number}", timeout=0)
    await asyncio.sleep(OPEN / 1000 + 0.05)
    workers = [lanes.worker(lanes.queue(redis), [("work", work)], concurrency=6) for _ in range(2)]

    async def enough(wanted: int) -> bool:
        return done >= wanted

    async with running(*workers):
        assert await until(lambda: enough(1), 30)
        assert most == PROBES
        fine.set()
        assert await until(lambda: enough(12), 30), "and once they have gone well, all go"
    assert await redis.hgetall(keys.PROBES) == {}


async def test_a_probe_of_an_earlier_epoch_is_in_flight_still(breakers: Breakers) -> None:
    await opened(breakers)
    await asyncio.sleep(OPEN / 1000 + 0.05)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(PROBES - 1):
            await stack.enter_async_context(breakers.guard("store", f"long-{number}"))
        with pytest.raises(ConnectionError):
            async with breakers.guard("store", "short"):
                raise ConnectionError("away")
        assert (await breakers.look("store")).state == "open"
        await asyncio.sleep(OPEN / 1000 + 0.05)
        assert await asked(breakers, "new")
        with pytest.raises(CircuitHeld):
            await stack.enter_async_context(breakers.guard("store", "one too many"))


async def test_killed_probers_hold_a_circuit_for_a_permit_and_no_longer(breakers: Breakers, redis: Redis) -> None:
    await opened(breakers)
    await asyncio.sleep(OPEN / 1000 + 0.05)
    assert [await asked(breakers, f"killed-{number}") for number in range(PROBES + 1)] == [True] * PROBES + [False]
    await asyncio.sleep(PERMIT / 1000 + 0.05)
    for number in range(SUCCESSES):
        async with breakers.guard("store", f"next-{number}"):
            pass
    assert (await breakers.look("store")).state == "closed"
    assert await redis.hgetall(keys.PROBES) == {}


async def test_a_look_writes_nothing(breakers: Breakers, redis: Redis) -> None:
    async def dump() -> dict[bytes, bytes | None]:
        return {key: await redis.dump(key) for key in sorted(await redis.keys())}

    await opened(breakers)
    await asyncio.sleep(OPEN / 1000 + 0.05)
    assert await asked(breakers, "prober")
    await redis.hset(keys.breaker_key("store"), "state", "open")  # time would make it half open again
    before = await dump()
    seen = [await breakers.look("store") for _ in range(2)]
    assert await dump() == before
    assert [(circuit.state, circuit.probes) for circuit in seen] == [("half_open", 1)] * 2


async def test_a_run_that_asks_no_circuit_or_a_closed_one_costs_no_command_more(
    queue: LaneQueue, redis: Redis, breakers: Breakers
) -> None:
    async with breakers.guard("store", "first"):
        pass
    await redis.config_resetstat()
    async with breakers.guard("store", "owner"):
        pass
    stats = await redis.info("commandstats")
    called = {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items()}
    assert {"evalsha": 2, "time": 2, "hmget": 2, "zrem": 1}.items() >= {
        name: calls for name, calls in called.items() if name not in ("config|resetstat", "info")
    }.items(), called
