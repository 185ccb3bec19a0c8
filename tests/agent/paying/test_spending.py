"""What a run has spent reaches the outbox, whatever becomes of the run and of the queue server meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.metrics import REGISTRY
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from pipelines.context import InlineContext, Policy, TaskContext, task
from pipelines.errors import NotGranted
from pipelines.payer import Spent, api_key, paid_by, spent
from pipelines.payload import Payload, TaskResult
from tests.agent.phoenix.engines import over, running, until
from tests.agent.phoenix.surrounded import surrounding_worker
from tests.servers import Local

NAME = "spending"
go = asyncio.Event()
began = asyncio.Event()


class Calls(Payload):
    user_id: str = "ann"
    then: str = ""


@task(Policy(timeout=lambda payload: 30.0, user=lambda payload: payload.user_id))
async def call(ctx: TaskContext, payload: Calls) -> TaskResult:
    """Three calls: by context, by function, and from a thread."""
    began.set()
    if payload.then == "wait":
        await go.wait()
        spent(1, 2, "a")
        return TaskResult()
    await ctx.usage(1, 2, "a")
    spent(3, 4, "b")
    await asyncio.to_thread(spent, 5, 6, "c")
    if payload.then == "fail":
        raise ConnectionResetError("gone")
    if payload.then == "hang":
        await asyncio.sleep(600)
    return TaskResult()


async def usages(redis: Redis) -> list[dict[str, Any]]:
    """What is in the outbox of calls."""
    entries = [json.loads(fields[b"entry"]) for _, fields in await redis.xrange(outbox_key(NAME))]
    return [{**entry["usage"], "call": entry["part"]} for entry in entries if entry.get("usage")]


def tokens(kind: str) -> float:
    """What this process's metrics count."""
    return REGISTRY.get_sample_value("phaze_llm_tokens_total", {"task": "call", "kind": kind}) or 0.0


THREE = [
    {"user": "ann", "model": "a", "prompt_tokens": 1, "completion_tokens": 2, "call": 0},
    {"user": "ann", "model": "b", "prompt_tokens": 3, "completion_tokens": 4, "call": 1},
    {"user": "ann", "model": "c", "prompt_tokens": 5, "completion_tokens": 6, "call": 2},
]


@pytest.mark.parametrize("then", ["", "fail"])
async def test_calls_reported_in_each_way_are_in_the_outbox_before_the_run_is_over(redis: Redis, then: str) -> None:
    queue = LaneQueue(redis, name=NAME)
    before = {kind: tokens(kind) for kind in ("prompt", "completion")}
    async with running(surrounding_worker(queue, {"call": call})):
        await queue.enqueue("call", key="call:1", version="v1", then=then)

        async def ended() -> bool:
            job = await queue.job("call:1")
            return job is not None and bool(job.completed or job.attempts)

        assert await until(ended, 20)
        assert await usages(redis) == THREE
    assert [tokens(kind) - number for kind, number in before.items()] == [9, 12]


async def test_calls_of_a_run_that_is_aborted_are_counted(redis: Redis) -> None:
    queue = LaneQueue(redis, name=NAME)
    async with running(surrounding_worker(queue, {"call": call})):
        job = await queue.enqueue("call", key="call:1", version="v1", then="hang")
        assert job is not None

        async def spoken() -> bool:
            return len(await usages(redis)) == 3

        assert await until(spoken, 20), "at once, not at the end"
        await queue.abort(job, "enough")
        assert await over(queue, "call:1", 20)
    assert await usages(redis) == THREE


async def test_what_is_spent_while_the_queue_server_is_away_waits_for_it(start_server: Callable[..., Local]) -> None:
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    redis = connect(server.url)
    queue = LaneQueue(redis, name=NAME)
    go.clear()
    began.clear()
    async with running(surrounding_worker(queue, {"call": call})):
        await queue.enqueue("call", key="call:1", version="v1", then="wait")
        async with asyncio.timeout(20):
            await began.wait()
        server.kill()
        go.set()
        await asyncio.sleep(1.5)
        server.start()

        async def settled() -> bool:
            job = await queue.job("call:1")
            return job is not None and bool(job.completed)

        assert await until(settled, 60)
        assert await usages(redis) == THREE[:1]
        counted = [json.loads(fields[b"entry"]) for _, fields in await redis.xrange(outbox_key(NAME))]
        assert [entry["outcome"] for entry in counted] == ["done", "done"]
    await redis.aclose()


@pytest.mark.parametrize("wrong", [(-1, 0), (0, 10**10), (1.5, 0), (True, 0), (None, 1)])
def test_what_is_no_count_is_refused_where_it_is_reported(wrong: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        spent(*wrong)


async def test_a_library_runs_without_any_engine(redis: Redis) -> None:
    spent(1, 2)
    with pytest.raises(NotGranted, match="nobody pays"):
        await api_key()
    context = InlineContext()
    with paid_by(context):
        spent(1, 2, "m" * 1000)
        with pytest.raises(NotGranted, match="key"):
            await api_key()
    assert context.calls == [Spent(1, 2, "m" * 200)]
