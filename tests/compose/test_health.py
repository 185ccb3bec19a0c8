"""A worker's container is healthy only while it does its work, and one that is stuck does not stay."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from agent.lanes import job_key, queue_name
from agent.phoenix import keys
from agent.redis_client import connect
from agent.worker import THREAD_PINS
from pipelines.music.samples import write_samples
from tests.compose.stack import COUNT, IMAGE, SCAN, Stack
from tests.servers import free_port

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

HERE = Path(__file__).resolve().parent
IO = queue_name("local", "io")
MINUTE = 60.0
SONGS = 3
ENGINE = "fingerprint-engine"
ASK = 'import urllib.request as r; r.urlopen("http://127.0.0.1:8000/health", timeout=4)'

BUSY = """
import json, pathlib
busy = []
for place in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if b"multiprocessing.spawn" not in (place / "cmdline").read_bytes():
            continue
        environ = [item.split("=", 1) for item in (place / "environ").read_text("utf-8", "replace").split(chr(0))]
        stats = [(thread / "stat").read_text().rpartition(")")[2].split() for thread in (place / "task").iterdir()]
    except OSError:
        continue
    used = [(int(stat[11]) + int(stat[12])) / 100 for stat in stats]
    if sum(used) > 2:
        busy.append([dict(item for item in environ if len(item) == 2), used])
print(json.dumps(busy))
"""
"""Child processes that have used two seconds of a processor: environment, and the seconds of each thread."""


class Running:
    """The agent's io and analyze workers, the queue server within reach, notes of the naps' starts."""

    def __init__(self, stack: Stack, redis: Redis, notes: Path) -> None:
        self.stack, self.redis, self.notes = stack, redis, notes

    async def inspect(self, service: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.stack.state, service)

    async def nap(self, name: str, **arguments: Any) -> None:
        queue = RedisQueue(self.redis, name=IO)
        await queue.enqueue("nap", key=job_key("nap", name), version="v1", **arguments)

    async def recorded(self, name: str) -> bool:
        return bool(await self.redis.exists(keys.marker_key("nap", name)))


@pytest.fixture
async def running(clone: Path, tmp_path: Path) -> AsyncIterator[Running]:
    notes = tmp_path / "notes"
    notes.mkdir()
    notes.chmod(0o777)
    music = tmp_path / "music"
    music.mkdir()
    for sample in write_samples(tmp_path / "samples")[:SONGS]:
        shutil.copy(sample.path, music)
    env = {"TEST_PLUGIN": str(HERE / "plugin"), "TEST_NOTES": str(notes), "TEST_VALKEY_PORT": str(free_port())}
    env |= {"PHAZE_MUSIC_DIR": str(music), "PHAZE_LANE_ANALYZE_CONCURRENCY": "1"}
    env |= {"PHAZE_FINGERPRINT_ENGINE": f"http://{ENGINE}:8000", "PHAZE_FINGERPRINT_ENGINE_IMAGE": f"{IMAGE}-music"}
    env["PHAZE_FINGERPRINT_ENGINE_CHECK"] = f"python3 -c '{ASK}'"
    stack = Stack(clone, HERE / "override.yml", **env)
    redis = connect(f"redis://127.0.0.1:{env['TEST_VALKEY_PORT']}")
    try:
        started = ("worker-io", "worker-analyze", "worker-meta", "worker-fingerprint", ENGINE)
        await asyncio.to_thread(stack, "--profile", "sidecars", "up", "--detach", "--wait", *started, within=400)
        yield Running(stack, redis, notes)
    finally:
        await redis.aclose()
        await asyncio.to_thread(stack.down)


async def until(holds: Callable[[], Awaitable[bool]], within: float) -> float:
    """Seconds until it holds."""
    started = time.monotonic()
    async with asyncio.timeout(within):
        while not await holds():
            await asyncio.sleep(0.3)
    return time.monotonic() - started


async def test_what_takes_no_jobs_is_unhealthy_within_a_minute_and_what_is_stuck_comes_back(running: Running) -> None:
    """The CPU lanes' songs, and what is done to the io lane meanwhile."""
    await asyncio.to_thread(running.stack.python, "hub", SCAN)
    async with asyncio.TaskGroup() as both:
        both.create_task(the_cpu_lanes_work(running))
        both.create_task(the_io_lane_is_ill_treated(running))


