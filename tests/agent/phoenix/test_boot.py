"""A server on which the promises would not hold is refused with one line; one that is not there yet is waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue
from structlog.testing import capture_logs

from agent.errors import ConfigError
from agent.phoenix import boot
from agent.phoenix.boot import check_server, take_over_queue, wait_for_server
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from tests.servers import Local, program

NAME = "phaze-agent-test-meta"

Start = Callable[..., Local]


@pytest.fixture
async def client() -> AsyncIterator[Callable[[str], Redis]]:
    """Opens clients, and closes them."""
    opened: list[Redis] = []

    def on(url: str) -> Redis:
        opened.append(connect(url))
        return opened[-1]

    yield on
    for one in opened:
        await one.aclose()


async def refusal(redis: Redis) -> str:
    """The one line with which a worker's start ends."""
    with pytest.raises(ConfigError) as error:
        async with asyncio.timeout(20):
            await wait_for_server(LaneQueue(redis, name=NAME))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "set maxmemory-policy noeviction"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"), "set maxmemory-policy noeviction"),
        (
            ("--cluster-enabled", "yes"),
            "names a Redis Cluster; a job's keys must be on one server",
        ),
        (("--replicaof", "127.0.0.1 1"), "names a replica; name its primary"),
    ],
)
@pytest.mark.parametrize("kind", ["valkey-9", "redis-7"])
async def test_a_server_that_cannot_keep_the_promises_is_refused(
    start_server: Start, client: Callable[[str], Redis], kind: str, settings: tuple[str, ...], said: str
) -> None:
    assert said in await refusal(client(start_server(*settings, program=program(kind)).url))


@pytest.mark.parametrize(
    ("settings", "said"),
    [(("--cluster-enabled", "yes"), "names a Redis Cluster"), (("--replicaof", "127.0.0.1 1"), "names a replica")],
)
async def test_so_is_one_that_does_not_tell_what_it_is(
    start_server: Start, client: Callable[[str], Redis], settings: tuple[str, ...], said: str
) -> None:
    server = start_server(*settings)
    await client(server.url).acl_setuser("blind", enabled=True, passwords=["+pw"], keys=["*"],
                                         channels=["*"], commands=["+@all", "-info"])  # fmt: skip
    assert said in await refusal(client(server.url.replace("//", "//blind:pw@")))


async def test_a_cluster_at_work_is_refused(start_server: Start, client: Callable[[str], Redis]) -> None:
    server = start_server("--cluster-enabled", "yes")
    redis = client(server.url)
    await redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    await redis.acl_setuser("blind", enabled=True, passwords=["+pw"], keys=["*"], channels=["*"],
                            commands=["+@all", "-info"])  # fmt: skip
    assert "names a Redis Cluster" in await refusal(redis)
    assert "names a Redis Cluster" in await refusal(client(server.url.replace("//", "//blind:pw@")))


async def test_a_sentinel_is_refused(start_server: Start, client: Callable[[str], Redis]) -> None:
    server = start_server()
    server.kill()
    settings = server.folder / "sentinel.conf"
    settings.write_text(f"port {server.port}\ndir {server.folder}\n", "utf-8")
    server.argv = ["valkey-server", str(settings), "--sentinel"]
    server.start()
    assert "names a Sentinel; name the primary" in await refusal(client(server.url))


@pytest.mark.parametrize("settings", [(), ("--maxmemory", "100mb"), ("--maxmemory-policy", "allkeys-lru")])
async def test_a_server_that_can_is_taken(
    start_server: Start, client: Callable[[str], Redis], settings: tuple[str, ...]
) -> None:
    await check_server(client(start_server(*settings).url))


@pytest.mark.parametrize("kind", ["valkey-9", "redis-7"])
async def test_a_server_that_keeps_no_append_only_file_is_taken_with_a_warning(
    start_server: Start, client: Callable[[str], Redis], kind: str
) -> None:
    for kept, warnings in (("no", ["server.forgets"]), ("yes", [])):
        redis = client(start_server("--appendonly", kept, program=program(kind)).url)
        with capture_logs() as lines:
            assert await wait_for_server(LaneQueue(redis, name=NAME)) == 0
        assert [line["event"] for line in lines] == warnings
        assert all(line["log_level"] == "warning" and "set appendonly yes" in line["remedy"] for line in lines)


