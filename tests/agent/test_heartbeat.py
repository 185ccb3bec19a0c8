"""A beat means that the agent can work, and nothing delays it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import pytest
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from agent import heartbeat
from agent.heartbeat import Heartbeat
from agent.redis_client import connect
from agent.settings import load_settings
from tests.control_plane import ControlPlane


def beating(plane: ControlPlane, redis: Redis) -> Heartbeat:
    settings = load_settings(agent_id="test", agent_lane="analyze", hub_url=plane.url)
    return Heartbeat(settings, RedisQueue(redis, name="phaze-agent-test-analyze"), "t0ken")


async def test_a_beat_tells_the_lanes_depth(plane: ControlPlane, redis: Redis) -> None:
    beat = beating(plane, redis)
    await RedisQueue(redis, name="phaze-agent-test-analyze").enqueue("process_file")
    assert await beat.beat()
    assert plane.beats[0]["queue_depth"] == 1
    await beat.close()


async def test_a_hung_server_delays_no_beat_and_after_three_probes_none_is_sent(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "PROBE_TIMEOUT", 0.2)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    redis = connect(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
    beat = beating(plane, redis)
    started = time.monotonic()
    sent = [await beat.beat() for _ in range(4)]
    assert time.monotonic() - started < 20
    assert sent == [True, True, False, False]
    assert [said["queue_depth"] for said in plane.beats] == [None, None]
    await beat.close()
    await redis.aclose()
    silent.close()
    await silent.wait_closed()


async def test_a_hub_that_takes_a_beat_and_never_answers_holds_up_nothing(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a little again and again, so that no single read takes long."""
    monkeypatch.setattr(heartbeat, "POST_TIMEOUT", 0.5)
    monkeypatch.setattr(heartbeat, "PERIOD", 0.1)
    asked, ended = 0, list[asyncio.StreamWriter]()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        with contextlib.suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        ended.append(writer)

    hub = await asyncio.start_server(trickle, "127.0.0.1", 0)
    plane = ControlPlane()
    plane.url = f"http://127.0.0.1:{hub.sockets[0].getsockname()[1]}"
    beat = beating(plane, redis)
    running = asyncio.create_task(beat.run())
    async with asyncio.timeout(30):
        while asked < 3:
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait([running])
    await beat.close()
    async with asyncio.timeout(30):
        while len(ended) < asked:
            await asyncio.sleep(0.05)
    hub.close()


async def test_the_schedule_does_not_slip_by_what_a_beat_takes(
    plane: ControlPlane, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "PERIOD", 1.0)
    beat, begun = beating(plane, redis), []

    async def slow() -> bool:
        begun.append(time.monotonic())
        await asyncio.sleep(0.9)
        return True

    monkeypatch.setattr(beat, "beat", slow)
    running = asyncio.create_task(beat.run())
    async with asyncio.timeout(60):
        while len(begun) < 5:
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait([running])
    await beat.close()
    gaps = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert min(gaps) < 1.4, "1.0 apart, not 1.9"


async def test_a_fault_of_ours_does_not_end_the_beats(
    plane: ControlPlane, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "PERIOD", 0.05)
    beat = beating(plane, redis)

    failures = [ArithmeticError("a bug")]

    async def fail_once() -> int | None:
        if failures:
            raise failures.pop()
        return 7

    monkeypatch.setattr(beat, "_depth", fail_once)
    running = asyncio.create_task(beat.run())
    await plane.until(lambda: len(plane.beats) > 1)
    assert not failures
    running.cancel()
    await asyncio.wait([running])
    await beat.close()


async def test_a_hub_that_is_away_is_not_an_error(redis: Redis) -> None:
    plane = ControlPlane()
    plane.url = "http://127.0.0.1:1"
    beat = beating(plane, redis)
    assert not await beat.beat()
    await beat.close()
