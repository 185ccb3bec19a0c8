"""The engine does the same on every server that it may meet: Valkey 9 and 8, Redis 8 and 7, and in a container."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError
from saq.job import Status
from saq.queue.redis import RedisQueue

from agent.phoenix import keys
from agent.phoenix.boot import check_server
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import CircuitHeld, Endings, Quarantined, Result
from agent.phoenix.outbox import outbox_key, refused_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.relay import Relay
from agent.processors import BaseProcessor
from agent.redis_client import connect
from pipelines.errors import RecordNotFoundError
from tests.agent.phoenix.engines import NAME, Lanes, over, running, until
from tests.agent.phoenix.stages import Stage
from tests.agent.phoenix.stages import until as until_so
from tests.control_plane import ControlPlane
from tests.servers import KINDS, Server
from tests.servers import running as running_server

lanes = Lanes()
lanes.lease = 1.0


@pytest.fixture(scope="module", params=[*KINDS, pytest.param("docker", marks=pytest.mark.compose)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here, durable."""
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with running_server(request.param, tmp_path_factory.mktemp(request.param), *kept) as started:
        yield started


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[Redis]:
    client = connect(server.url)
    await client.flushall()
    await client.script_flush()
    yield client
    await client.aclose()


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return lanes.queue(redis)


async def test_it_is_taken(redis: Redis) -> None:
    await check_server(redis)


async def test_each_way_in_which_a_run_may_end(queue: LaneQueue, redis: Redis) -> None:
    endings = Endings(queue, "w", outbox=True)
    for number in range(6):
        assert await queue.enqueue("work", key=f"work:{number}")
    _, runs, _ = await queue.step("w", "", 6)
    for run in runs:
        run.job = queue.readable(run.text)
        run.attempts = 1
    done, failed, released, parked, buried, bad = runs
    assert [int(run.token) - int(done.token) for run in runs] == list(range(6))
    later = endings.retried(failed, ValueError("failed"))
    answers, *_ = await queue.step(
        "w",
        "",
        0,
        [
            endings.done(done, Result({"n": 1})),
            later,
            endings.released(released),
            endings.parked(parked, "store"),
            endings.buried(buried, RecordNotFoundError("gone")),
            endings.quarantined(bad, Quarantined("bad")),
        ],
    )
    assert answers == ["settled"] * 6
    assert await queue.count("active") == 0
    assert await redis.lrange(keys.queued_key(NAME), 0, -1) == [b"saq:job:faults:work:2"]
    assert await redis.lrange(keys.parked_key("store"), 0, -1) == [b"saq:job:faults:work:3"]
    assert await redis.llen(keys.dead_letters_key("work")) == 1
    assert await redis.llen(keys.quarantine_key("work")) == 1
    due = await redis.zscore(keys.incomplete_key(NAME), "saq:job:faults:work:1")
    assert due is not None
    assert due - time.time() < later.number + 1
    marker = json.loads(await redis.get(keys.marker_key("work", "0")))
    assert marker["token"] == done.token
    assert await redis.pttl(keys.marker_key("work", "0")) > 0
    assert await queue.hurry() == 1
    assert await queue.unpark("store", 10) == 1
    _, again, _ = await queue.step("w", "", 9)
    assert sorted(run.record for run in again) == ["1", "2", "3"]
    entries = await redis.xlen(outbox_key(NAME))
    assert (await queue.step("w", "", 0, [endings.done(done, Result({"n": 2}))]))[0] == ["settled"], "sent again"
    assert await redis.xlen(outbox_key(NAME)) == entries


async def test_an_orphan_is_taken_over_and_its_first_owner_is_stale(redis: Redis) -> None:
    queue = LaneQueue(redis, name=NAME)
    await queue.enqueue("work", key="work:1")
    first = await lanes.take(queue, "a")
    assert first is not None
    assert await queue.sweep() == []
    lock = json.loads(await redis.get(keys.lock_key("work", "1")))
    await redis.set(keys.lock_key("work", "1"), json.dumps({**lock, "until": 1}))  # long ago, as the queue's set says
    await redis.zadd(keys.active_key(NAME), {"saq:job:faults:work:1": 1})
    assert await queue.sweep() == ["saq:job:faults:work:1"]
    second = await lanes.take(queue, "b")
    assert second is not None
    assert not await lanes.finish(queue, first, 1)
    assert await lanes.finish(queue, second, 2)
    assert (await queue.job("work:1")).result == 2  # type: ignore[union-attr]


async def test_a_worker_does_what_comes_while_it_idles(queue: LaneQueue, redis: Redis) -> None:
    ran: list[str] = []

    async def work(context: Any, *, do: str = "") -> str:
        ran.append(context["job"].key)
        if do == "hold" and len(ran) == 1:
            raise CircuitHeld("store")
        await asyncio.sleep(1.3 if do == "renew" else 0)
        return "well"

    worker = lanes.worker(queue, [("work", work)], lane_options={"sweep": 0.2})
    async with running(worker):
        assert await until(lambda: _waits(redis), 5)
        producer = RedisQueue(redis, name=NAME)  # a plain one, which is told by a message that the job is done
        held = await producer.enqueue("work", key="work:1", do="hold")
        assert held is not None
        assert await over(queue, "work:1", 10), "a closed circuit holds nobody"
        renewed = await queue.enqueue("work", key="work:2", do="renew")
        assert renewed is not None
        await renewed.refresh(until_complete=10)
        assert renewed.status is Status.COMPLETE
        assert worker.stale == 0, "its lease was renewed"
    assert ran == ["work:1", "work:1", "work:2"]
    assert await queue.count("incomplete") == 0