async def the_cpu_lanes_work(running: Running) -> None:
    await busy_analyses_have_one_core_each(running)
    await the_engine_in_its_slot_holds_every_file(running)


async def the_io_lane_is_ill_treated(running: Running) -> None:
    await the_consumer_connection_alone_is_killed(running)
    await the_claiming_loop_hangs(running)
    await the_event_loop_stands_still(running)


async def busy_analyses_have_one_core_each(running: Running) -> None:
    """The pins as the child processes have them, and what threads they really use."""
    async with asyncio.timeout(600):
        while not (busy := await asyncio.to_thread(running.stack.python, "worker-analyze", BUSY)):
            await asyncio.sleep(0.2)
    for environ, threads in busy:
        assert THREAD_PINS.items() <= environ.items()
        assert len([seconds for seconds in threads if seconds > 0.2]) == 1, threads


async def the_engine_in_its_slot_holds_every_file(running: Running) -> None:
    async def held() -> bool:
        ended = await asyncio.to_thread(running.stack.python, "hub", COUNT)
        return bool(ended.get("ingest_file") == SONGS)

    await until(held, 600)


async def the_consumer_connection_alone_is_killed(running: Running) -> None:
    """Again and again, as soon as it waits anew: the worker asks on another one, and goes on."""
    killed = 0

    async def kill() -> None:
        nonlocal killed
        while True:
            for client in await running.redis.client_list():
                if client["cmd"] == "blmove":
                    killed += await running.redis.client_kill_filter(_id=client["id"])
            await asyncio.sleep(0.02)

    killing = asyncio.create_task(kill())
    try:
        for name in ("one", "two"):
            await running.nap(name)
            await until(lambda name=name: running.recorded(name), MINUTE)  # type: ignore[misc]
            await asyncio.sleep(5.0)
    finally:
        killing.cancel()
    assert killed > 5
    found = await running.inspect("worker-io")
    assert found["RestartCount"] == 0
    assert found["State"]["Health"]["Status"] == "healthy"


async def the_claiming_loop_hangs(running: Running) -> None:
    """The server answers and nothing is taken: first it is unhealthy, then it ends, within a minute."""
    (running.notes / "hang").touch()
    await running.nap("waits")
    failed = 0

    async def ended() -> bool:
        nonlocal failed
        found = await running.inspect("worker-io")
        failed = max(failed, found["State"]["Health"]["FailingStreak"])
        return bool(found["RestartCount"] == 1)

    await until(ended, MINUTE)
    assert failed, "its health check had failed before it ended"
    assert not await running.recorded("waits")
    (running.notes / "hang").unlink()
    await until(lambda: running.recorded("waits"), MINUTE)


async def the_event_loop_stands_still(running: Running) -> None:
    """By a task that never lets go of it; when it runs again, it does."""
    await running.nap("wedge", wedges_first=True)
    started = running.notes / "starts"

    async def begun() -> bool:
        return "wedge" in started.read_text("ascii").split()

    async def ended() -> bool:
        return bool((await running.inspect("worker-io"))["RestartCount"] == 2)

    await until(begun, MINUTE)
    await until(ended, MINUTE + 5)
    await until(lambda: running.recorded("wedge"), MINUTE)
    ends = [json.loads(line) for line in running.stack.logs("worker-io").splitlines() if '"event":"worker.st' in line]
    assert len([line for line in ends if line["event"] == "worker.started"]) == 3
