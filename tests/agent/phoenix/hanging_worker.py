"""A worker one of whose loops hangs, at once or when the file HANG appears: `python -m ... URL HEALTH HANG LOOP`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from agent import logs
from agent.phoenix import pulse, pump
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from agent.redis_client import connect

# A tenth of the real times.
pump.IDLE_WAIT = 1
pulse.FRESH = 3.0


async def work(_context: Any, *, seconds: float = 0.0) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "done"


async def main(url: str, health: Path, hang: Path, loop: str) -> None:
    queue = LaneQueue(connect(url), name="hanging")
    worker = LaneWorker(queue, [("work", work)], lane="hanging", concurrency=1, health=health)
    worker._pulse._stuck = 5.0
    holder, name = {"claims": (queue, "step"), "upkeep": (queue, "upkeep")}[loop]
    real = getattr(holder, name)

    async def perhaps(*args: Any, **options: Any) -> Any:
        if hang.exists():
            await asyncio.Event().wait()
        return await real(*args, **options)

    setattr(holder, name, perhaps)
    await worker.start()


if __name__ == "__main__":
    logs.configure("INFO", "json")
    url, health, hang, loop = sys.argv[1:]
    asyncio.run(main(url, Path(health), Path(hang), loop))
