"""The task that chaos is made around, and a worker process that runs it: `python -m tests.chaos.tasks`."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time

from agent import lanes
from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult

LANE = "io"
TASK = "leave_a_trace"


class Trace(Payload):
    """A body to run: how long, where it writes that it ran, and whether a child process does the work."""

    seconds: float
    trail: str
    child: bool = False


class Traced(TaskResult):
    """Which body this result is of."""

    token: str
    pid: int
    started: float


def append(trail: str, **fields: object) -> None:
    """One line, whole or not at all: O_APPEND, one write."""
    descriptor = os.open(trail, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(fields).encode() + b"\n")
    finally:
        os.close(descriptor)


@task(Policy(timeout=lambda payload: 60.0))
async def leave_a_trace(ctx: TaskContext, payload: Trace) -> Traced:
    """Write down the start, work, write down the end."""
    body = {"record": ctx.record_id, "token": ctx.token, "pid": os.getpid(), "started": time.time()}
    append(payload.trail, event="start", **body)
    if payload.child:
        await ctx.child(time.sleep, payload.seconds)
    else:
        await asyncio.sleep(payload.seconds)
    append(payload.trail, event="end", ended=time.time(), **body)
    return Traced(token=ctx.token, pid=os.getpid(), started=body["started"])


def hurry(lease: float, sweep: float, wedged: float) -> None:
    """Shorter times than the usual ones, so that a test of seconds sees many leases end."""
    from agent import worker as room
    from agent.phoenix import worker as engine

    room.LaneQueue = functools.partial(room.LaneQueue, lease=lease)  # type: ignore[assignment,misc]
    room.LaneWorker = functools.partial(room.LaneWorker, sweep=sweep)  # type: ignore[assignment,misc]
    engine.Leases = functools.partial(engine.Leases, wedged=wedged)  # type: ignore[assignment,misc]


if __name__ == "__main__":
    from agent.worker import worker

    lanes.LANE_TASKS[LANE].clear()
    lanes.LANE_TASKS[LANE][TASK] = f"tests.chaos.tasks:{TASK}"
    if times := os.environ.get("CHAOS_TIMES"):
        hurry(*map(float, times.split()))
    worker()
