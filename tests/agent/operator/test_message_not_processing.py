"""runbooks/message-not-processing.md as it stands: every command is typed, on a real server with a real worker."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from tests import consoles
from tests.agent.test_plugins import distribution, until
from tests.conftest import REPO
from tests.servers import Local
from tests.test_docs_pipeline import typing

BOOK = REPO / "runbooks" / "message-not-processing.md"
STREAM, GROUP = "phoenix:genetics:input", "genetics-group"

GENETICS = """
import asyncio, os
from agent.processors import BaseProcessor

class Genetics(BaseProcessor):
    async def process(self, record_id, user_id, data):
        while os.path.exists(os.environ["SLOW"]):
            await asyncio.sleep(0.05)
        if record_id == "r-19":
            await self.pages(record_id)
        return {"record": record_id}
"""

WORKER = """
from tests.chaos.tasks import hurry
hurry(2.0, 0.3, 60.0)
from agent.cli import main
main(["worker"])
"""


class World:
    """What happens around the operator."""

    def __init__(self, server: Local, site: Path, folder: Path) -> None:
        self.redis = Redis.from_url(server.url)
        self.slow = folder / "slow"
        self.environment = {**typing(server.url, site, REPO), "SLOW": str(self.slow)}
        self.log = folder / "worker.log"
        self.worker: subprocess.Popen[bytes] | None = None

    def ask(self, record_id: str) -> None:
        self.redis.xadd(STREAM, {"record_id": record_id, "user_id": "u-9"})

    def start(self) -> None:
        self.slow.touch()
        own = {"PHAZE_AGENT_LANE": "genetics", "PHAZE_AGENT_TOKEN": "t", "PHAZE_HUB_URL": "http://127.0.0.1:9"}
        with self.log.open("wb") as output:
            argv = [sys.executable, "-c", WORKER]
            self.worker = subprocess.Popen(argv, env={**self.environment, **own}, stdout=output, stderr=output)

    def quick(self) -> None:
        self.slow.unlink()

    def dies(self) -> None:
        """A bridge reads r-18 and is gone. Ours is looking away: it has nothing of its own to do with it."""
        self.redis.sadd("phoenix:paused", "genetics")
        until(lambda: self._nobody_reads(), lambda: "somebody reads")
        self.ask("r-18")
        self.redis.xreadgroup(GROUP, "gone-7-0", {STREAM: ">"})
        self.redis.srem("phoenix:paused", "genetics")

    def _nobody_reads(self) -> bool:
        return not any(client["cmd"] == "xreadgroup" for client in self.redis.client_list())

    def lose(self) -> None:
        self.ask("r-19")

    def end(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait(30)
        self.redis.close()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed (tests/system-packages)")
async def test_every_command_of_the_book_says_what_it_says(start_server: Callable[..., Local], tmp_path: Path) -> None:
    site = tmp_path / "site"
    distribution(site, "phaze-genetics", "[phaze.lanes.genetics]\ngenetics = slow_genetics:Genetics\n")
    (site / "slow_genetics.py").write_text(GENETICS, "utf-8")
    world = World(start_server(), site, tmp_path)
    world.ask("r-17")
    world.redis.set("api_key:user:u-9", "sk-of-u-9")
    events = {
        "a worker of genetics starts, and takes long for r-17": world.start,
        "genetics is quick again": world.quick,
        "a bridge takes r-18, and dies": world.dies,
        "r-19 is asked for, and its pages are not there": world.lose,
    }
    try:
        await asyncio.to_thread(consoles.run, BOOK, world.environment, events)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{world.log.read_text('utf-8')[-3000:]}") from None
    finally:
        world.end()
