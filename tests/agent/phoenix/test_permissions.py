"""The least ACL rule of the README is enough for everything, and nothing in it is too much."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis.asyncio import Redis
from redis.exceptions import RedisError
from saq.job import Status
from saq.queue.redis import RedisQueue

from agent.cancelling import end
from agent.cli import phaze
from agent.errors import ConfigError
from agent.hub.activity import Activity
from agent.hub.catalogue import Catalogue
from agent.lanes import base_queue_name, queue_name
from agent.phoenix import keys, permissions
from agent.phoenix.boot import wait_for_server
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import CircuitHeld, Quarantined
from agent.phoenix.outbox import outbox_key, refused_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.relay import Relay
from agent.phoenix.worker import LaneWorker
from agent.processors import BaseProcessor
from agent.producer import Producer
from agent.queue_activity import get_queue_activity
from agent.redis_client import connect
from agent.redis_trouble import trouble
from pipelines.errors import RecordNotFoundError
from tests.agent.phoenix.engines import over, running, until
from tests.agent.phoenix.stages import Stage
from tests.conftest import REPO
from tests.control_plane import ControlPlane
from tests.servers import Local, program

TASK = "push_file"
QUEUE = queue_name("local", "io")


def readmes_rule(begins: str = "    ACL SETUSER phaze on") -> str:
    """The rule as README prints it."""
    _, _, rest = (REPO / "README.md").read_text("utf-8").partition(begins)
    return " ".join((begins + rest.partition("\n\n")[0]).split())


def test_the_readme_prints_the_rule_by_which_a_start_is_checked() -> None:
    assert readmes_rule() == permissions.rule()
    assert readmes_rule("    ACL SETUSER phaze ~pages:") == permissions.streams_rule()


def a_body() -> Any:
    """A task that ends as it is told, each job's first time."""
    seen: set[str] = set()

    async def body(context: Any, *, do: str = "") -> str:
        key = context["job"].key
        if key not in seen:
            seen.add(key)
            if do == "lose":
                raise RecordNotFoundError("gone")
            if do == "refuse":
                raise Quarantined("bad")
            if do == "hold":
                raise CircuitHeld("store")
            if do == "hang":
                await asyncio.sleep(60)
        return "well"

    return body


async def test_a_script_that_is_refused_a_command_says_what_to_do(servers_admin: Redis) -> None:
    await servers_admin.execute_command(*readmes_rule().replace("+zadd ", "").split())
    redis = connect(f"redis://phaze:PASSWORD@127.0.0.1:{servers_admin.connection_pool.connection_kwargs['port']}")
    with pytest.raises(RedisError) as error:
        await LaneQueue(redis, name=QUEUE).sweep()
    assert trouble(error.value).lasting
    assert "as the rule in README, Configuration does" in trouble(error.value).remedy
    await redis.aclose()


@pytest.fixture(params=["valkey-9", "redis-7"])
async def servers_admin(request: pytest.FixtureRequest, start_server: Callable[..., Local]) -> AsyncIterator[Redis]:
    """A client that may do everything, on a server where the default user needs a password."""
    server = start_server("--requirepass", "all", "--acl-pubsub-default", "resetchannels",
                          program=program(request.param))  # fmt: skip
    admin = connect(f"redis://:all@127.0.0.1:{server.port}")
    yield admin
    await admin.aclose()


