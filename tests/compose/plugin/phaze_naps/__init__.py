"""A task that sleeps, for the containers of the tests: mounted as another package's, by its entry point."""

import asyncio
import time
from pathlib import Path

from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult

NOTES = Path("/notes/starts")


class Nap(Payload):
    """How long, and whether the first start fails."""

    seconds: float = 0.0
    fails_first: bool = False


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
    started = time.monotonic()
    await asyncio.sleep(payload.seconds)
    return Rest(seconds=time.monotonic() - started)
