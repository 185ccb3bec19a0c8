"""A worker process for tests: `python -m tests.agent.phoenix.worker_process ENGINE URL OPTIONS`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from agent import logs
from agent.redis_client import connect
from tests.agent.phoenix.engines import Lanes, Misplaced, Note, Saq


async def work(context: Any, *, note: str, seconds: float = 0.0, how: str = "sleep") -> str:
    """Sleep, or `hang` the first time, or `block` the event loop the first time; or `die`, or `wait` for `go`."""
    page = Note(Path(note))
    first = not page.lines("start")
    page.write("start")
    if how == "block" and first:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            page.write("beat")
    elif how == "hang" and first:
        await asyncio.sleep(600)
    elif how == "wait":
        while not page.lines("go"):
            await asyncio.sleep(0.05)
    else:
        await asyncio.sleep(seconds)
    if how == "die":
        os._exit(9)
    page.write("end")
    return "first" if first else "later"


async def _say_ready(context: Any) -> None:
    sys.stderr.write("worker is ready\n")


async def main() -> None:
    engine = {engine.name: engine for engine in (Saq(), Lanes(), Misplaced())}[sys.argv[1]]
    options = json.loads(sys.argv[3])
    engine.lease = options.pop("lease", engine.lease)
    redis = Redis.from_url(sys.argv[2]) if engine.name == "saq" else connect(sys.argv[2])
    queue = engine.queue(redis)
    await engine.worker(queue, [("work", work)], startup=_say_ready, **options).start()


if __name__ == "__main__":
    logs.configure("INFO", "json", lane="faults", agent="test")
    asyncio.run(main())
