"""A worker with all that surrounds a task, to be stopped and starved: `python -m ... URL LEASE`.

`ends` passes its time and is cancelled, `lasts` has hours; both lean on a circuit. `busy` keeps the event loop from all
else, a fraction of a second of processor time at once.
"""

from __future__ import annotations

import asyncio
import sys
import time

from agent import logs
from agent.phoenix import execution
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult
from tests.agent.phoenix.surrounded import surrounding_worker

NAME = "surrounded"
ENDS_AFTER = 3.0
SLICE = 0.02
BEGAN = "a body began\n"


@task(Policy(timeout=lambda payload: ENDS_AFTER, dependency=lambda payload: "store"))
async def ends(ctx: TaskContext, payload: Payload) -> TaskResult:
    sys.stderr.write(BEGAN)
    await asyncio.sleep(600)
    return TaskResult()


@task(Policy(timeout=lambda payload: 3600.0, dependency=lambda payload: "store"))
async def lasts(ctx: TaskContext, payload: Payload) -> TaskResult:
    sys.stderr.write(BEGAN)
    await asyncio.sleep(600)
    return TaskResult()


@task(Policy(timeout=lambda payload: 3600.0))
async def busy(ctx: TaskContext, payload: Payload) -> TaskResult:
    await asyncio.sleep(1.0)  # others may begin
    sys.stderr.write(BEGAN)
    while True:
        until = time.thread_time() + SLICE
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0)


async def main() -> None:
    execution.TIMEOUT_MARGIN = 0.0
    queue = LaneQueue(connect(sys.argv[1]), name=NAME, lease=float(sys.argv[2]))
    await surrounding_worker(queue, {"ends": ends, "lasts": lasts, "busy": busy}).start()


if __name__ == "__main__":
    logs.configure("DEBUG", "json")
    asyncio.run(main())
