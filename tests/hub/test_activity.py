from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.job import Job, Status
from saq.queue.redis import RedisQueue

from agent.hub import activity as module
from agent.hub import holds
from agent.hub.activity import Activity, UnknownAgent
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, FILE_TASKS
from agent.hub.reconciler import Reconciler
from agent.lanes import lane_for_task, queue_name
from agent.phoenix import keys
from agent.phoenix.breaker import Breakers
from agent.phoenix.scripts import Scripts
from agent.producer import Producer
from agent.redis_client import connect
from tests.hub.deliveries import AGENT, result, scan, seen


@pytest.fixture
def status(catalogue: Catalogue, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    monkeypatch.setattr(module, "FRESH", 0.0)
    monkeypatch.setattr(module, "COST", 0.0)
    return Activity(catalogue, redis).status


async def put(
    redis: Redis,
    record: int,
    *,
    attempts: int = 0,
    wait: float = 0.0,
    state: Status = Status.QUEUED,
    agent: str = AGENT,
    error: str = "Traceback (most recent call last):\n  File x\nOSError: the disk is gone",
    ago: float = 0.0,
    progress: float = 0.0,
    note: str = "",
    version: str = "",
) -> None:
    """Have a job of the analysis lane stand where a worker would have left it; `attempts` have failed."""
    name = queue_name(agent, lane_for_task(ANALYSIS))
    queue = RedisQueue(redis, name=name)
    job = Job(ANALYSIS, key=f"{ANALYSIS}:{record}", queue=queue, attempts=attempts, status=state)
    job.error = error
    job.kwargs = {"version": version} if version else None
    job.started = int((time.time() - ago) * 1000)
    job.progress, job.meta = progress, {"note": note}
    await redis.set(job.id, queue.serialize(job))
    await redis.zadd(keys.incomplete_key(name), {job.id: time.time() + wait if wait else 0})
    await redis.lrem(keys.queued_key(name), 0, job.id)
    await redis.zrem(keys.active_key(name), job.id)
    if state == Status.ACTIVE:
        await redis.zadd(keys.active_key(name), {job.id: time.time() * 1000 + 15_000})
    elif not wait:
        await redis.rpush(keys.queued_key(name), job.id)


async def test_an_empty_hub_is_idle(status: Callable[[], Any]) -> None:
    found = await status()
    assert found["idle"] is True
    assert found["settled_or_retrying"] is True
    assert found["queue"] == "ok"
    assert found["scans"] == {"open": 0}
    assert set(found["lanes"]) == {"analyze", "fingerprint", "meta", "io"}


async def test_lanes_count_what_is_settled_and_what_is_not(
    catalogue: Catalogue, redis: Redis, status: Callable[[], Any]
) -> None:
    scan(catalogue, "/m", [seen(f"/m/{i}") for i in range(4)])
    catalogue.request_scans(AGENT, ["/n"])
    await Reconciler(catalogue, Producer(redis), redis).reconcile()
    catalogue.record(
        AGENT,
        [
            result(ANALYSIS, 1, "/m/0"),
            result(ANALYSIS, 2, "/m/1", outcome="rejected", reason="not-audio"),
            result(ANALYSIS, 3, "/m/2", outcome="partial", reason="short"),
        ],
    )
    found = await status()
    analyze, meta = found["lanes"]["analyze"], found["lanes"]["meta"]
    assert {name: analyze[name] for name in ("total", "done", "rejected", "partial", "skipped", "owed", "queued")} == {
        "total": 4, "done": 1, "rejected": 1, "partial": 1, "skipped": 0, "owed": 1, "queued": 4,
    }  # fmt: skip
    assert (meta["total"], meta["owed"], meta["queued"]) == (4, 4, 5)
    assert found["scans"] == {"open": 1, "done": 1}
    assert (found["idle"], found["settled_or_retrying"]) == (False, False)


async def test_running_and_retrying_jobs_are_named(
    catalogue: Catalogue, redis: Redis, status: Callable[[], Any]
) -> None:
    scan(catalogue, "/m", [seen("/m/a%20b%0A"), seen("/m/c")])
    await put(redis, 1, attempts=1, state=Status.ACTIVE)
    await put(redis, 2, attempts=2, wait=60)
    found = await status()
    [active], [retrying] = found["active"], found["retrying"]
    assert (active["task"], active["lane"], active["path"], active["attempts"]) == (
        ANALYSIS, "analyze", "/m/a b\ufffd", 2,
    )  # fmt: skip
    assert abs(active["since"] - time.time()) < 10
    assert (retrying["path"], retrying["attempts"], retrying["error"]) == ("/m/c", 2, "OSError: the disk is gone")
    assert found["lanes"]["analyze"]["retrying"] == 1


async def test_late_retries_are_not_waited_for(catalogue: Catalogue, redis: Redis, status: Callable[[], Any]) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    others = [service for service in FILE_TASKS if service != ANALYSIS]
    catalogue.record(AGENT, [result(service, i, f"/m/{n}") for service in others for i, n in ((1, "a"), (2, "b"))])
    steps: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({"attempts": 3, "wait": 60}, {"attempts": 2, "wait": 60}, False),
        ({"attempts": 3, "wait": 60}, {"attempts": 3, "state": Status.ACTIVE}, False),
        ({"attempts": 3, "wait": 60}, {"attempts": 3, "wait": 9}, True),
        ({"attempts": 3, "wait": 60}, {"attempts": 3}, False),  # its turn is next
        ({"attempts": 3, "wait": 60}, {"attempts": 4, "state": Status.ACTIVE}, False),
        ({"attempts": 3, "wait": 60}, {"attempts": 4, "state": Status.ABORTING}, False),
    ]
    for first, second, settled in steps:
        await put(redis, 1, **first)
        await put(redis, 2, **second)
        found = await status()
        assert (found["idle"], found["settled_or_retrying"]) == (False, settled), (first, second)
    await put(redis, 2, attempts=3, wait=60, version="of another profile")
    assert (await status())["settled_or_retrying"] is False, "it is about to give way to the one that is owed"
    await put(redis, 2, attempts=3, wait=60, version=result(ANALYSIS, 2, "/m/b").version)
    assert (await status())["settled_or_retrying"] is True
    await redis.flushall()
    assert (await status())["settled_or_retrying"] is False, "a job that no queue knows is not retrying"


