"""What is done while the server is away is kept: nothing around a body throws its result away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.job import Job, Status

from agent.phoenix import breaker, keys, pump
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.relay import Relay
from agent.phoenix.worker import LaneWorker
from agent.redis_client import connect
from agent.valkey import Valkey
from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult
from tests.agent.phoenix import surrounded_process
from tests.agent.phoenix.engines import REPO, over, running, until
from tests.agent.phoenix.surrounded import surrounding_worker
from tests.chaos.proxy import Proxy
from tests.control_plane import ControlPlane
from tests.servers import Local

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

    async with running(surrounding_worker(queue, functions)):
        assert await until(all_started, 10)
        await away(server, how)
        doing.go_on.set()
        await asyncio.sleep(3.0)  # longer than a client tries a command again by itself
        await back(server, how)
        jobs = [await over(queue, f"{name}:1", 20) for name in functions]
    assert [(job.status, job.attempts) for job in jobs if job] == [(Status.COMPLETE, 1)] * len(functions)
    assert sorted(doing.started) == sorted(functions), "each once"
    assert await own.xlen(outbox_key(NAME)) == len(functions) + 1, "the results, and the part"


async def test_what_was_taken_from_a_server_that_is_full_by_now_is_reported_and_recorded(
    start_server: Callable[..., Local], plane: ControlPlane
) -> None:
    doing = Doing()
    async with connect(start_server().url) as client:
        queue = LaneQueue(client, name=NAME)
        relay = Relay(client, NAME, hub_url=plane.url, agent_id="local", token="t0ken")
        functions = tasks(doing)
        for name in functions:
            await queue.enqueue(name, key=f"{name}:1", version="v")

        async def all_started() -> bool:
            return len(doing.started) == len(functions)

        async with running(surrounding_worker(queue, functions)):
            assert await until(all_started, 10)
            await client.config_set("maxmemory", "1")
            doing.go_on.set()
            jobs = [await over(queue, f"{name}:1", 20) for name in functions]
        assert await relay.drain(10)
        await relay.close()
    assert [(job.status, job.attempts) for job in jobs if job] == [(Status.COMPLETE, 1)] * len(functions)
    assert len(plane.entries) == len(functions) + 1, "the results, and the part"


async def test_a_result_that_takes_longer_on_its_way_than_any_usual_step_is_recorded_and_ran_once(
    server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is larger than what sockets hold, and sent whole by each attempt."""
    monkeypatch.setattr(pump, "STEP_TIMEOUT", 0.2)
    monkeypatch.setattr(pump, "LONGEST_STEP", 0.4)
    ran = []

    async def large(context: Any) -> str:
        ran.append(context["job"].key)
        thin.rate = 16e6
        return "x" * 8_000_000

    thin = Proxy(server.socket)
    async with connect(await thin.start()) as client:
        queue = LaneQueue(client, name=NAME)
        await queue.enqueue("large", key="large:1", timeout=0)
        async with running(LaneWorker(queue, [("large", large)], concurrency=1)), connect(server.url) as near:
            job = await over(LaneQueue(near, name=NAME), "large:1", 30)
    assert job is not None
    assert (job.status, ran) == (Status.COMPLETE, ["large:1"])
    await thin.stop()


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

    async with running(surrounding_worker(queue, tasks(doing), before)):
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


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"


@pytest.fixture
def process(server: Valkey, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that renews every second."""
    with log.open("wb") as output:
        arguments = [sys.executable, "-m", "tests.agent.phoenix.surrounded_process", server.url, "3"]
        process = subprocess.Popen(arguments, cwd=REPO, stdout=output, stderr=output)
    yield process
    process.kill()
    process.wait(10)


async def all_run(own: Redis, log: Path, *names: str) -> None:
    queue = LaneQueue(own, name=surrounded_process.NAME)
    for name in names:
        await queue.enqueue(name, key=f"{name}:1", version="v")

    async def began() -> bool:
        return log.read_text("utf-8").count(surrounded_process.BEGAN) == len(names)

    assert await until(began, 20), log.read_text("utf-8")


async def test_a_job_that_ends_while_the_server_is_silent_does_not_end_its_worker(
    server: Valkey, own: Redis, process: subprocess.Popen[bytes], log: Path
) -> None:
    """Its circuit cannot be told how it went, it cannot be settled, and no lease can be kept."""
    await all_run(own, log, "ends", "lasts")
    await away(server, "silent")
    await asyncio.sleep(surrounded_process.ENDS_AFTER + 4.0)
    await back(server, "silent")
    assert process.poll() is None, log.read_text("utf-8")[-2000:]
    assert "longer than its 3 s" in log.read_text("utf-8")


async def test_a_process_that_was_stopped_past_a_jobs_time_goes_on_with_its_other_jobs(
    own: Redis, process: subprocess.Popen[bytes], log: Path
) -> None:
    """Whatever of it wakes first: here the event loop, which is to end the job, is busy with another."""
    await all_run(own, log, "ends", "busy")
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(surrounded_process.ENDS_AFTER + 2.0)
    process.send_signal(signal.SIGCONT)

    async def ended() -> bool:
        return process.poll() is not None or any(word in log.read_text("utf-8") for word in ("job.failed", "job.lost"))

    assert await until(ended, 20)
    assert process.poll() is None, log.read_text("utf-8")[-2000:]


async def test_after_a_failover_behind_one_name_a_worker_goes_on_with_the_new_primary(
    start_server: Callable[..., Local], tmp_path: Path
) -> None:
    """The old primary keeps its connections and says READONLY on them: on the pump's, the pool's and the renewals'."""
    sockets = [tmp_path / "old.sock", tmp_path / "new.sock"]
    old, new = (start_server("--unixsocket", str(socket)) for socket in sockets)
    doing = Doing()

    async def work(context: Any) -> str:
        await doing.body(context["job"].key)
        return "done"

    async with contextlib.AsyncExitStack() as stack:
        direct = [await stack.enter_async_context(connect(server.url)) for server in (old, new)]
        await direct[1].replicaof("127.0.0.1", str(old.port))
        name = Proxy(sockets[0])
        client = await stack.enter_async_context(connect(await name.start()))
        stack.push_async_callback(name.stop)
        queue = LaneQueue(client, name=NAME, lease=3.0)
        async with running(LaneWorker(queue, [("work", work)], concurrency=4, sweep=0.5)):
            await queue.enqueue("work", key="work:long", timeout=0)

            async def begun_and_copied() -> bool:
                return bool(doing.started) and bool(await direct[1].exists(keys.lock_key("work", "long")))

            assert await until(begun_and_copied, 20)
            name.target = sockets[1]
            await direct[1].replicaof("NO", "ONE")
            await direct[0].replicaof("127.0.0.1", str(new.port))
            beyond = LaneQueue(direct[1], name=NAME)
            await beyond.enqueue("work", key="work:new", timeout=0)
            await asyncio.sleep(4.0)  # longer than a lease
            ends = await direct[1].zscore(keys.active_key(NAME), beyond.job_id("work:long"))
            assert ends is not None
            assert float(ends) / 1000 > time.time(), "renewed there"
            doing.go_on.set()
            jobs = [await over(beyond, key, 20) for key in ("work:long", "work:new")]
    assert [job.result for job in jobs if job] == ["done", "done"]
    assert sorted(doing.started) == ["work:long", "work:new"], "each once"