async def test_a_whole_jobs_life_needs_the_readmes_rule_and_all_of_it(
    servers_admin: Redis, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await servers_admin.execute_command(*readmes_rule().replace("PASSWORD", "p/w").split())
    await servers_admin.config_resetstat()
    url = f"redis://phaze:p%2Fw@127.0.0.1:{servers_admin.connection_pool.connection_kwargs['port']}/1"
    monkeypatch.setenv("PHAZE_REDIS_URL", url)
    redis = connect(url)
    async with working(redis, plane) as queue:
        await the_life(redis, queue)
        await what_operators_do(queue)
        with Catalogue(tmp_path) as catalogue:
            catalogue.register_agent("local", "t0ken")
            assert (await Activity(catalogue, redis).status())["queue"] == "ok"
    await redis.aclose()
    denied = [entry[entry.index(b"object") + 1] for entry in await servers_admin.execute_command("ACL", "LOG")]
    assert denied == []
    used = {name.removeprefix("cmdstat_") for name in await servers_admin.info("commandstats")}
    assert set(permissions.COMMANDS) - used == set(), "nothing is granted in vain"


class Reading(BaseProcessor):
    """Asks for what there is to ask for."""

    next_service = "last"
    last_to_read_pages = True

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        return {"pages": await self.pages(record_id)}


async def test_streams_need_what_the_readme_adds_for_them(
    servers_admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await servers_admin.execute_command(*readmes_rule().split())
    url = f"redis://phaze:PASSWORD@127.0.0.1:{servers_admin.connection_pool.connection_kwargs['port']}"
    redis = connect(url)
    with pytest.raises(ConfigError, match=r"grant \+xack \+xautoclaim .*~pages:\*"):
        await wait_for_server(LaneQueue(redis, name="q"), streams=True)
    await servers_admin.execute_command(*permissions.streams_rule().split())
    await servers_admin.config_resetstat()
    await servers_admin.execute_command("ACL", "LOG", "RESET")
    stage = Stage(redis, "first", Reading)
    await wait_for_server(stage.queue, streams=True)
    await servers_admin.set("pages:r1", "[]")
    listening = redis.pubsub()
    await listening.subscribe(keys.progress_channel("r1"))
    await listening.unsubscribe()
    async with stage.working(idle=0.1):
        await stage.ask("r1")
        await stage.redis.xadd(stage.stream, {"no": "record"})
        await until(lambda: servers_admin.exists(keys.stream_key("last")), 10)
        await until(lambda: servers_admin.exists(keys.dead_letters_key("first")), 10)
        await servers_admin.xgroup_createconsumer(stage.stream, stage.group, "gone-1-x")
        await until(lambda: _no_consumer(servers_admin, stage), 10)
        await stage.ask("r2")
        await until(lambda: _two_letters(servers_admin), 10)
    monkeypatch.setenv("PHAZE_REDIS_URL", url)
    done = await asyncio.to_thread(CliRunner().invoke, phaze, ["stream", "status", "first"])
    assert "phoenix:first:input: 0 entries" in done.output, done.output
    await listening.aclose()
    await redis.aclose()
    denied = [entry[entry.index(b"object") + 1] for entry in await servers_admin.execute_command("ACL", "LOG")]
    assert denied == []
    used = {name.removeprefix("cmdstat_") for name in await servers_admin.info("commandstats")}
    assert set(permissions.STREAM_COMMANDS) - used == set(), "nothing is granted in vain"


async def _no_consumer(admin: Redis, stage: Stage) -> bool:
    return b"gone-1-x" not in [row["name"] for row in await admin.xinfo_consumers(stage.stream, stage.group)]


async def _two_letters(admin: Redis) -> bool:
    return int(await admin.llen(keys.dead_letters_key("first"))) == 2


async def test_who_may_not_read_info_has_its_jobs_retried_and_taken_over(servers_admin: Redis) -> None:
    await servers_admin.execute_command(*readmes_rule().replace("+info ", "").split())
    redis = connect(f"redis://phaze:PASSWORD@127.0.0.1:{servers_admin.connection_pool.connection_kwargs['port']}")
    queue = LaneQueue(redis, name=QUEUE, lease=0.5)
    worker = LaneWorker(queue, [(TASK, a_body())], sweep=0.2)
    await wait_for_server(queue)
    await queue.enqueue(TASK, key=f"{TASK}:1")
    await queue.step("dead", "io", 1)
    await queue.enqueue(TASK, key=f"{TASK}:2", scheduled=int(time.time()) + 1)
    async with running(worker):
        assert await over(queue, f"{TASK}:1", 10)
        assert await over(queue, f"{TASK}:2", 10)
    await queue.disconnect()


@contextlib.asynccontextmanager
async def working(redis: Redis, plane: ControlPlane) -> AsyncIterator[LaneQueue]:
    """A worker and its relay."""
    queue = LaneQueue(redis, name=QUEUE, lease=1.0)
    relay = Relay(redis, QUEUE, hub_url=plane.url, agent_id="local", token="t0ken")
    worker = LaneWorker(queue, [(TASK, a_body())], lane="io", concurrency=2, outbox=True, sweep=0.2, grace=0.1)
    assert await wait_for_server(queue) == 0
    await queue.enqueue(TASK, key=f"{TASK}:0")
    await queue.upkeep(orphans=True, aborts=True)
    await queue.step("deaf", "io", 1)
    assert await queue.unheard("deaf", []) == 1
    await queue.step("dead", "io", 1)
    working = [asyncio.create_task(worker.start()), asyncio.create_task(relay.run())]
    yield queue
    worker.event.set()
    await working[0]
    await redis.xadd(outbox_key(QUEUE), {"entry": "no JSON"})
    assert await until(lambda: redis.xlen(refused_key(QUEUE)), 10)
    other = Relay(redis, QUEUE, hub_url=plane.url, agent_id="local", token="t0ken")
    await other.drain(1)  # not its turn
    await other.close()
    assert plane.entries
    await end(working)
    await relay.close()
    await queue.disconnect()


async def the_life(redis: Redis, queue: LaneQueue) -> None:
    """Producers of both kinds, every ending, an abort, a takeover, what the page asks for."""
    producer = RedisQueue(redis, name=QUEUE)
    job = await producer.enqueue(TASK, key=f"{TASK}:1", ttl=60)
    assert job is not None
    assert await over(
        queue, f"{TASK}:1", 10
    )  # SAQ's own wait for it does not hear of one that is over before it listens
    await job.refresh()
    assert job.status is Status.COMPLETE
    assert await queue.apply(TASK, timeout=10, key=f"{TASK}:1") == "well"
    for number, do in enumerate(("lose", "lose", "refuse", "hold"), 2):
        await queue.enqueue(TASK, key=f"{TASK}:{number}", do=do)
    assert await until(lambda: redis.llen(keys.dead_letters_key(TASK)), 10)
    assert await over(queue, f"{TASK}:5", 30), "a closed circuit holds nobody"
    await queue.enqueue(TASK, key=f"{TASK}:6", do="hang", timeout=1)
    await queue.enqueue(TASK, key=f"{TASK}:7", do="hang", timeout=0)
    assert await until(lambda: _runs(queue, f"{TASK}:7"), 10)
    hanging = await queue.job(f"{TASK}:7")
    assert hanging is not None
    waiting = asyncio.create_task(hanging.refresh(until_complete=20))
    await asyncio.sleep(0.2)
    await hanging.abort("enough")
    await waiting
    assert await over(queue, f"{TASK}:7", 10)
    assert await until(lambda: _failed(queue, f"{TASK}:6"), 10)
    await queue.hurry()
    assert await over(queue, f"{TASK}:6", 10)
    await queue.retry(job, None)
    breakers = Breakers(queue.scripts, redis)
    anns = keys.user_circuit("llm", "ann")
    for circuit in (anns, *["store"] * 5):
        with pytest.raises(ConnectionError):
            async with breakers.guard(circuit, "owner"):
                raise ConnectionError("away")
    async with breakers.guard(anns, "owner"):
        pass
    assert await over(queue, f"{TASK}:0", 10)
    await Producer(redis).pending("local", TASK, ["1"])
    await queue.info(jobs=True)


async def _runs(queue: LaneQueue, key: str) -> bool:
    job = await queue.job(key)
    return job is not None and job.status is Status.ACTIVE


async def _failed(queue: LaneQueue, key: str) -> bool:
    job = await queue.job(key)
    return job is not None and job.attempts > 0


async def what_operators_do(queue: LaneQueue) -> None:
    """Each command once, with what it has to work on."""
    for line in (
        "breaker list", "breaker open store --reason x", "breaker close store --reason x", "breaker reset store",
        "dlq list", f"dlq show {TASK}:2", f"dlq replay {TASK}:2", f"dlq drop {TASK}:3", "quarantine list",
        "pause io", "resume io", f"why {TASK}:1", f"forget {TASK}:1 --yes", f"why {TASK}:1",
    ):  # fmt: skip
        done = await asyncio.to_thread(CliRunner().invoke, phaze, line.split())
        assert done.exit_code == 0, (line, done.output, done.exception)
    await asyncio.to_thread(CliRunner().invoke, phaze, ["pause", "io"])
    await queue.enqueue(TASK, key=f"{TASK}:9")
    done = await asyncio.to_thread(CliRunner().invoke, phaze, ["why", f"{TASK}:9"])
    assert "it is queued, with 0 before it; the lane is paused" in done.output
    await LaneQueue(queue.redis, name=base_queue_name("local")).enqueue(TASK, key=f"{TASK}:9")
    for line, said in (
        ("lanes --json", '"error": null'),
        ("drain status", "1 queued"),
        ("drain wait --timeout 0", f"{TASK}:9: waits for a worker"),
    ):
        done = await asyncio.to_thread(CliRunner().invoke, phaze, line.split())
        assert said in done.output, (line, done.output, done.exception)
    rows = await get_queue_activity(queue.redis, ["local"])
    assert [row.error for row in rows] == [None] * len(rows)
    assert all(row.oldest is not None for row in rows if row.queued)
