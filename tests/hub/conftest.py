from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.async_api import expect
from redis.asyncio import Redis

from agent.hub.app import create_app
from agent.hub.catalogue import Catalogue
from agent.hub.server import listen, server_config, url_of
from agent.producer import Producer
from agent.settings import load_settings
from tests.hub.deliveries import AGENT, TOKEN
from tests.pipelines.conftest import make, samples

__all__ = ["catalogue", "client", "hub_url", "make", "samples"]

USER, PASSWORD = "ann", "correct horse"

expect.set_options(timeout=30_000)  # a page looks every two seconds, and a busy machine takes its time over a look


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    """An empty catalogue that knows one agent."""
    with Catalogue(tmp_path / "hub") as found:
        found.register_agent(AGENT, TOKEN)
        yield found


@contextlib.asynccontextmanager
async def serving(catalogue: Catalogue, redis: Redis, **settings: Any) -> AsyncIterator[str]:
    """A hub around `catalogue`, on a real socket; its address."""
    given = load_settings(hub_url="http://hub.home.example:8080", **settings)
    app = create_app(given, catalogue, redis=redis, producer=Producer(redis))
    server = uvicorn.Server(server_config(app, given.hub_proxies))
    listener = listen("127.0.0.1", 0)
    running = asyncio.create_task(server._serve([listener]))
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.01)
    yield url_of(listener)
    server.should_exit = True
    await running
    listener.close()


@pytest.fixture
async def hub_url(catalogue: Catalogue, redis: Redis) -> AsyncIterator[str]:
    """A hub without a login."""
    async with serving(catalogue, redis) as url:
        yield url


@pytest.fixture
async def locked_url(catalogue: Catalogue, redis: Redis) -> AsyncIterator[str]:
    """A hub with a login: USER and PASSWORD."""
    async with serving(catalogue, redis, hub_user=USER, hub_password=PASSWORD) as url:
        yield url


@pytest.fixture
async def stranger(locked_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody with nothing in hand, at a hub with a login."""
    async with httpx.AsyncClient(base_url=locked_url, timeout=10) as found:
        yield found


@pytest.fixture
async def client(hub_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """The agent, as an HTTP client with its token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=hub_url, headers=headers, timeout=10) as found:
        yield found
