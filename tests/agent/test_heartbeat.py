"""A beat means that the agent can work, and nothing delays it."""

from __future__ import annotations

import asyncio
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


async def test_a_hub_that_is_away_is_not_an_error(redis: Redis) -> None:
    plane = ControlPlane()
    plane.url = "http://127.0.0.1:1"
    beat = beating(plane, redis)
    assert not await beat.beat()
    await beat.close()
