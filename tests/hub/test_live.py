"""A record's progress as server-sent events: from a real hub, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from agent.hub import live
from agent.hub.catalogue import Catalogue
from agent.phoenix import keys
from agent.phoenix.streams import progress_message
from tests.hub.conftest import serving
from tests.hub.test_server import Hub

PATH = "/api/progress/r1"


async def told(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The events, as they come."""
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def listeners(redis: Redis, record_id: str) -> int:
    """Connections that listen to a record on the server."""
    ((_, count),) = await redis.pubsub_numsub(keys.progress_channel(record_id))
    return int(count)


async def until_listened(redis: Redis, record_id: str, wanted: int) -> None:
    async with asyncio.timeout(10):
        while await listeners(redis, record_id) != wanted:
            await asyncio.sleep(0.02)


async def test_what_was_recorded_is_told_first_and_then_what_becomes_of_it(catalogue: Catalogue, redis: Redis) -> None:
    marker = {"timestamp": 12.5, "service": "push_file", "outcome": "rejected", "reason": "too-large", "result": {}}
    await redis.set(keys.marker_key("push_file", "a/b:1"), json.dumps(marker))
    await redis.set(keys.marker_key("s3_upload", "a/b:1"), "somebody wrote over it")
    async with serving(catalogue, redis) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        async with client.stream("GET", "/api/progress/a/b:1") as answer:
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            events = told(answer)
            first = await anext(events)
            assert (first["service"], first["state"], first["note"], first["at"]) == (
                "push_file", "rejected", "too-large", 12.5,
            )  # fmt: skip
            await redis.publish(
                keys.progress_channel("a/b:1"), progress_message("router", "a/b:1", "running", progress=0.5)
            )
            async with asyncio.timeout(10):
                assert (await anext(events))["progress"] == 0.5
        await until_listened(redis, "a/b:1", 0)


async def test_nobody_who_does_not_listen_costs_the_server_anything(catalogue: Catalogue, redis: Redis) -> None:
    async with serving(catalogue, redis):
        assert await redis.pubsub_channels("phoenix:progress:*") == []
        assert (await redis.pubsub_numpat()) == 0


async def test_no_more_than_so_many_listen_and_who_leaves_makes_room(
    catalogue: Catalogue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST", 1)
    async with serving(catalogue, redis) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        async with client.stream("GET", PATH) as answer:
            await anext(answer.aiter_lines())
            refused = await client.get(PATH)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        await until_listened(redis, "r1", 0)
        async with client.stream("GET", PATH) as answer:
            assert answer.status_code == 200


async def test_it_wants_a_login_like_every_page(catalogue: Catalogue, redis: Redis) -> None:
    async with serving(catalogue, redis, hub_password="secret") as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get(PATH)).status_code == 401


async def test_a_hub_that_ends_ends_its_answers_at_once(tmp_path: Path, valkey_url: str, redis: Redis) -> None:
    hub = Hub(tmp_path / "hub", valkey_url)
    url = await asyncio.to_thread(hub.url)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client, client.stream("GET", PATH) as answer:
        await until_listened(redis, "r1", 1)
        hub.process.send_signal(signal.SIGTERM)
        async for _ in answer.aiter_lines():  # to its proper end: a cut one would raise
            pass
    said = await asyncio.to_thread(hub.end)
    assert "hub.stopped" in said
    assert "timeout graceful shutdown exceeded" not in said


async def test_a_connection_to_the_server_that_breaks_is_made_anew(catalogue: Catalogue, redis: Redis) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(catalogue, redis))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        answer = await stack.enter_async_context(client.stream("GET", PATH))
        await until_listened(redis, "r1", 1)
        await redis.client_kill_filter(_type="pubsub")
        await until_listened(redis, "r1", 1)
        await redis.publish(keys.progress_channel("r1"), progress_message("router", "r1", "done"))
        async with asyncio.timeout(10):
            assert (await anext(told(answer)))["state"] == "done"