async def _waits(redis: Redis) -> bool:
    return any(client["cmd"] == "blmove" for client in await redis.client_list())


async def test_a_plain_workers_move_is_refused_and_moves_nothing(queue: LaneQueue, redis: Redis) -> None:
    await queue.sweep()
    await queue.enqueue("work", key="work:1")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await redis.blmove(keys.queued_key(NAME), keys.active_key(NAME), 1, "LEFT", "RIGHT")
    assert await queue.count("queued") == 1


async def test_a_circuit_opens_lets_probes_through_and_closes(queue: LaneQueue, redis: Redis) -> None:
    breakers = Breakers(queue.scripts, redis)
    for _ in range(5):
        with pytest.raises(ConnectionError):
            async with breakers.guard("store", "1"):
                raise ConnectionError("away")
    assert (await breakers.look("store")).state == "open"
    with pytest.raises(CircuitHeld):
        async with breakers.guard("store", "2"):
            pass
    await breakers.force("store", "closed", "a test")
    async with breakers.guard("store", "3"):
        pass
    assert [circuit.name for circuit in await breakers.all()] == ["store"]


async def test_the_outbox_is_delivered_and_what_is_refused_is_kept(
    queue: LaneQueue, redis: Redis, plane: ControlPlane
) -> None:
    for number in range(3):
        await queue.enqueue("work", key=f"work:{number}")
        held = await lanes.take(queue, "a")
        assert held is not None
        assert await lanes.finish(queue, held, {"n": number})
    await redis.xadd(outbox_key(NAME), {"entry": "no JSON"})
    relay = Relay(redis, NAME, hub_url=plane.url, agent_id="test", token="t0ken")
    assert await relay.drain(10)
    await relay.close()
    assert [entry["record_id"] for entry in plane.entries] == ["0", "1", "2"]
    assert await redis.xlen(outbox_key(NAME)) == 0
    assert await redis.xlen(refused_key(NAME)) == 1


class Echo(BaseProcessor):
    """Hands on what it was given."""

    next_service = "last"

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        self.keep_pages([record_id])
        return data


async def test_streams_are_bridged_reclaimed_ended_and_begun_anew(redis: Redis) -> None:
    stage, end = Stage(redis, "first", Echo), keys.stream_key("last")
    await redis.xgroup_create(stage.stream, stage.group, "0", mkstream=True)
    deleted = await stage.ask("r0")
    await stage.ask("r1", n=1)
    await redis.xreadgroup(stage.group, "dead-1-x", {stage.stream: ">"})
    await redis.xdel(stage.stream, deleted)
    await redis.xadd(stage.stream, {"no": "record"})
    async with stage.working(idle=0.3):
        await until_so(lambda: _is_so(redis, stage, end, 1))
        assert len(await stage.letters()) == 1
        assert [row["name"] for row in await redis.xinfo_consumers(stage.stream, stage.group)] == [
            stage.bridges[0].consumer.encode()
        ]
        await redis.delete(stage.stream)
        await stage.ask("r2")
        await until_so(lambda: _is_so(redis, stage, end, 2))
        await redis.xgroup_destroy(stage.stream, stage.group)
        await stage.ask("r3")
        await until_so(lambda: _is_so(redis, stage, end, 3))
    rows = [fields for _, fields in await redis.xrange(end)]
    assert [row[b"record_id"] for row in rows] == [b"r1", b"r2", b"r3"]
    assert (rows[0][b"user_id"], rows[0][b"data"]) == (b"u1", b'{"n": 1}')
    assert json.loads(await redis.get("pages:r3")) == ["r3"]
    assert await redis.pttl("pages:r3") > 0


async def _is_so(redis: Redis, stage: Stage, end: str, sent: int) -> bool:
    over = not await stage.left() and not await stage.pending()
    return over and int(await redis.xlen(end)) == sent


async def test_a_full_memory_stops_no_run_from_ending(queue: LaneQueue, redis: Redis) -> None:
    await queue.enqueue("work", key="work:1")
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            await redis.set("saq:more", "1")
        await check_server(redis)
        held = await lanes.take(queue, "a")
        assert held is not None
        assert await lanes.finish(queue, held, {"n": 1})
        await queue.upkeep(orphans=True, aborts=True)
    finally:
        await redis.config_set("maxmemory", "0")
    assert (await queue.job("work:1")).status is Status.COMPLETE  # type: ignore[union-attr]


async def test_a_power_cut_loses_nothing_that_was_acknowledged(queue: LaneQueue, redis: Redis, server: Server) -> None:
    for number in range(3):
        await queue.enqueue("work", key=f"work:{number}")
    held = await lanes.take(queue, "a")
    running = await lanes.take(queue, "a")
    assert held is not None
    assert running is not None
    assert await lanes.finish(queue, held, {"n": 0})
    server.kill()
    server.start()
    assert await redis.xlen(outbox_key(NAME)) == 1
    assert json.loads(await redis.get(keys.marker_key("work", "0")))["version"]
    assert await lanes.finish(queue, running, {"n": 1}), "still its owner's; and the server forgot the scripts"
    last = await lanes.take(queue, "b")
    assert last is not None
    assert last.run is not None
    assert running.run is not None
    assert int(last.run.token) > int(running.run.token)
    assert await queue.count("incomplete") == 1
