"""From one queue to lanes on real containers: the base queue is emptied while new jobs go to their lanes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from agent.lanes import base_queue_name, job_key, queue_name
from agent.phoenix import keys
from agent.redis_client import connect
from tests.compose.stack import Stack
from tests.servers import free_port

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

HERE = Path(__file__).resolve().parent
BASE, LANE = base_queue_name("local"), queue_name("local", "io")
JOBS, NEW = 200, 40
GRACE = "3"
"""Seconds that a stopping worker gives what it runs."""

LONG, FAIL = range(6), range(6, 18)
"""Numbers of jobs that take 30 s, longer than the deployment of lanes and a worker's grace, and that fail once."""

RECORDED = """
import json, os, sqlite3
with sqlite3.connect(f"file:{os.environ['PHAZE_DATA_DIR']}/catalogue.sqlite?mode=ro", uri=True) as catalogue:
    rows = catalogue.execute("SELECT record_id, token, attempts FROM results WHERE service = 'nap'")
    print(json.dumps(rows.fetchall()))
"""


@dataclass
class Seen:
    """What was seen on the two queues, again and again while the drain went on."""

    twice: set[bytes] = field(default_factory=set)
    strangers: set[bytes] = field(default_factory=set)
    looks: int = 0


async def waiting(redis: Redis, name: str) -> list[bytes]:
    """Keys of all jobs of a queue that have not ended, as often as they are there."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.lrange(keys.queued_key(name), 0, -1)
        pipe.zrange(keys.incomplete_key(name), 0, -1)
        queued, incomplete = await pipe.execute()
    twice = [job_id for job_id, count in Counter(queued).items() if count > 1]
    return [job_id.rsplit(b":", 1)[-1] for job_id in [*set(queued) | set(incomplete), *twice]]


async def watch(redis: Redis, known: set[bytes], seen: Seen) -> None:
    """Look at both queues until cancelled."""
    while True:
        on_base, on_lane = await waiting(redis, BASE), await waiting(redis, LANE)
        found = Counter(on_base) + Counter(on_lane)
        seen.twice |= {key for key, count in found.items() if count > 1}
        seen.strangers |= set(on_base) - known
        seen.looks += 1
        await asyncio.sleep(0.2)


@pytest.fixture
async def stack(clone: Path, tmp_path: Path) -> AsyncIterator[tuple[Stack, Redis]]:
    notes = tmp_path / "notes"
    notes.mkdir()
    notes.chmod(0o777)
    env = {"TEST_PLUGIN": str(HERE / "plugin"), "TEST_NOTES": str(notes), "TEST_VALKEY_PORT": str(free_port())}
    stack = Stack(clone, HERE / "override.yml", HERE / "quick.yml", PHAZE_SHUTDOWN_GRACE=GRACE, **env)
    redis = connect(f"redis://127.0.0.1:{env['TEST_VALKEY_PORT']}")
    try:
        yield stack, redis
    finally:
        await redis.aclose()
        await asyncio.to_thread(stack.down)


async def enqueue(queue: RedisQueue, numbers: range, **options: Any) -> None:
    """As any SAQ producer does."""
    for number in numbers:
        seconds = 30.0 if number in LONG else 0.4
        key = job_key("nap", str(number))
        await queue.enqueue("nap", key=key, version="v1", seconds=seconds, fails_first=number in FAIL, **options)


@pytest.mark.parametrize("killed", [False, True], ids=["drained", "killed-half-way"])
async def test_every_job_of_the_base_queue_is_recorded_once_while_new_ones_go_to_their_lanes(
    stack: tuple[Stack, Redis], tmp_path: Path, killed: bool
) -> None:
    compose, redis = stack

    async def run(*arguments: str, **options: Any) -> str:
        return await asyncio.to_thread(compose, *arguments, **options)

    async def recorded() -> list[list[Any]]:
        return await asyncio.to_thread(compose.python, "hub", RECORDED)  # type: ignore[return-value]

    await run("up", "--detach", "--wait", "valkey", "hub")
    base, lane = RedisQueue(redis, name=BASE), RedisQueue(redis, name=LANE)
    await enqueue(base, range(JOBS))

    # The agent from before lanes has the long jobs in work ...
    slots = f"WORKER_MAX_JOBS={len(LONG) + 1}"
    await run("run", "--detach", "--name", f"{compose.project}-old", "--env", slots, "worker-drain")
    async with asyncio.timeout(60):
        while await redis.zcard(keys.active_key(BASE)) < len(LONG):
            await asyncio.sleep(0.1)
    # ... when the lanes are deployed, the producers are switched, and it is stopped.
    await run("up", "--detach", "--wait", "worker-io")
    known, seen = {f"{number}".encode() for number in range(JOBS)}, Seen()
    watching = asyncio.create_task(watch(redis, known, seen))
    await enqueue(lane, range(1000, 1000 + NEW))
    for command in (["stop", "--time", "40"], ["rm"]):
        old = await asyncio.create_subprocess_exec("docker", *command, f"{compose.project}-old")
        assert await old.wait() == 0
    assert await redis.llen(keys.queued_key(BASE)) > JOBS // 2, "it handed back what it had not ended"

    await run("--profile", "drain", "up", "--detach", "worker-drain")
    if killed:
        async with asyncio.timeout(120):
            while len(await waiting(redis, BASE)) > JOBS // 2:
                await asyncio.sleep(0.1)
        await asyncio.to_thread(compose.kill, "worker-drain")
    said = await run("exec", "-T", "hub", "phaze", "drain", "wait", "--timeout", "240", within=300)
    assert said.splitlines()[-1] == "drained"
    restarts = (await asyncio.to_thread(compose.state, "worker-drain"))["RestartCount"]
    assert restarts == int(killed)
    await run("--profile", "drain", "rm", "--stop", "--force", "worker-drain")

    wanted = {str(number) for number in [*range(JOBS), *range(1000, 1000 + NEW)]}
    deadline = time.monotonic() + 60
    rows = await recorded()
    while {row[0] for row in rows} != wanted:
        assert time.monotonic() < deadline, wanted - {row[0] for row in rows}
        await asyncio.sleep(1.0)
        rows = await recorded()
    watching.cancel()
    assert len(rows) == len(wanted), "one result each"
    for record_id, token, _ in rows:
        marker = json.loads(await redis.get(keys.marker_key("nap", record_id)))
        assert int(marker["token"]) == token, "the catalogue has what its one owner settled"
    assert seen.looks > 20
    assert not seen.twice, "no job is on two queues, or twice on one"
    assert not seen.strangers, "nothing new arrives on the base queue"
    assert await waiting(redis, BASE) == await waiting(redis, LANE) == []
    attempts = {record_id: number for record_id, _, number in rows}
    assert all(attempts[str(number)] == (2 if number in FAIL else 1) for number in range(JOBS)), attempts
    starts = Counter((tmp_path / "notes/starts").read_text("ascii").split())
    again = {name for name, count in starts.items() if count > (2 if int(name) in FAIL else 1)}
    assert len(again) <= len(LONG) + 1 + (8 if killed else 0), "only what was in work where a worker ended"
