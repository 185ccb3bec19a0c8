"""What is done while the server is away is kept: nothing around a body throws its result away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.job import Job, Status

from agent.children import Children
from agent.phoenix import breaker
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import Result
from agent.phoenix.execution import Execution
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from agent.redis_client import connect
from agent.valkey import Valkey
from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult
from tests.agent.phoenix.engines import over, running, until

NAME = "outage"


@dataclass
class Doing:
    """What the bodies of this test did, and when they may end."""

    started: list[str] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def body(self, name: str) -> None:
        self.started.append(name)
        await self.go_on.wait()


def tasks(doing: Doing) -> dict[str, Any]:
    @task(Policy(timeout=lambda payload: 60.0, outside_effects=True, dependency=lambda payload: "store"))
    async def guarded(ctx: TaskContext, payload: Payload) -> TaskResult:
        await doing.body("guarded")
        return TaskResult()

    @task(Policy(timeout=lambda payload: 60.0))
    async def progressing(ctx: TaskContext, payload: Payload) -> TaskResult:
        await doing.body("progressing")
        await ctx.progress(1.0, "nearly done")
        return TaskResult()

    @task(Policy(timeout=lambda payload: 60.0))
    async def reporting(ctx: TaskContext, payload: Payload) -> TaskResult:
        await doing.body("reporting")
        await ctx.report(TaskResult())
        return TaskResult()

    return {"guarded": guarded, "progressing": progressing, "reporting": reporting}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A server that the test may end, freeze and start again."""
    server = Valkey(tmp_path / "valkey")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def own(server: Valkey) -> AsyncIterator[Redis]:
    client = connect(server.url)
    yield client
    await client.aclose()


def worker(queue: LaneQueue, functions: dict[str, Any], before: Callable[[], Awaitable[Any]]) -> LaneWorker:
    """A worker that does all that surrounds a task; `before` what comes first in each run."""
    children, breakers = Children(1), Breakers(queue.scripts, queue.redis)

    def surrounded(function: Any) -> Callable[..., Awaitable[Result]]:
        async def run(context: Any, /, **arguments: Any) -> Result:
            await before()
            around = Execution(
                context["run"], function=function, queue=queue, children=children, breakers=breakers, worker="w"
            )
            return await around.run(arguments)

        return run

    named = [(name, surrounded(function)) for name, function in functions.items()]
    return LaneWorker(queue, named, concurrency=4, outbox=True, timeout_of=lambda job: 0.0, breakers=breakers)


async def nothing() -> None:
    """Nothing comes first."""


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_a_body_that_ends_or_tells_of_itself_while_the_server_is_away_is_recorded_and_ran_once(
    server: Valkey, own: Redis, how: str
) -> None:
    doing, queue = Doing(), LaneQueue(own, name=NAME)
    functions = tasks(doing)
    for name in functions:
        await queue.enqueue(name, key=f"{name}:1", version="v")

    async def all_started() -> bool:
        return len(doing.started) == len(functions)

    async with running(worker(queue, functions, nothing)):
        assert await until(all_started, 10)
        await away(server, how)
        doing.go_on.set()
        await asyncio.sleep(3.0)  # longer than a client tries a command again by itself
        await back(server, how)
        jobs = [await over(queue, f"{name}:1", 20) for name in functions]
    assert [(job.status, job.attempts) for job in jobs if job] == [(Status.COMPLETE, 1)] * len(functions)
    assert sorted(doing.started) == sorted(functions), "each once"
    assert await own.xlen(outbox_key(NAME)) == len(functions) + 1, "the results, and the part"


async def test_a_job_whose_circuit_cannot_be_asked_goes_back_without_an_attempt(
    server: Valkey, own: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "ASK_WAIT", 0.5)
    doing, queue, claims = Doing(), LaneQueue(own, name=NAME), []
    doing.go_on.set()
    may_ask = asyncio.Event()

    async def before() -> None:
        claims.append("claimed")
        await may_ask.wait()

    await queue.enqueue("guarded", key="guarded:1", version="v")

    async def claimed() -> bool:
        return bool(claims)

    async with running(worker(queue, tasks(doing), before)):
        assert await until(claimed, 10)
        await away(server, "gone")
        may_ask.set()
        await asyncio.sleep(2.0)
        assert not doing.started
        await back(server, "gone")
        job: Job | None = await over(queue, "guarded:1", 20)
    assert job is not None
    assert (job.status, job.attempts) == (Status.COMPLETE, 1)
    assert (claims, doing.started) == (["claimed"] * 2, ["guarded"])


async def away(server: Valkey, how: str) -> None:
    if how == "silent":
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
    else:
        await server.stop()


async def back(server: Valkey, how: str) -> None:
    if how == "silent":
        assert server.pid is not None
        os.kill(server.pid, signal.SIGCONT)
    else:
        await server.start()