async def test_a_thousand_late_retries_count_too(
    catalogue: Catalogue, redis: Redis, status: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 20)
    scan(catalogue, "/m", [seen(f"/m/{i}") for i in range(60)])
    others = [service for service in FILE_TASKS if service != ANALYSIS]
    catalogue.record(AGENT, [result(service, i + 1, f"/m/{i}") for service in others for i in range(60)])
    for record in range(1, 61):
        await put(redis, record, attempts=3, wait=60 + record)
    assert (await status())["settled_or_retrying"] is True
    for other in (
        {"attempts": 1, "wait": 2},
        {"attempts": 9, "state": Status.ACTIVE},
        {"attempts": 0, "wait": keys.FAR_FUTURE},  # held by a circuit
    ):
        await put(redis, 60, **other)
        assert (await status())["settled_or_retrying"] is False, other


async def owed_two_analyses(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    others = [service for service in FILE_TASKS if service != ANALYSIS]
    catalogue.record(AGENT, [result(service, i, f"/m/{n}") for service in others for i, n in ((1, "a"), (2, "b"))])


async def parked(redis: Redis, record: int, waits_for: str) -> None:
    """Have a job wait for a circuit, or for the end of a pause, as the engine leaves it."""
    name = queue_name(AGENT, lane_for_task(ANALYSIS))
    await put(redis, record, wait=keys.FAR_FUTURE)
    await redis.rpush(keys.parked_key(waits_for), f"{keys.job_prefix(name)}{ANALYSIS}:{record}")
    await redis.sadd(keys.parked_index_key(name), waits_for)


@pytest.mark.parametrize("name", [ANALYSIS, lane_for_task(ANALYSIS)])
async def test_what_is_paused_is_not_waited_for_and_said(
    catalogue: Catalogue, redis: Redis, status: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await owed_two_analyses(catalogue)
    await put(redis, 1)
    await put(redis, 2, attempts=1, wait=5)
    assert (await status())["held"] == {}
    await redis.sadd(keys.PAUSED, name, "io", "scan_directory")
    found = await status()
    assert (found["idle"], found["settled_or_retrying"]) == (False, True)
    assert found["held"] == {name: f"{name} is paused; `phaze resume {name}` lets it go on"}
    await parked(redis, 1, f"paused:{name}")
    assert (await status())["settled_or_retrying"] is True
    await put(redis, 2, state=Status.ACTIVE)
    assert (await status())["settled_or_retrying"] is False, "what runs goes on"
    await put(redis, 2, wait=60)
    scan(catalogue, "/n", [seen(f"/n/{i}") for i in range(30)])
    assert (await status())["settled_or_retrying"] is False, "other tasks have work"
    monkeypatch.setattr(module, "LOOKED_AT", 20)
    assert (await status())["settled_or_retrying"] is False, "much of it"


async def test_a_circuit_that_stays_open_is_not_waited_for_and_said(
    catalogue: Catalogue, redis: Redis, status: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await owed_two_analyses(catalogue)
    await parked(redis, 1, "engine:80")
    await parked(redis, 2, "engine:80")
    breakers = Breakers(Scripts(redis), redis)
    assert (await status())["settled_or_retrying"] is False, "closed: they go on at once"
    await breakers.force("engine:80", "open", "new disks")
    found = await status()
    assert found["settled_or_retrying"] is True
    assert "engine:80 is held open (new disks); `phaze breaker reset engine:80`" in found["held"]["engine:80"]
    await put(redis, 2, wait=5)
    assert (await status())["settled_or_retrying"] is False, "the other waits for the clock"
    await parked(redis, 2, "engine:80")
    await breakers.force("engine:80", "none", "")
    await redis.hset(keys.breaker_key("engine:80"), mapping={"state": "open", "opened": int(time.time() * 1000)})
    for _ in range(2):
        assert (await status())["settled_or_retrying"] is False, "it may be over in a minute"
    monkeypatch.setattr(holds, "STAYS_OPEN", 0.0)
    found = await status()
    assert found["settled_or_retrying"] is True
    assert "engine:80 stays open" in found["held"]["engine:80"]
    monkeypatch.setattr(module, "LOOKED_AT", 1)
    assert (await status())["settled_or_retrying"] is True, "also where they are too many to be matched"


async def test_a_job_that_is_taken_while_we_look_is_not_late(
    catalogue: Catalogue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    others = [service for service in FILE_TASKS if service != ANALYSIS]
    catalogue.record(AGENT, [result(service, 1, "/m/a") for service in others])
    await put(redis, 1, attempts=5)
    activity = Activity(catalogue, redis)
    real = activity._jobs

    async def taken_before(queue: Any, ids: list[bytes]) -> Any:
        await put(redis, 1, attempts=5, state=Status.ACTIVE)
        return await real(queue, ids)

    monkeypatch.setattr(activity, "_jobs", taken_before)
    found = await activity.status()
    assert found["settled_or_retrying"] is False
    assert found["retrying"] == []


async def test_one_agents_debts_are_not_the_others(
    catalogue: Catalogue, redis: Redis, status: Callable[..., Any]
) -> None:
    catalogue.register_agent("other", "t")
    scan(catalogue, "/m", [seen("/m/a")])
    catalogue.record(AGENT, [result(service, 1, "/m/a") for service in FILE_TASKS])
    scan(catalogue, "/m", [seen("/m/x"), seen("/m/y")], agent="other")
    others = [service for service in FILE_TASKS if service != ANALYSIS]
    catalogue.record("other", [result(service, i, f"/m/{n}") for service in others for i, n in ((2, "x"), (3, "y"))])
    await put(redis, 2, attempts=4, wait=60, agent="other")
    await put(redis, 3, attempts=1, state=Status.ACTIVE, agent="other")
    mine, theirs, all_ = await status(AGENT), await status("other"), await status()
    assert (mine["owed"], mine["idle"], mine["settled_or_retrying"]) == (0, True, True)
    assert (mine["files"], mine["scans"], mine["active"], mine["retrying"]) == (1, {"open": 0, "done": 1}, [], [])
    assert mine["lanes"]["analyze"] == {
        "queued": 0, "active": 0, "scheduled": 0, "owed": 0, "retrying": 0,
        "total": 1, "done": 1, "partial": 0, "rejected": 0, "skipped": 0,
    }  # fmt: skip
    assert (theirs["owed"], theirs["idle"], theirs["settled_or_retrying"], theirs["files"]) == (2, False, False, 2)
    assert [row["path"] for row in (*theirs["active"], *theirs["retrying"])] == ["/m/y", "/m/x"]
    assert (theirs["lanes"]["analyze"]["total"], theirs["lanes"]["analyze"]["done"]) == (2, 0)
    assert (all_["owed"], all_["files"], all_["lanes"]["analyze"]["done"]) == (2, 3, 1)
    await put(redis, 3, attempts=3, wait=60, agent="other")
    assert (await status("other"))["settled_or_retrying"] is True
    catalogue.request_scans(AGENT, ["/n"])
    assert (await status("other"))["settled_or_retrying"] is True, "our scan is none of theirs"
    assert (await status(AGENT))["settled_or_retrying"] is False
    with pytest.raises(UnknownAgent, match="'nobody'; there are local, other"):
        await status("nobody")


async def test_errors_tell_no_secret(catalogue: Catalogue, redis: Redis, status: Callable[[], Any]) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    long = "x" * 280
    await put(redis, 1, attempts=1, wait=9, error=f"OSError: https://store/{long}?X-Amz-Signature=abcdefghijklmnop")
    [job] = (await status())["retrying"]
    assert "abc" not in job["error"]
    await put(redis, 1, attempts=1, wait=9, error="ConnectError: redis://:hunter2@host/0 with Bearer abc.def")
    [job] = (await status())["retrying"]
    assert job["error"] == "ConnectError: redis://:[redacted]@host/0 with Bearer [redacted]"


async def test_askers_share_an_answer(catalogue: Catalogue, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = catalogue.progress
    monkeypatch.setattr(catalogue, "progress", lambda *args: asked.append(1) or real(*args))
    activity = Activity(catalogue, redis)
    await asyncio.gather(*(activity.status() for _ in range(50)))
    assert len(asked) == 1


async def test_an_answer_from_before_a_request_does_not_serve_after_it(catalogue: Catalogue, redis: Redis) -> None:
    activity = Activity(catalogue, redis)
    assert (await activity.status())["idle"] is True
    catalogue.request_scans(AGENT, ["/m"])
    activity.invalidate()
    assert (await activity.status())["idle"] is False


async def test_what_is_no_job_of_ours_spoils_nothing(redis: Redis, status: Callable[[], Any]) -> None:
    queue = RedisQueue(redis, name=queue_name(AGENT, "io"))
    await put(redis, 1, state=Status.ACTIVE)
    active = keys.active_key(queue.name)
    for number, blob in enumerate((b"{", b'{"queue": "other"}', b'{"key": 1}', b"")):
        await redis.set(f"saq:job:odd:{number}", blob)
        await redis.zadd(active, {f"saq:job:odd:{number}": time.time() * 1000})
    found = await status()
    assert found["lanes"]["io"]["active"] == 4
    assert [job["key"] for job in found["active"]] == [f"{ANALYSIS}:1"]


async def test_a_queue_server_that_is_away_is_said(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    client = connect("redis://127.0.0.1:1")
    found = await Activity(catalogue, client).status()
    await client.aclose()
    assert found["queue"] == "unreachable"
    assert found["lanes"]["analyze"]["owed"] == 1
    assert found["settled_or_retrying"] is False
