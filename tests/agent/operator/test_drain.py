"""`phaze lanes` and `phaze drain` on a running system."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from agent.lanes import DOCUMENT_LANES, FILE_LANES, LANES, base_queue_name, queue_name
from agent.phoenix import keys
from agent.phoenix.endings import CircuitHeld
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from agent.queue_activity import get_queue_activity
from tests.agent.operator.conftest import Phaze

BASE = base_queue_name("local")


async def test_lanes_shows_every_lane_and_the_base_queue_only_while_it_matters(redis: Redis, phaze: Phaze) -> None:
    assert "base queue" not in await phaze("lanes")
    await LaneQueue(redis, name=BASE).enqueue("push_file", key="push_file:1")
    await LaneQueue(redis, name=queue_name("local", "io")).enqueue(
        "push_file", key="push_file:2", scheduled=int(time.time()) + 99
    )
    shown = await phaze("lanes")
    assert all(lane in shown for lane in FILE_LANES)
    assert not any(lane in shown for lane in DOCUMENT_LANES), "nobody is there for documents"
    assert "(base queue)" in shown
    assert "no worker" in shown
    rows = {row["lane"]: row for row in json.loads(await phaze("lanes", "--json"))}
    assert (rows[None]["queued"], rows["io"]["scheduled"], rows["io"]["queued"]) == (1, 1, 0)
    assert 0 <= rows[None]["oldest"] < 60


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
async def test_a_watch_into_a_pipe_shows_each_look_after_the_last(
    redis: Redis, valkey_url: str, options: tuple[str, ...]
) -> None:
    argv = [sys.executable, "-m", "agent.cli", "lanes", "--watch", *options]
    env = {**os.environ, "PHAZE_REDIS_URL": valkey_url}
    process = await asyncio.create_subprocess_exec(*argv, env=env, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    seen: list[int] = []  # what was queued on io, look by look
    async with asyncio.timeout(60):
        while 1 not in seen:
            line = (await process.stdout.readline()).decode()
            assert "\x1b" not in line
            if options:
                seen += [row["queued"] for row in json.loads(line) if row["lane"] == "io"]
            elif line.startswith(" io "):
                seen.append(int(line.split()[1]))
            if seen == [0]:
                await LaneQueue(redis, name=queue_name("local", "io")).enqueue("push_file", key="push_file:2")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert seen[0] == 0


async def test_what_is_paused_shows_by_its_name_be_it_a_lane_or_a_task(redis: Redis, phaze: Phaze) -> None:
    await LaneQueue(redis, name=queue_name("local", "io")).enqueue("push_file", key="push_file:2")
    await phaze("pause", "push_file")
    await phaze("pause", "meta")
    await phaze("pause", "router")
    shown = {line.split()[0]: line for line in (await phaze("lanes")).splitlines() if line.strip()}
    assert shown["io"].rstrip().endswith("paused: push_file")
    for lane in ("meta", "router"):
        assert shown[lane].split()[-1] == "paused", "also a lane that nobody uses yet"
    assert not {"(base", "parser"} & shown.keys()
    rows = {row["lane"]: row for row in json.loads(await phaze("lanes", "--json"))}
    assert [lane for lane, row in rows.items() if row["paused"]] == ["meta", "io", "router", None]
    assert (rows["io"]["pauses"], rows["meta"]["pauses"]) == (["push_file"], ["meta"])
    assert "it is queued, with 0 before it; push_file is paused" in await phaze("why", "push_file:2")
    await phaze("pause", "io")
    assert "paused: io, push_file" in await phaze("lanes")
    assert "it is queued, with 0 before it; the lane is paused; push_file is paused" in await phaze(
        "why", "push_file:2"
    )


async def test_a_queue_that_fails_spoils_its_own_row_alone(redis: Redis) -> None:
    await redis.set(keys.queued_key(queue_name("local", "io")), "somebody else's")
    rows = {row.lane: row for row in await get_queue_activity(redis, ["local"])}
    assert "WRONGTYPE" in (rows["io"].error or "")
    assert [row.error for lane, row in rows.items() if lane != "io"] == [None] * len(LANES)


async def test_jobs_that_run_on_workers_from_before_are_counted(redis: Redis) -> None:
    await redis.rpush(f"saq:{BASE}:active", "saq:job:x:1", "saq:job:x:2")
    rows = {row.lane: row for row in await get_queue_activity(redis, ["local"])}
    assert rows[None].active == 2


async def test_drain_waits_until_the_base_queue_is_empty(redis: Redis, phaze: Phaze) -> None:
    async def slow(_context: Any) -> None:
        await asyncio.sleep(0.2)

    queue = LaneQueue(redis, name=BASE)
    producer = RedisQueue(redis, name=BASE)  # plain SAQ, as from before
    for number in range(20):
        await producer.enqueue("push_file", key=f"push_file:{number}")
    said = await phaze("drain", "status")
    assert f"{BASE}: 20 queued, 0 active, 0 scheduled, 0 parked; nobody consumes it" in said
    worker = LaneWorker(queue, [("push_file", slow)], lane="all", concurrency=4)
    working = asyncio.create_task(worker.start())
    said = await phaze("drain", "wait", "--timeout", "60")
    assert said.splitlines()[-1] == "drained"
    assert worker.settled == 20
    worker.event.set()
    await working
    assert "0 queued, 0 active" in await phaze("drain", "status")


async def test_a_drain_whose_time_is_over_names_what_is_left_and_why(redis: Redis, phaze: Phaze) -> None:
    async def stubborn(context: Any) -> None:
        if context["job"].key.endswith("park"):
            raise CircuitHeld("store")
        raise OSError("no route to host")

    queue = LaneQueue(redis, name=BASE)
    worker = LaneWorker(queue, [("push_file", stubborn)], lane="all", concurrency=4)
    working = asyncio.create_task(worker.start())
    await queue.enqueue("push_file", key="push_file:park")
    await queue.enqueue("push_file", key="push_file:fail")
    async with asyncio.timeout(20):
        while await redis.zcount(keys.incomplete_key(BASE), 1, "+inf") < 2:
            await asyncio.sleep(0.05)
    said = await phaze("drain", "wait", "--timeout", "1.5", code=4)
    assert "not drained in 1.5 s" in said
    assert "push_file:park: parked, waits for a circuit" in said
    assert "push_file:fail: waits" in said
    assert "OSError: no route to host" in said
    worker.event.set()
    await working


async def test_a_drain_of_an_agent_that_nobody_knows_says_so(redis: Redis, phaze: Phaze) -> None:
    for words in (("status",), ("wait", "--timeout", "5")):
        said = await phaze("drain", *words)
        assert "warning: no worker of an agent local runs, and no queue of it holds a job; PHAZE_AGENT_ID" in said
    await LaneQueue(redis, name=queue_name("local", "io")).enqueue("push_file", key="push_file:1")
    assert "warning" not in await phaze("drain", "wait", "--timeout", "5"), "its lanes have work"


async def test_an_empty_queue_is_drained_however_short_the_wait(redis: Redis, phaze: Phaze) -> None:
    assert "drained" in (await phaze("drain", "wait", "--timeout", "0")).splitlines()
    await LaneQueue(redis, name=BASE).enqueue("push_file", key="push_file:1")
    assert "not drained in 0 s" in await phaze("drain", "wait", "--timeout", "0", code=4)
