"""A worker of one document lane: `python -m tests.agent.document_workers`. It writes down whenever it begins a record;
the record `stuck in <lane>` it holds for ever when that first comes, so as to be killed over it. Leases are short."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
from pathlib import Path
from typing import Any

from agent.processors.base import BaseProcessor
from agent.processors.grouper import Grouper
from agent.processors.parser import Parser
from agent.processors.router import Router
from tests.chaos.tasks import append, hurry


class Watched(BaseProcessor):
    """Before the real one."""

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        trail = Path(os.environ["TRAIL"])
        begun = {"service": self.service_name, "record": record_id}
        stuck = record_id == f"stuck in {self.service_name}" and json.dumps(begun) not in trail.read_text("utf-8")
        append(str(trail), **begun)
        await asyncio.sleep(3600 if stuck else random.uniform(0.0, 0.2))
        return await super().process(record_id, user_id, data)


class WatchedRouter(Watched, Router):
    """The lane's processor."""


class WatchedParser(Watched, Parser):
    """The lane's processor."""


class WatchedGrouper(Watched, Grouper):
    """The lane's processor."""


if __name__ == "__main__":
    from agent import lanes
    from agent import worker as room

    for lane in lanes.DOCUMENT_LANES:
        lanes.LANE_TASKS[lane][lane] = f"tests.agent.document_workers:Watched{lane.title()}"
    hurry(lease=2.0, sweep=0.5, wedged=60.0)
    room.Bridge = functools.partial(room.Bridge, idle=3.0)  # type: ignore[assignment,misc]
    room.worker()
