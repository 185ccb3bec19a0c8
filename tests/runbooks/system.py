"""The agent of a runbook as `phaze up` runs it, and the shell of its operator."""

from __future__ import annotations

import asyncio
import os
import shutil
import sysconfig
import time
import venv
import wave
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from agent.producer import Producer
from agent.redis_client import connect
from pipelines.payload import Payload, encode_path
from tests.conftest import REPO
from tests.runbooks.runner import Shell, follow, read

BOOKS = REPO / "runbooks"


class Installation:
    """A folder with an agent in it, started and stopped by the runbooks' own words; `follow` types a book."""

    def __init__(self, folder: Path, **env: str) -> None:
        must_have("valkey-cli", "redis-cli")
        self.folder = folder
        self.data = folder / "data"
        self.music = folder / "music"
        for made in (self.data, self.music):
            made.mkdir(parents=True)
        (folder / "runbooks").symlink_to(BOOKS)
        environment(folder / ".venv")
        path = f"{folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        own = {
            "PATH": path,
            "HOME": str(folder),
            "PHAZE_DATA_DIR": str(self.data),
            "PHAZE_HUB_PORT": "0",
            "PHAZE_SHUTDOWN_GRACE": "1",
        }
        self.shell = Shell(folder, {**os.environ, **own, "COLUMNS": "100", **env})
        self.type(". runbooks/up.sh")

    def type(self, command: str) -> str:
        """What a command says that must end well."""
        said, code = self.shell.run(command)
        assert code == 0, f"{command}: {code}\n{said}"
        return said

    def until(self, command: str, said: str) -> None:
        """Type a command until it says this among other things."""
        deadline = time.monotonic() + 240
        while said not in (found := self.type(command)):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def follow(self, book: str, world: Mapping[str, Callable[[], None]] | None = None) -> None:
        """Do what a book says."""
        follow(read((BOOKS / f"{book}.md").read_text("utf-8"), "up"), self.shell, world)

    def put(self, task: str, jobs: Mapping[str, Payload]) -> None:
        """Enqueue as any producer does: record id -> payload."""

        async def enqueue(producer: Producer) -> None:
            for record_id, payload in jobs.items():
                assert await producer.enqueue("local", task, record_id, payload)

        self._ask(enqueue)

    def hurry(self, task: str) -> None:
        """Let what waits for its next attempt on the task's lane run now."""

        async def hurry(producer: Producer) -> None:
            await producer.queue("local", task).hurry()

        self._ask(hurry)

    def _ask(self, ask: Callable[[Producer], Awaitable[None]]) -> None:
        async def run() -> None:
            producer = Producer(connect((self.data / "redis.url").read_text("utf-8").strip()))
            try:
                await ask(producer)
            finally:
                await producer.close()

        asyncio.run(run())

    def scan(self, *folders: Path) -> None:
        """Ask the hub for a scan."""
        url = (self.data / "hub.url").read_text("utf-8").strip()
        token = (self.data / "agent.token").read_text("ascii").strip()
        roots = [encode_path(folder) for folder in folders]
        headers = {"Authorization": f"Bearer {token}"}
        httpx.post(f"{url}/api/scans", json={"agent_id": "local", "roots": roots}, headers=headers).raise_for_status()

    def close(self) -> None:
        """End everything."""
        self.shell.close()


def must_have(*programs: str) -> None:
    """Skip the test where none of these programs is there; fail it where CI is set."""
    if not any(shutil.which(program) for program in programs):
        reason = f"there is no {' or '.join(programs)}; tests/system-packages installs it"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def environment(folder: Path) -> None:
    """An environment as `make up` makes it, in which the packages of this one are found: into it one may install."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    own = sysconfig.get_path("purelib")
    (site / "these.pth").write_text(f"import site; site.addsitedir({own!r})\n", "utf-8")
    program = folder / "bin/phaze"
    program.write_text(f"#!{folder}/bin/python\nfrom agent.cli import main\n\nmain()\n", "utf-8")
    program.chmod(0o755)


def sound(path: Path, seconds: float = 3.0) -> Path:
    """A file of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(len(path.name)).integers(-3000, 3000, int(22_050 * seconds), np.int16)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 22_050, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return path


def about(path: Path, root: Path, *, version: str = "v1", size: int | None = None) -> dict[str, Any]:
    """What the payload of every file task says of a file, also of one that is not there."""
    return {
        "version": version,
        "path": encode_path(path),
        "root": encode_path(root),
        "size": path.stat().st_size if size is None else size,
    }
