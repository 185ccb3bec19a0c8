"""Workers of the tests' own library, a hub and a queue: who paid for whom, and what is written down of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from agent.hub.catalogue import Catalogue
from agent.lanes import queue_name
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from pipelines import lifeline
from tests.agent.paying.service import MASTER, Service
from tests.agent.paying.tasks import LANE
from tests.conftest import REPO
from tests.hub.conftest import serving
from tests.hub.deliveries import AGENT, TOKEN

QUEUE = queue_name(AGENT, LANE)


class Fleet:
    """`worker()` starts one; `read(...)` enqueues a page of a user."""

    def __init__(self, redis: Redis, url: str, hub_url: str, service: Service, catalogue: Catalogue, log: Path) -> None:
        self.redis = redis
        self.catalogue = catalogue
        self.service = service
        self.log = log
        self.hub_url = hub_url
        self.queue = LaneQueue(redis, name=QUEUE)
        self.producer = RedisQueue(connect(url), name=QUEUE)
        self._url = url
        self.workers: list[asyncio.subprocess.Process] = []

    async def worker(self, *program: str, **more: str) -> asyncio.subprocess.Process:
        """Start one, of the tests' own tasks unless another module is named; it works when this returns."""
        environment = {
            **os.environ,
            "PHAZE_REDIS_URL": self._url,
            "PHAZE_HUB_URL": self.hub_url,
            "PHAZE_AGENT_ID": AGENT,
            "PHAZE_AGENT_TOKEN": TOKEN,
            "PHAZE_AGENT_LANE": LANE,
            "PHAZE_LOG_FORMAT": "json",
            "PHAZE_LOG_LEVEL": "debug",
            "PHAZE_BILLING_URL": self.service.url,
            "PHAZE_BILLING_TOKEN": MASTER,
            "PHAZE_LLM_URL": f"{self.service.url}/v1",
            "PHAZE_SHUTDOWN_GRACE": "0.2",
            "PYTHONPATH": str(REPO),
            **more,
        }
        before = self._starts()
        with self.log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *lifeline.command(sys.executable, "-m", *(program or ("tests.agent.paying.tasks",))),
                env=environment, cwd=REPO, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self.workers.append(process)

        async def started() -> bool:
            return self._starts() > before

        await self.until(started)
        return process

    def _starts(self) -> int:
        return self.log.read_bytes().count(b'"worker.started"') if self.log.exists() else 0

    async def read(self, record: str, user: str, form: str = "call", **more: Any) -> None:
        """Enqueue a page."""
        await self.producer.enqueue(
            "read_page", key=f"read_page:{record}", **{"version": "v1", "user_id": user, "form": form, **more}
        )

    async def until(self, condition: Callable[[], Awaitable[Any]], within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not await condition():
            assert time.monotonic() < deadline, self.log.read_text("utf-8", "replace")[-4000:]
            await asyncio.sleep(0.05)

    async def quiet(self) -> bool:
        """Whether nothing is left to run or to deliver."""
        return not (await self.queue.count("incomplete") or await self.redis.xlen(outbox_key(QUEUE)))

    async def close(self) -> None:
        for process in self.workers:
            if process.returncode is None:
                process.kill()
                await process.wait()
        await self.producer.disconnect()

    def recorded(self) -> dict[str, dict[str, Any]]:
        """record id -> its row in the catalogue."""
        return {row["record_id"]: row for row in self.catalogue.results("read_page", limit=10_000)}

    def calls(self) -> list[dict[str, str]]:
        """The calls that the provider answered: `payer`, `meant`, `record`."""
        found: list[dict[str, str]] = self.service.ledger()["calls"]
        return found


@contextlib.asynccontextmanager
async def fleet(redis: Redis, url: str, service: Service, catalogue: Catalogue, folder: Path) -> AsyncIterator[Fleet]:
    """With a hub on a real socket, and no worker yet."""
    async with serving(catalogue, redis) as hub_url:
        found = Fleet(redis, url, hub_url, service, catalogue, folder / "workers.log")
        try:
            yield found
        finally:
            await found.close()
