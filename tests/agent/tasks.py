"""Tasks for tests of the engine, and a worker process that runs them: `python -m tests.agent.tasks`."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any

from agent import heartbeat, lanes
from pipelines.context import Policy, TaskContext, task
from pipelines.errors import InputRejected, RecordNotFoundError, TryLater
from pipelines.payload import Payload, TaskResult
from tests.agent import child_functions as work


class Wish(Payload):
    """What a test wants to happen."""

    do: str = "echo"
    seconds: float = 0.0
    note: str = ""
    """A file to which each start appends a line."""


class Echo(TaskResult):
    """What happened."""

    text: str = ""
    loudness: float = 0.0
    extra: Any = None


@task(Policy(timeout=lambda payload: 30.0))
async def wish(ctx: TaskContext, payload: Wish) -> Echo:
    """Do as the payload says."""
    if payload.note:
        with Path(payload.note).open("a", encoding="utf-8") as note:
            note.write(f"{ctx.record_id} {time.time()}\n")
    match payload.do:
        case "echo":
            return Echo(text=payload.version)
        case "partial":
            return Echo(outcome="partial", reason="half of it", text="ha")
        case "skip":
            return Echo(outcome="skipped", reason="changed-since-scan")
        case "reject":
            raise InputRejected("too-short", "0.2 s")
        case "nan":
            return Echo(text="NaN", loudness=float("-inf"), extra=[float("nan"), {"peak": float("inf")}])
        case "bytes":
            return Echo(extra=b"\xff")
        case "leak":
            raise InputRejected("refused", "https://store/x?api_key=hunter2")
        case "leak-partial":
            return Echo(outcome="partial", reason="https://store/x?api_key=hunter2")
        case "leak-lost":
            raise RecordNotFoundError("https://store/x?api_key=hunter2")
        case "lose":
            raise RecordNotFoundError("gone.mp3")
        case "fail":
            raise ConnectionError("the store is away")
        case "later":
            raise TryLater("the store is busy", after=payload.seconds)
        case "crash":
            await ctx.child(work.crash)
        case "spin":
            await ctx.child(work.spin)
        case "eat":
            await ctx.child(work.eat_memory)
        case "parts":
            for text in ("one", "two"):
                await ctx.report(Echo(text=text))
        case "nap":
            await asyncio.sleep(payload.seconds)
        case "child-spin":
            await ctx.child(work.spin_for, payload.seconds)
        case "child-say":
            await ctx.child(work.say_steps, 3, payload.seconds)
        case "child-nap":
            await ctx.child(work.nap, payload.seconds)
    return Echo(text=payload.do)


def register() -> None:
    """Put `wish` on every lane of this process."""
    for tasks in lanes.LANE_TASKS.values():
        tasks["wish"] = "tests.agent.tasks:wish"


if __name__ == "__main__":
    from agent.worker import worker

    register()
    if period := os.environ.get("TEST_BEAT_PERIOD"):
        heartbeat.PERIOD, heartbeat.PROBE_TIMEOUT = float(period), float(period)
    if place := os.environ.get("TEST_LOADED_MODULES"):
        atexit.register(lambda: Path(place).write_text("\n".join(sys.modules), "utf-8"))
    worker()
