"""What was settled reaches the control plane, whatever happens on the way, and stays until it is acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError
from structlog.testing import capture_logs

from agent.cancelling import end
from agent.phoenix.outbox import Entry, outbox_key, refused_key
from agent.phoenix.relay import Relay
from agent.redis_client import connect
from agent.valkey import Valkey
from tests.chaos.proxy import Proxy
from tests.control_plane import ControlPlane, refuse, status
from tests.servers import Local

QUEUE = "phaze-agent-test-meta"


def entry(record_id: str, **fields: object) -> Entry:
    values = {"service": "extract_file_metadata", "record_id": record_id, "version": "v1", "token": 1}
    return Entry.model_validate({**values, "outcome": "done", "result": {"title": "É\u2028 \U0001f3b5"}, **fields})


@pytest.fixture
async def relay(redis: Redis, plane: ControlPlane) -> AsyncIterator[Relay]:
    relay = Relay(redis, QUEUE, hub_url=plane.url, agent_id="test", token="t0ken")
    yield relay
    await relay.close()


async def put(redis: Redis, *records: str, **fields: object) -> None:
    for record in records:
        await redis.xadd(outbox_key(QUEUE), {b"entry": entry(record, **fields).model_dump_json()})


async def test_entries_arrive_in_order_with_the_agents_token_and_then_leave_the_outbox(
    redis: Redis, plane: ControlPlane, relay: Relay
) -> None:
    await put(redis, "1", "2", "3")
    assert await relay.drain(10)
    assert [e["record_id"] for e in plane.entries] == ["1", "2", "3"]
    assert plane.entries[0] == json.loads(entry("1").model_dump_json())
    assert plane.requests[0]["authorization"] == "Bearer t0ken"
    assert await redis.xlen(outbox_key(QUEUE)) == 0


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
async def test_an_error_acknowledges_nothing(redis: Redis, plane: ControlPlane, relay: Relay, code: int) -> None:
    await put(redis, "1", "2")
    plane.answers = [status(code, "no")]
    assert not await relay.drain(10)
    assert await redis.xlen(outbox_key(QUEUE)) == 2
    assert await relay.drain(10)
    assert [e["record_id"] for e in plane.entries] == ["1", "2"]


async def test_an_answer_that_makes_no_sense_acknowledges_nothing(
    redis: Redis, plane: ControlPlane, relay: Relay
) -> None:
    await put(redis, "1")
    plane.answers = [status(200, "<html>a proxy's page</html>"), status(200, '["?"]'), status(200, '{"refused": [7]}')]
    for _ in range(3):
        assert not await relay.drain(10)
    assert await redis.xlen(outbox_key(QUEUE)) == 1


async def test_a_refused_entry_is_kept_with_its_reason_and_the_others_go_on(
    redis: Redis, plane: ControlPlane, relay: Relay
) -> None:
    await put(redis, "1", "bad", "3")
    plane.answers = [refuse(lambda e: e["record_id"] == "bad", "no such record")]
    assert await relay.drain(10)
    assert [e["record_id"] for e in plane.entries] == ["1", "3"]
    ((_, kept),) = await redis.xrange(refused_key(QUEUE))
    assert kept[b"reason"] == b"no such record"
    assert json.loads(kept[b"entry"])["record_id"] == "bad"
    assert await redis.xlen(outbox_key(QUEUE)) == 0


async def test_a_batch_too_large_for_the_control_plane_is_halved_down_to_the_one(
    redis: Redis, plane: ControlPlane, relay: Relay
) -> None:
    await put(redis, *map(str, range(5)))
    await put(redis, "huge", result={"text": "x" * 100_000})
    await put(redis, "after")

    def too_large(body: dict[str, object]) -> bool:
        return len(json.dumps(body)) > 50_000

    plane.limit = too_large
    assert await relay.drain(10)
    assert [e["record_id"] for e in plane.entries] == ["0", "1", "2", "3", "4", "after"]
    ((_, kept),) = await redis.xrange(refused_key(QUEUE))
    assert json.loads(kept[b"entry"])["record_id"] == "huge"


async def test_two_thousand_entries_go_in_bounded_batches(redis: Redis, plane: ControlPlane, relay: Relay) -> None:
    async with redis.pipeline(transaction=False) as pipe:
        for i in range(2_000):
            pipe.xadd(outbox_key(QUEUE), {b"entry": entry(str(i)).model_dump_json()})
        await pipe.execute()
    assert await relay.drain(60)
    assert [int(e["record_id"]) for e in plane.entries] == list(range(2_000))
    assert max(len(request["entries"]) for request in plane.requests) <= 200


@pytest.mark.parametrize(
    "poison",
    [
        b"{not json",
        b"",
        b"[1]",
        b"{}}, {",
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": "\xff"}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
async def test_an_entry_nobody_can_decode_does_not_stop_the_others(
    redis: Redis, plane: ControlPlane, relay: Relay, poison: bytes
) -> None:
    await put(redis, "0")
    await redis.xadd(outbox_key(QUEUE), {b"entry": poison})
    await redis.xadd(outbox_key(QUEUE), {b"other": b"field"})
    await put(redis, "1")
    assert await relay.drain(10)
    assert [e["record_id"] for e in plane.entries] == ["0", "1"]
    assert await redis.xlen(refused_key(QUEUE)) == 2


async def test_an_entry_that_spoils_every_body_it_is_in_is_found_by_halving(
    redis: Redis, plane: ControlPlane, relay: Relay
) -> None:
    await put(redis, *map(str, range(6)))
    await put(redis, "poison")
    await put(redis, *map(str, range(6, 12)))
    plane.spoilt = lambda body: any(e["record_id"] == "poison" for e in body["entries"])
    assert await relay.drain(10)
    assert [e["record_id"] for e in plane.entries] == [str(i) for i in range(12)]
    assert await redis.xlen(refused_key(QUEUE)) == 1


async def test_a_fault_of_ours_does_not_end_the_delivery(
    redis: Redis, plane: ControlPlane, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, faults = relay.deliver_batch, [ZeroDivisionError("a bug")]

    async def faulty(*, wait: float) -> bool | None:
        if faults:
            raise faults.pop()
        return await right(wait=wait)

    monkeypatch.setattr(relay, "deliver_batch", faulty)
    await put(redis, "1")
    running = asyncio.create_task(relay.run())
    await plane.until(lambda: len(plane.entries) == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_loop_survives_a_control_plane_that_comes_late(redis: Redis) -> None:
    from tests.control_plane import serve

    async with serve() as plane:
        url = plane.url
    relay = Relay(redis, QUEUE, hub_url=url, agent_id="test", token="t")  # nobody listens there any more
    running = asyncio.create_task(relay.run())
    await put(redis, "1")
    await asyncio.sleep(0.5)
    assert not running.done()
    assert await redis.xlen(outbox_key(QUEUE)) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await relay.close()


async def test_the_loop_delivers_at_once(redis: Redis, plane: ControlPlane, relay: Relay) -> None:
    running = asyncio.create_task(relay.run())
    await asyncio.sleep(0.2)
    await put(redis, "1")
    await plane.until(lambda: len(plane.entries) == 1, within=3.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_of_two_workers_one_delivers_and_the_other_takes_over(
    redis: Redis, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.phoenix.relay.TURN", 1.0)
    monkeypatch.setattr("agent.phoenix.relay.WAIT", 0.3)
    first, second = (Relay(redis, QUEUE, hub_url=plane.url, agent_id="test", token="t0ken") for _ in range(2))
    one = asyncio.create_task(first.run())
    await asyncio.sleep(0.2)
    other = asyncio.create_task(second.run())
    for number in range(20):
        await put(redis, str(number))
        await asyncio.sleep(0.02)
    await plane.until(lambda: len(plane.entries) >= 20)
    assert sorted(int(e["record_id"]) for e in plane.entries) == list(range(20)), "each was sent once"
    assert (first.delivered, second.delivered) == (20, 0)
    one.cancel()  # and it never says that it is gone
    await asyncio.gather(one, return_exceptions=True)
    await put(redis, "20")
    await plane.until(lambda: len(plane.entries) == 21)
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    await second.close()
    assert await first.drain(5), "the turn was given back, and nothing is left"
    await first.close()


@contextlib.asynccontextmanager
async def delivering(relay: Relay) -> AsyncIterator[None]:
    running = asyncio.create_task(relay.run())
    yield
    await end([running])


async def test_a_server_that_is_full_keeps_no_result_back(
    start_server: Callable[..., Local], plane: ControlPlane
) -> None:
    redis = connect(start_server().url)
    await put(redis, "1", "bad", "3")
    await redis.config_set("maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        await put(redis, "4")
    plane.answers = [refuse(lambda e: e["record_id"] == "bad", "no such record")]
    relay = Relay(redis, QUEUE, hub_url=plane.url, agent_id="test", token="t0ken")
    async with delivering(relay):
        async with asyncio.timeout(30):
            while await redis.xlen(outbox_key(QUEUE)):
                await asyncio.sleep(0.05)
    assert [entry["record_id"] for entry in plane.entries] == ["1", "3"]
    assert await redis.xlen(refused_key(QUEUE)) == 1
    await relay.close()
    await redis.aclose()


async def test_what_keeps_the_relay_from_its_outbox_is_said_with_the_remedy(redis: Redis, relay: Relay) -> None:
    await redis.set(outbox_key(QUEUE), "somebody else's")
    with capture_logs() as lines:
        async with delivering(relay):
            await asyncio.sleep(0.5)
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("relay.waiting", "warning")
    assert outbox_key(QUEUE) in line["error"]
    assert "rename or delete it" in line["remedy"]


@pytest.mark.parametrize("thin", ["to the queue server", "to the control plane"])
async def test_a_thin_line_carries_many_large_results_and_one_that_takes_longer_than_any_time_out(
    valkey_server: Valkey, redis: Redis, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, thin: str
) -> None:
    monkeypatch.setattr("agent.phoenix.relay.REPLY_TIMEOUT", 0.5)
    monkeypatch.setattr("agent.phoenix.relay.REQUEST_TIMEOUT", 0.5)
    server, hub = Proxy(valkey_server.socket), Proxy(urlsplit(plane.url).port or 0)
    narrow = connect(await server.start())
    await put(redis, *map(str, range(20)), result={"text": "x" * 50_000})
    await put(redis, "huge", result={"text": "x" * 1_500_000})
    await put(redis, *map(str, range(20, 40)), result={"text": "x" * 50_000})
    url = (await hub.start()).replace("redis:", "http:")
    (server if thin == "to the queue server" else hub).rate = 2e6
    relay = Relay(narrow, QUEUE, hub_url=url, agent_id="test", token="t0ken")
    async with delivering(relay):
        await plane.until(lambda: len({entry["record_id"] for entry in plane.entries}) == 41, 60)
    await relay.close()
    assert server.answered < 3 * 3_500_000, "read once, but for what came too late"
    await narrow.aclose()
    await server.stop()
    await hub.stop()


@pytest.mark.parametrize("code", [408, 504])
async def test_a_control_plane_for_which_it_takes_too_long_is_sent_less_at_once(
    redis: Redis, plane: ControlPlane, relay: Relay, code: int
) -> None:
    plane.answers = [status(code, "too slow")]
    await put(redis, *map(str, range(20)), result={"text": "x" * 10_000})
    async with delivering(relay):
        await plane.until(lambda: len(plane.entries) == 20)
    assert [len(request["entries"]) for request in plane.requests][:2] == [20, 10]
    assert [int(entry["record_id"]) for entry in plane.entries] == list(range(20))


async def test_of_results_larger_than_a_batch_no_more_is_read_than_is_sent(
    valkey_server: Valkey, redis: Redis, plane: ControlPlane
) -> None:
    proxy = Proxy(valkey_server.socket)
    through = connect(await proxy.start())
    await put(redis, *map(str, range(8)), result={"text": "x" * 5_000_000})
    relay = Relay(through, QUEUE, hub_url=plane.url, agent_id="test", token="t0ken")
    assert await relay.deliver_batch()
    assert len(plane.entries) == 1
    assert proxy.answered < 6_000_000
    await relay.close()
    await through.aclose()
    await proxy.stop()
