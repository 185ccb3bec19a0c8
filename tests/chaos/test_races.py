"""Moments too short for chaos to meet often, met on purpose."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.job import Status

from agent.phoenix import keys
from agent.phoenix.endings import Endings, Result
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker


async def never(_context: Any) -> None:
    raise AssertionError("its body was started")


async def test_a_run_that_is_unwanted_before_its_first_step_ends_all_the_same(redis: Redis) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    worker = LaneWorker(queue, [("never", never)], concurrency=1)
    job = await queue.enqueue("never", key="never:1")
    assert job is not None
    _, (run,), _ = await queue.step(worker.id, "io", 1)
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


async def test_a_claim_whose_answer_was_lost_is_given_back_at_once_and_counts_as_no_death(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    runs: list[int] = []

    async def fine(context: Any) -> str:
        runs.append(context["run"].takeovers)
        return "done"

    worker = LaneWorker(queue, [("fine", fine)], concurrency=4)
    jobs = [await queue.enqueue("fine", key=f"fine:{number}") for number in range(8)]
    right, answers_lost = queue.step, [2]

    async def deaf(*arguments: Any, **options: Any) -> Any:
        answer = await right(*arguments, **options)
        if answer[1] and answers_lost[0]:
            answers_lost[0] -= 1
            raise ConnectionError("the line went dead before the answer came")
        return answer

    monkeypatch.setattr(queue, "step", deaf)
    before = time.monotonic()
    starting = asyncio.create_task(worker.start())
    for job in jobs:
        assert job is not None
        await job.refresh(until_complete=20)
        assert job.status is Status.COMPLETE
    assert time.monotonic() - before < queue.lease, "nobody waited for the end of a lease"
    assert runs == [0] * 8
    worker.event.set()
    await starting


async def test_what_a_worker_runs_and_what_others_run_is_not_given_back(redis: Redis) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    for number in range(6):
        await queue.enqueue("work", key=f"work:{number}")
    _, mine, _ = await queue.step("me", "io", 3)
    await queue.step("another", "io", 1)
    assert await queue.unheard("me", [mine[0].token]) == 2
    assert await queue.count("active") == 2
    _, again, _ = await queue.step("me", "io", 6)
    assert {run.id for run in mine[1:]} < {run.id for run in again}
    assert all(run.takeovers == 0 for run in again)


async def test_a_lease_lasts_until_its_run_is_settled(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that cannot be handed over for longer than a lease is still its owner's to record."""
    queue = LaneQueue(redis, name="phaze-agent-test-io", lease=1.5)
    runs = []

    async def work(_context: Any) -> str:
        runs.append(time.monotonic())
        return "done"

    right, until = queue.step, time.monotonic() + 5

    async def no_settling(*arguments: Any, **options: Any) -> Any:
        if len(arguments) > 3 and arguments[3] and time.monotonic() < until:
            raise ConnectionError("it does not get through")
        return await right(*arguments, **options)

    monkeypatch.setattr(queue, "step", no_settling)
    worker = LaneWorker(queue, [("work", work)], concurrency=2, sweep=0.2)
    job = await queue.enqueue("work", key="work:1")
    assert job is not None
    starting = asyncio.create_task(worker.start())
    await job.refresh(until_complete=30)
    worker.event.set()
    await starting
    assert (job.status, len(runs), worker.stale) == (Status.COMPLETE, 1, 0)


async def test_two_jobs_of_one_record_in_one_claim_run_one_after_the_other(redis: Redis) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    await queue.enqueue("work", key="work:7")
    await queue.enqueue("work", key="again:7")
    _, runs, _ = await queue.step("me", "io", 10)
    assert [run.id for run in runs] == [queue.job_id("work:7")]
    assert await queue.count("incomplete") == 2


async def test_an_outbox_of_another_type_spoils_one_ending_and_leaves_it_whole(redis: Redis) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    for number in range(2):
        await queue.enqueue("work", key=f"work:{number}")
    _, runs, _ = await queue.step("me", "io", 2)
    told, untold = Endings(queue, "me", outbox=True), Endings(queue, "me", outbox=False)
    for run in runs:
        run.job = queue.deserialize(run.text)
    await redis.set(outbox_key(queue.name), "somebody else's")
    endings = [told.done(runs[0], Result("lost?")), untold.done(runs[1], Result("fine"))]
    answers, *_ = await queue.step("me", "io", 0, endings)
    assert answers[0].startswith("error: phoenix:outbox:")
    assert "not a stream" in answers[0]
    assert answers[1] == "settled"
    assert await redis.exists("lock:work:0"), "it is still ours"
    assert await redis.get("processed:work:0") is None, "nothing of it was written"
    await redis.delete(outbox_key(queue.name))
    assert (await queue.step("me", "io", 0, endings[:1]))[0] == ["settled"]
    assert await queue.count("incomplete") == 0


async def test_a_job_that_parks_while_others_are_let_go_is_not_forgotten(redis: Redis) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    endings = Endings(queue, "me", outbox=False)
    for number in range(2):
        await queue.enqueue("work", key=f"work:{number}")
    _, runs, _ = await queue.step("me", "io", 2)
    await queue.step("me", "io", 0, [endings.parked(runs[0], "store")])
    assert await queue.unpark("store", 10) == 1
    await queue.step("me", "io", 0, [endings.parked(runs[1], "store")])
    assert await redis.smembers(keys.parked_index_key(queue.name)) == {b"store"}


async def test_a_body_that_cancels_itself_is_retried_later_and_not_at_once_for_ever(redis: Redis) -> None:
    queue = LaneQueue(redis, name="phaze-agent-test-io")
    runs = []

    async def work(_context: Any) -> None:
        runs.append(time.monotonic())
        raise asyncio.CancelledError

    worker = LaneWorker(queue, [("work", work)], concurrency=1)
    await queue.enqueue("work", key="work:1")
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(1.5)
    worker.event.set()
    await starting
    job = await queue.job("work:1")
    assert job is not None
    assert (len(runs), job.attempts) == (1, 1)
