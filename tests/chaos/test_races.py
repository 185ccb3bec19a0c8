"""Moments too short for chaos to meet often, met on purpose."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.job import Status

from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker


async def never(_context: Any) -> None:
    raise AssertionError("its body was started")


async def test_a_run_that_is_unwanted_before_its_first_step_ends_all_the_same(redis: Redis) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    worker = LaneWorker(queue, [("never", never)], concurrency=1)
    job = await queue.enqueue("never", key="never:1")
    assert job is not None
    _, (run,) = await queue.step(worker.id, "io", 1)
    worker.begin(run)
    run.cancel("abort")
    starting = asyncio.create_task(worker.start())
    async with asyncio.timeout(20):
        while job.status is not Status.ABORTED:
            await asyncio.sleep(0.02)
            await job.refresh()
    assert not worker.runs, "its slot is free"
    worker.event.set()
    await starting


async def test_a_fault_of_ours_does_not_end_the_pump(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")

    async def fine(_context: Any) -> str:
        return "done"

    worker = LaneWorker(queue, [("fine", fine)], concurrency=1)
    right, faults = queue.step, [ZeroDivisionError("a bug")] * 2

    async def faulty(*arguments: Any, **options: Any) -> Any:
        if faults:
            raise faults.pop()
        return await right(*arguments, **options)

    monkeypatch.setattr(queue, "step", faulty)
    starting = asyncio.create_task(worker.start())
    job = await queue.enqueue("fine", key="fine:1")
    assert job is not None
    await job.refresh(until_complete=20)
    assert job.status is Status.COMPLETE
    worker.event.set()
    await starting