async def test_an_old_server_is_refused(start_server: Start, client: Callable[[str], Redis]) -> None:
    server = start_server(program=program("redis-6"))
    assert "names a Redis 6.2.5; use Redis 7 or newer, or Valkey" in await refusal(client(server.url))
    await client(server.url).execute_command(*["ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-info"])
    assert "use Redis 7 or newer, or Valkey" in await refusal(client(server.url.replace("//", "//blind:pw@")))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (["~*", "&*", "+@read", "+info", "+eval"], "grant +ping +select"),
        (["~*", "&*", "+@all", "-eval"], "grant +eval "),
        (["~*", "&*", "+@all", "-blmove", "-zadd"], "grant +blmove +zadd "),
        (["~saq:*", "~phoenix:*", "&*", "+@all"], "grant ~lock:* ~processed:* "),
        (["~*", "+@all"], "grant +publish "),
    ],
)
async def test_a_user_that_may_not_do_what_is_needed_is_refused_with_what_to_grant(
    start_server: Start, client: Callable[[str], Redis], rules: list[str], said: str
) -> None:
    server = start_server("--acl-pubsub-default", "resetchannels")
    await client(server.url).execute_command("ACL", "SETUSER", "least", "on", ">pw", *rules)
    assert said in await refusal(client(server.url.replace("//", "//least:pw@")))


async def test_settings_that_may_not_be_read_are_warned_about(
    start_server: Start, client: Callable[[str], Redis]
) -> None:
    server = start_server()
    await client(server.url).execute_command(*["ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-info"])
    with capture_logs() as lines:
        await check_server(client(server.url.replace("//", "//blind:pw@")))
    (line,) = lines
    assert (line["log_level"], line["event"], line["remedy"]) == ("warning", "server.unchecked", "grant it +info")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:{port}", "write user and password in PHAZE_REDIS_URL"),
        ("redis://:wr%2Fong@127.0.0.1:{port}", "correct user and password in PHAZE_REDIS_URL"),
        ("redis://nobody:wr%2Fong@127.0.0.1:{port}", "correct user and password in PHAZE_REDIS_URL"),
        ("redis://:s3%2Fcret@127.0.0.1:{port}/99", "lower the database number at the end of PHAZE_REDIS_URL"),
    ],
)
async def test_what_the_address_gets_wrong_is_refused_with_the_remedy(
    start_server: Start, client: Callable[[str], Redis], url: str, said: str
) -> None:
    server = start_server("--requirepass", "s3/cret")
    line = await refusal(client(url.format(port=server.port)))
    assert said in line
    assert "cret" not in line
    assert "ong" not in line


def _answer(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(b"GET key:1\r\n")
        return line.recv(100)


async def test_a_server_that_is_away_or_still_loads_is_waited_for_and_told_once(
    start_server: Start, client: Callable[[str], Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "MAX_BACKOFF", 0.3)
    server = start_server("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
    redis = client(server.url)
    async with redis.pipeline() as pipe:
        for number in range(200):
            pipe.set(f"key:{number}", "x" * 100)
        await pipe.execute()
    await redis.save()
    server.kill()
    with capture_logs() as lines:
        waiting = asyncio.create_task(wait_for_server(LaneQueue(redis, name=NAME)))
        await asyncio.sleep(1.0)
        server.start()
        assert b"-LOADING" in await asyncio.to_thread(_answer, server.port)
        assert not waiting.done()
        assert await waiting == 0
    (line,) = [line for line in lines if line["event"] != "server.forgets"]
    assert line["event"] == "server.waiting"
    assert "see that it runs and that PHAZE_REDIS_URL is its address" in line["remedy"]


async def test_what_plain_workers_left_is_put_back_first_in_line(redis: Redis) -> None:
    plain, ours = RedisQueue(redis, name=NAME), LaneQueue(redis, name=NAME)
    for number in range(3):
        await plain.enqueue("wish", key=f"wish:{number}")
    assert await plain.dequeue(timeout=1) is not None
    assert await take_over_queue(ours) == 1
    assert await ours.count("active") == 0
    _, runs, _ = await ours.step("w", "meta", 3)
    assert [run.record for run in runs] == ["0", "1", "2"]


async def test_a_queue_on_which_a_plain_worker_runs_is_left_alone(redis: Redis) -> None:
    plain, ours = RedisQueue(redis, name=NAME), LaneQueue(redis, name=NAME)
    await plain.enqueue("wish", key="wish:1")
    await plain.dequeue(timeout=1)
    await plain.worker_info("old-worker", queue_key=NAME)
    with pytest.raises(ConfigError, match=r"a plain SAQ worker runs on .*old-worker.*stop it first"):
        await take_over_queue(ours)
    assert await plain.count("active") == 1
