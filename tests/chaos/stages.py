"""A pipeline of three stages that chaos is made around, and a worker process of one: `python -m tests.chaos.stages`."""

from __future__ import annotations

import asyncio
import functools
import os
import random
from typing import Any, ClassVar

from agent import lanes
from agent.processors import BaseProcessor
from pipelines.context import Policy
from tests.chaos.tasks import append, hurry

STAGES = {"one": "meta", "two": "io", "three": "fingerprint"}
"""service -> the lane that is its own here."""


class Hop(BaseProcessor):
    """Writes down that it runs, takes a moment, and hands on which runs the record went through."""

    policy = Policy(timeout=lambda payload: 60.0)
    longest: ClassVar[float] = 0.04

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        hops = [*data.get("hops", []), [self.service_name, self.context.token]]
        append(os.environ["CHAOS_TRAIL"], service=self.service_name, record=record_id, token=self.context.token)
        await self.work(record_id)
        await asyncio.sleep(random.uniform(0.005, self.longest))
        return {"hops": hops, "n": data["n"]}

    async def work(self, record_id: str) -> None:
        """What this stage does besides."""


class One(Hop):
    next_service = "two"

    async def work(self, record_id: str) -> None:
        self.keep_pages([{"number": 1, "text": record_id}])


class Two(Hop):
    next_service = "three"
    last_to_read_pages = True

    async def work(self, record_id: str) -> None:
        assert await self.pages(record_id) == [{"number": 1, "text": record_id}]


class Three(Hop):
    pass


if __name__ == "__main__":
    for service, lane in STAGES.items():
        lanes.LANE_TASKS[lane].clear()
        lanes.LANE_TASKS[lane][service] = f"tests.chaos.stages:{service.title()}"

    from agent import worker as room

    hurry(lease=2.0, sweep=0.5, wedged=60.0)
    room.Bridge = functools.partial(room.Bridge, idle=3.0)  # type: ignore[assignment,misc]
    room.worker()
