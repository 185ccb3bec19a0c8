"""The embedded server keeps what it acknowledged, and says why it does not start."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from agent.redis_client import connect
from agent.valkey import Valkey, ValkeyError


async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    server = Valkey(tmp_path / "v")
    await server.start()
    client = connect(server.url)
    for i in range(200):
        await client.rpush("kept", i)
    before = server.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await client.aclose()
    async with asyncio.timeout(30):
        while server.pid in (None, before) or not await server.answers():
            await asyncio.sleep(0.05)
    client = connect(server.url)
    assert await client.llen("kept") == 200
    info = await client.info()
    assert info["maxmemory_policy"] == "noeviction"
    await client.aclose()
    await server.stop()


async def test_nobody_else_may_open_its_socket_and_it_listens_on_no_port(tmp_path: Path) -> None:
    server = Valkey(tmp_path / "v")
    await server.start()
    assert server.socket.stat().st_mode & 0o077 == 0
    client = connect(server.url)
    assert (await client.config_get("port"))["port"] == "0"
    await client.aclose()
    await server.stop()
    assert server.pid is None


@pytest.mark.parametrize("temporary", ["t", 'a "b" \\n #\udcff', "long" * 30])
async def test_a_path_too_long_for_a_socket_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short, temporary)
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", os.fspath(folder))
        await _starts_and_leaves_nothing(Valkey(tmp_path / ("long" * 30)))


async def _starts_and_leaves_nothing(server: Valkey) -> None:
    await server.start()
    assert await server.answers()
    place = server.socket.parent
    await server.stop()
    assert not place.exists()


async def test_a_damaged_file_is_an_error_with_the_servers_reason(tmp_path: Path) -> None:
    server = Valkey(tmp_path / "v")
    await server.start()
    client = connect(server.url)
    await client.set("a", "b")
    await client.aclose()
    await server.stop()
    for file in (tmp_path / "v" / "appendonlydir").glob("*.manifest"):
        file.write_text("nonsense\n", "utf-8")
    with pytest.raises(ValkeyError, match=r"the embedded Valkey in .* did not start; .*It said: .+"):
        await server.start()
