from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from redis.asyncio import Redis

from agent.hub.app import create_app
from agent.hub.catalogue import Catalogue
from agent.hub.server import listen, url_of
from agent.producer import Producer
from agent.settings import load_settings
from tests.hub.deliveries import AGENT, TOKEN
from tests.pipelines.conftest import make, samples

__all__ = ["catalogue", "client", "hub_url", "make", "samples"]


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    """An empty catalogue that knows one agent."""
    with Catalogue(tmp_path / "hub") as found:
        found.register_agent(AGENT, TOKEN)
        yield found


@pytest.fixture
async def hub_url(catalogue: Catalogue, redis: Redis) -> AsyncIterator[str]:
    """A hub around `catalogue`, on a real socket."""
    app = create_app(
        load_settings(hub_url="http://hub.home.example:8080"), catalogue, redis=redis, producer=Producer(redis)
    )
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server._serve([listener]))
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0.01)
    yield url_of(listener)
    server.should_exit = True
    await serving
    listener.close()


@pytest.fixture
async def client(hub_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """The agent, as an HTTP client with its token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=hub_url, headers=headers, timeout=10) as found:
        yield found
