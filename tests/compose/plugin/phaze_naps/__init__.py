"""A task that sleeps, for the containers of the tests: mounted as another package's, by its entry point."""

import asyncio
import time
from pathlib import Path
from typing import Any

from agent.phoenix.queue import LaneQueue
from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult

NOTES = Path("/notes/starts")
HANG = Path("/notes/hang")
"""While it is there, whoever would claim a job waits instead, for ever."""

_claim = LaneQueue.step


async def _claim_or_hang(self: LaneQueue, *arguments: Any, **options: Any) -> Any:
    if HANG.exists():
        await asyncio.Event().wait()
    return await _claim(self, *arguments, **options)


LaneQueue.step = _claim_or_hang  # type: ignore[method-assign]


class Nap(Payload):
    """How long, and whether the first start fails, or holds up the whole event loop."""

    seconds: float = 0.0
    fails_first: bool = False
    wedges_first: bool = False


class Rest(TaskResult):
    """How long it was."""

    seconds: float = 0.0


@task(Policy(timeout=lambda payload: 120.0))
async def nap(ctx: TaskContext, payload: Nap) -> Rest:
    """Sleep, and leave a line in the notes at the start."""
    before = NOTES.read_text("ascii").split() if NOTES.exists() else []
    with NOTES.open("a", encoding="ascii") as notes:
        notes.write(f"{ctx.record_id}\n")
    if payload.fails_first and ctx.record_id not in before:
        raise ConnectionError("no route to the pillow")
    if payload.wedges_first and ctx.record_id not in before:
        time.sleep(600)
    started = time.monotonic()
    await asyncio.sleep(payload.seconds)
    return Rest(seconds=time.monotonic() - started)
