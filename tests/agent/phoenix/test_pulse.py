"""A worker that does not do its work is not healthy, and does not stay."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.health import STALE
from agent.phoenix import lease, pulse, pump
from agent.phoenix.pulse import Pulse, Turns
from agent.phoenix.queue import LEASE, LaneQueue
from agent.phoenix.worker import LaneWorker
from agent.redis_client import connect
from tests.servers import Local

CONSUMES = ("blmove", "evalsha")
"""What the waiting connection and the two lines of a worker's pump have asked for last."""


async def until(holds: Callable[[], Awaitable[bool]], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not await holds():
            await asyncio.sleep(0.05)


class Beside:
    """A worker process that can be made to hang, its health file and its queue."""

    def __init__(self, redis: Redis, url: str, folder: Path, loop: str) -> None:
        self.queue = LaneQueue(redis, name="hanging")
        self.file, self.hang, self.log = folder / "healthy", folder / "hang", folder / "log"
        module = "tests.agent.phoenix.hanging_worker"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, url, str(self.file), str(self.hang), loop],
                cwd=Path(__file__).parents[3], stdout=log, stderr=log,
            )  # fmt: skip

    def age(self) -> float:
        return time.time() - self.file.stat().st_mtime if self.file.exists() else float("inf")

    async def healthy(self) -> bool:
        return self.age() < 2.0


@pytest.fixture
async def start(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Beside]]:
    found: list[Beside] = []

    def begin(loop: str, url: str = valkey_url) -> Beside:
        found.append(Beside(redis, url, tmp_path, loop))
        return found[-1]

    yield begin
    for worker in found:
        worker.process.kill()
        worker.process.wait()


def health(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent.cli", "health"]
    env = {**os.environ, "PHAZE_HEALTH_FILE": str(file)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("loop", ["claims", "upkeep"])
async def test_a_worker_whose_loop_hangs_is_unhealthy_and_then_ends_by_itself(
    start: Callable[..., Beside], loop: str
) -> None:
    worker = start(loop)
    await until(worker.healthy)
    assert health(worker.file).returncode == 0
    await asyncio.sleep(3.0)
    assert await worker.healthy(), "an idle worker is healthy"
    worker.hang.touch()
    await worker.queue.enqueue("work")
    code = await asyncio.to_thread(worker.process.wait, 60)
    assert code == lease.EXIT_WEDGED
    assert worker.age() > 1.0, "it was not healthy when it ended"
    assert f'"loop":"{loop}"' in worker.log.read_text("utf-8")


async def test_jobs_that_fill_every_slot_for_long_are_no_fault(start: Callable[..., Beside]) -> None:
    worker = start("claims")
    await worker.queue.enqueue("work", seconds=8.0)
    await until(worker.healthy)
    for _ in range(14):
        await asyncio.sleep(0.5)
        assert worker.process.poll() is None
        assert worker.age() < 4.0


async def test_a_server_that_answers_nobody_makes_it_unhealthy_but_costs_no_worker_its_life(
    start: Callable[..., Beside], start_server: Callable[..., Local]
) -> None:
    server = start_server()
    assert server.process is not None
    worker = start("claims", server.url)
    await until(worker.healthy)
    os.kill(server.process.pid, signal.SIGSTOP)
    await asyncio.sleep(9.0)
    assert worker.process.poll() is None
    assert worker.age() > 5.0
    os.kill(server.process.pid, signal.SIGCONT)
    await until(worker.healthy)
    await asyncio.sleep(5.5)
    assert worker.process.poll() is None
    server.kill()
    await asyncio.sleep(9.0)
    assert worker.process.poll() is None
    assert worker.age() > 5.0


async def test_a_worker_whose_consumer_connections_are_killed_takes_jobs_again_at_once(
    redis: Redis, valkey_url: str, tmp_path: Path
) -> None:
    done: list[int] = []

    async def work(_context: Any, *, number: int) -> None:
        done.append(number)

    file = tmp_path / "healthy"
    own = connect(valkey_url)
    worker = LaneWorker(LaneQueue(own, name="killed"), [("work", work)], lane="killed", concurrency=2, health=file)
    running = asyncio.create_task(worker.start())
    queue = LaneQueue(redis, name="killed")
    try:
        for number in range(4):
            await queue.enqueue("work", number=number)
            await until(lambda number=number: _is(number in done))  # type: ignore[misc]
            killed = 0
            for client in await redis.client_list():
                if client["cmd"] in CONSUMES:
                    killed += await redis.client_kill_filter(_id=client["id"])
            assert killed >= 2, "the waiting connection and a line"
            before = time.time()
            await queue.enqueue("work", number=number + 100)
            await until(lambda number=number: _is(number + 100 in done), within=30)  # type: ignore[misc]
            assert time.time() - before < 20.0
        file.unlink()
        await until(lambda: _is(file.exists()))
    finally:
        worker.event.set()
        await running
        await own.aclose()


async def _is(holds: bool) -> bool:
    return holds


def test_what_does_not_work_is_unhealthy_and_ended_within_a_minute() -> None:
    retries, interval, run = 2, 10.0, 2.0  # the health check of compose/agent.yml
    assert pump.IDLE_WAIT < pulse.FRESH
    assert pulse.FRESH + STALE + retries * (interval + run) < 60
    assert pulse.STUCK + pulse.LOOK < 60
    assert lease.WEDGED + LEASE / lease.RENEWALS < 60


def test_a_process_that_stood_still_is_given_time(tmp_path: Path) -> None:
    claims, upkeep = Turns(), Turns()
    watched = Pulse(claims, upkeep, lambda: True, tmp_path / "healthy", stuck=5.0)
    now = time.monotonic()
    watched.look(now)
    upkeep.answered = upkeep.ended = now + 100.0
    watched.look(now + 100.0)  # would have ended this process
    assert claims.ended <= now


def test_a_turn_that_was_given_longer_is_waited_for_whatever_ends_meanwhile(tmp_path: Path) -> None:
    claims, upkeep = Turns(), Turns()
    watched = Pulse(claims, upkeep, lambda: True, tmp_path / "healthy", stuck=5.0)
    claims.may_last(20.0)
    claims.answer()  # another line's turn, a short one
    for later in range(24):
        now = time.monotonic() + later
        upkeep.answered = upkeep.ended = now
        watched.look(now)  # would have ended this process
    assert claims.ended > time.monotonic() + 10.0


def test_before_the_first_answer_nothing_is_healthy(tmp_path: Path) -> None:
    said = health(tmp_path / "healthy")
    assert said.returncode == 1
    assert "not yet reached the queue server" in said.stderr


def test_a_url_is_healthy_while_it_answers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent.cli", "health", "http://127.0.0.1:1/health"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 1
    assert "does not answer" in said.stderr
