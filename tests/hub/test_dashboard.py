"""SAQ's dashboard as it stands behind the hub: what it shows, what it does, and what it must not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from redis.asyncio import Redis
from saq.job import Status
from saq.queue.redis import RedisQueue
from saq.web.common import STATIC_PATH

from agent.hub.catalogue import Catalogue
from agent.hub.shown_jobs import LONGEST, number, text
from agent.lanes import LANES, queue_name
from agent.phoenix import keys
from agent.phoenix.endings import Endings, Result
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from tests.hub.conftest import serving
from tests.hub.deliveries import AGENT
from tests.hub.test_login import token_on

IO, BASE = queue_name(AGENT, "io"), queue_name(AGENT, None)
ATTACK = {"props": {"innerHTML": "<img src=x onerror=\"document.title='owned'\">"}}


@pytest.fixture
async def person(hub_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody whose page has a token."""
    async with httpx.AsyncClient(base_url=hub_url, timeout=30) as found:
        found.headers["X-CSRF-Token"] = await token_on(found)
        yield found


def address(key: str, queue: str = IO) -> str:
    return f"/saq/api/queues/{queue}/jobs/{quote(key, safe='')}"


async def rows(person: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (await person.get("/saq/api/queues")).json()["queues"]}


async def test_every_lane_of_every_agent_is_there_and_a_base_queue_while_it_holds_jobs(
    person: httpx.AsyncClient, catalogue: Catalogue, redis: Redis
) -> None:
    catalogue.register_agent("nas", "t")
    lanes = {queue_name(agent, lane) for agent in (AGENT, "nas") for lane in LANES}
    assert set(await rows(person)) == lanes
    job = await LaneQueue(redis, name=BASE).enqueue("push_file", key="push_file:1")
    assert job is not None
    found = await rows(person)
    assert set(found) == {*lanes, BASE}
    assert (found[BASE]["queued"], found[BASE]["active"], found[BASE]["scheduled"]) == (1, 0, 0)
    await job.abort("enough")
    await LaneQueue(redis, name=BASE).step("w", "", 1)
    assert set(await rows(person)) == lanes
    async with serving(catalogue, redis, hub_drain=True) as url, httpx.AsyncClient(base_url=url) as other:
        assert BASE in await rows(other)
    for name in ("", "default", "phaze-agent-nobody-io", f"{IO}:x"):
        assert (await person.get(f"/saq/api/queues/{name}/jobs/x")).status_code == 404


async def test_a_base_queue_whose_worker_is_from_before_lanes_is_shown_and_served(
    person: httpx.AsyncClient, redis: Redis
) -> None:
    old = RedisQueue(redis, name=BASE)
    for key in ("push_file:1", "push_file:2"):
        await old.enqueue("push_file", key=key)
    running = await old.dequeue(timeout=1)
    assert running is not None
    await running.update(status=Status.ACTIVE)
    assert (await rows(person))[BASE]["active"] == 1
    listed = (await person.get(f"/saq/api/queues/{BASE}")).json()["queue"]["jobs"]
    assert {job["key"] for job in listed} == {"push_file:1", "push_file:2"}
    refused = await person.post(f"{address(running.key, BASE)}/retry")
    assert (refused.status_code, refused.json()["error"]) == (409, f"{running.key} is running; abort it first")
    assert (await person.post(f"{address('push_file:2', BASE)}/abort")).status_code == 200
    assert await old.count("queued") == 0


async def test_one_queue_that_fails_spoils_only_its_own_row(person: httpx.AsyncClient, redis: Redis) -> None:
    await redis.set(keys.queued_key(IO), "somebody else's")
    found = await rows(person)
    assert "WRONGTYPE" in found[IO]["active"]
    assert found[queue_name(AGENT, "meta")]["active"] == 0
    assert (await person.get(f"/saq/api/queues/{IO}")).status_code == 503


@pytest.mark.parametrize(
    "key",
    [
        "a/b",
        "/a",
        "a/",
        "a//b",
        "x/retry",
        "x/abort",
        "a?b=c#d",
        "100%",
        "%2F",
        "ä ö",
        "a\\b",
        "../../x",
        "a\nb",
        "a\n",
    ],
)
async def test_a_job_is_found_whatever_its_key(person: httpx.AsyncClient, redis: Redis, key: str) -> None:
    key = f"push_file:{key}"
    await LaneQueue(redis, name=IO).enqueue("push_file", key=key)
    [listed] = (await person.get(f"/saq/api/queues/{IO}")).json()["queue"]["jobs"]
    assert listed["key"] == key
    assert (await person.get(address(key))).json()["job"]["key"] == key
    assert (await person.get(address(key).replace("/api/", "/"))).status_code == 200
    assert (await person.post(f"{address(key)}/abort")).json() == {"done": "It is aborted."}
    assert (await person.get(address(key))).json()["job"]["status"] == "aborted"


async def test_what_is_asked_for_and_is_not_there_is_said_in_json(person: httpx.AsyncClient, redis: Redis) -> None:
    for answer in (await person.get(address("no")), await person.post(f"{address('no')}/retry")):
        assert answer.status_code == 404
        assert "there is no job no" in answer.json()["error"]
    queue = LaneQueue(redis, name=IO)
    await queue.enqueue("push_file", key="push_file:1")
    await redis.set(queue.job_id("push_file:2"), "{")
    assert (await person.get(address("push_file:2"))).status_code == 422
    await redis.set(queue.job_id("push_file:3"), json.dumps({"function": "x", "key": "push_file:1", "queue": IO}))
    assert (await person.post(f"{address('push_file:3')}/abort")).status_code == 404, "it says it is another job"


async def stored(redis: Redis, key: str, **fields: Any) -> None:
    """A job as somebody with access to the server may write it."""
    queue = LaneQueue(redis, name=IO)
    job = await queue.enqueue("push_file", key=key)
    assert job is not None
    await redis.set(job.id, json.dumps({**json.loads(queue.serialize(job)), **fields}))


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


async def test_nothing_but_text_and_numbers_leaves_whatever_a_job_or_a_worker_says_of_itself(
    person: httpx.AsyncClient, redis: Redis
) -> None:
    fields = ("function", "result", "error", "queued", "started", "completed", "progress", "attempts", "worker_id")
    await stored(redis, "push_file:1", kwargs=ATTACK, **dict.fromkeys(fields, ATTACK))
    await stored(redis, "push_file:2", kwargs={"x": [ATTACK]}, progress=float("nan"), error="\ud800", attempts=10**400)
    await stored(redis, "push_file:3", kwargs=json.loads('{"a":' * 400 + "1" + "}" * 400))
    queue = LaneQueue(redis, name=IO)
    told = queue.namespace("worker_info:evil")
    await redis.zadd(queue.namespace("stats"), {told: (time.time() + 60) * 1000})
    await redis.set(told, json.dumps({"stats": {"complete": ATTACK, "failed": None}, "x": ATTACK}))
    listed = (await person.get(f"/saq/api/queues/{IO}")).json()["queue"]
    assert {job["key"] for job in listed["jobs"]} == {"push_file:1", "push_file:2", "push_file:3"}
    assert listed["workers"]["evil"] == {"stats": {"complete": 0, "retried": 0, "failed": 0, "uptime": 0}}
    shown = [(await person.get(address(f"push_file:{i}"))).json()["job"] for i in (1, 2, 3)]
    assert {type(leaf) for leaf in leaves([listed, shown])} <= {str, int, float}
    assert all(not isinstance(value, dict | list) for job in [*listed["jobs"], *shown] for value in job.values())
    assert "innerHTML" in shown[0]["kwargs"]
    assert await queue.count("queued") == 3


async def test_a_blob_nested_without_end_hides_only_itself(person: httpx.AsyncClient, redis: Redis) -> None:
    queue = LaneQueue(redis, name=IO)
    for key in ("push_file:1", "push_file:2"):
        await queue.enqueue("push_file", key=key)
    await redis.set(queue.job_id("push_file:1"), "[" * 200_000)
    assert [job["key"] for job in (await person.get(f"/saq/api/queues/{IO}")).json()["queue"]["jobs"]] == [
        "push_file:2"
    ]
    assert (await person.get(address("push_file:1"))).status_code == 422


SECRETS = {
    "url": "https://s3.example/b/k?X-Amz-Credential=HUSH&X-Amz-Signature=HUSH&partNumber=1",
    "token": "HUSH",
    "headers": {"Authorization": "Bearer HUSH", "X-Api-Key": "HUSH", "Cookie": "HUSH"},
    "parts": [{"fields": {"x-amz-signature": "HUSH", "policy": "p"}}],
    "note": "see redis://me:HUSH@host/0 and Bearer HUSH",
    "nested": json.dumps({"client_secret": "HUSH", "more": json.dumps({"password": "HUSH"})}),
}


async def test_secrets_are_masked_in_arguments_results_and_errors(person: httpx.AsyncClient, redis: Redis) -> None:
    await stored(redis, "push_file:1", kwargs=SECRETS, result=SECRETS, error=f"Traceback\n  {SECRETS}")
    answers = [await person.get(f"/saq/api/queues/{IO}"), await person.get(address("push_file:1"))]
    for answer in answers:
        assert "HUSH" not in answer.text
        assert "[redacted]" in answer.text
    assert "partNumber=1" in answers[1].text


def test_a_text_is_cut_after_its_secrets_are_masked() -> None:
    for start in range(LONGEST - 40, LONGEST):
        shown = text("x" * start + " https://me:HUSHHUSH@host/ " + "y" * 5000, LONGEST)
        assert "HUSH" not in shown
        assert shown.endswith("characters]")
    started = time.monotonic()
    assert len(text("a.a." * 2_000_000, LONGEST)) < LONGEST + 100
    assert time.monotonic() - started < 2
    assert [number(value) for value in (1, 2.5, float("inf"), "3", None, 10**30)] == [1, 2.5, 0, 0, 0, 0]


async def test_retry_of_a_running_job_is_refused_and_of_a_waiting_or_done_one_is_not(
    person: httpx.AsyncClient, redis: Redis
) -> None:
    queue = LaneQueue(redis, name=IO)
    await queue.enqueue("push_file", key="push_file:1")
    _, [run], _ = await queue.step("w", "io", 1)
    refused = await person.post(f"{address('push_file:1')}/retry")
    assert (refused.status_code, refused.json()) == (409, {"error": "push_file:1 is running; abort it first"})
    assert (await queue.count("queued"), await queue.count("active")) == (0, 1)
    run.job = queue.readable(run.text)
    ending = Endings(queue, "w", outbox=True).done(run, Result({"ok": True}))
    assert (await queue.step("w", "io", 0, [ending]))[0] == ["settled"]
    assert (await person.post(f"{address('push_file:1')}/retry")).status_code == 200
    assert await queue.count("queued") == 1
    await queue.enqueue("push_file", key="push_file:2", scheduled=int(time.time()) + 3600)
    assert (await person.post(f"{address('push_file:2')}/retry")).status_code == 200
    await queue.schedule()
    assert await queue.count("queued") == 2


async def test_abort_works_in_every_state(person: httpx.AsyncClient, redis: Redis) -> None:
    queue = LaneQueue(redis, name=IO)
    for i in (1, 2, 3):
        await queue.enqueue("push_file", key=f"push_file:{i}")
    _, [_first, second], _ = await queue.step("w", "io", 2)
    second.job = queue.readable(second.text)
    await queue.step("w", "io", 0, [Endings(queue, "w", outbox=True).parked(second, "s3")])
    assert await redis.llen(keys.parked_key("s3")) == 1
    await queue.enqueue("push_file", key="push_file:4", scheduled=int(time.time()) + 3600)
    said = {}
    for i in (1, 2, 3, 4):
        assert (await person.get(address(f"push_file:{i}"))).status_code == 200
        said[i] = (await person.post(f"{address(f'push_file:{i}')}/abort")).json()["done"]
    assert said == {1: "Its worker is told to end it.", **dict.fromkeys((2, 3, 4), "It is aborted.")}
    told = [json.loads(fields[b"entry"]) for _, fields in await redis.xrange(outbox_key(IO))]
    assert [(one["record_id"], one["reason"]) for one in told] == [
        (record, "aborted: aborted from the dashboard") for record in ("2", "3", "4")
    ], "the hub asks no more for what somebody aborted"
    _, _, asked = await queue.upkeep(orphans=False, aborts=True)
    assert asked == [queue.job_id("push_file:1")]
    assert await queue.count("incomplete") == 1, "what runs is its worker's to end"
    assert (await queue.step("w", "io", 5))[1] == [], "nothing of it is taken any more"
    again = await person.post(f"{address('push_file:3')}/abort")
    assert (again.status_code, again.json()) == (200, {"done": "It is aborted."})


FILL = """
local ids, scored = {}, {}
for i = tonumber(ARGV[1]), tonumber(ARGV[1]) + 2499 do
    local id = ARGV[2] .. string.format('%08d', i)
    ids[#ids + 1], scored[#scored + 1], scored[#scored + 2] = id, 0, id
end
redis.call('RPUSH', KEYS[1], unpack(ids))
redis.call('ZADD', KEYS[2], unpack(scored))
"""


async def test_a_million_queued_jobs_make_it_no_slower(person: httpx.AsyncClient, redis: Redis) -> None:
    queue = LaneQueue(redis, name=IO)
    await queue.enqueue("push_file", key="push_file:1")
    for start in range(2, 1_000_002, 2_500):
        await redis.eval(FILL, 2, keys.queued_key(IO), keys.incomplete_key(IO), start, f"{queue.prefix}push_file:")
    await redis.config_set("slowlog-log-slower-than", 50_000)  # microseconds
    await redis.config_resetstat()
    slow = []
    for key in ("push_file:1", "push_file:b", "push_file:c"):  # a busy machine may stop the server once, not each time
        await queue.enqueue("push_file", key=key)
        queued = await queue.count("queued")
        await redis.slowlog_reset()
        started = time.monotonic()
        assert (await rows(person))[IO]["queued"] == queued
        assert (await person.get(f"/saq/api/queues/{IO}")).json()["queue"]["queued"] == queued
        assert (await person.get("/overview")).status_code == 200
        assert (await person.get("/api/queues")).json()["total"]["queued"] == queued
        assert (await person.get(address(key))).status_code == 200
        assert (await person.post(f"{address(key)}/abort")).status_code == 200
        assert time.monotonic() - started < 10
        slow.append(await redis.slowlog_get())
    assert queued >= 1_000_001
    used = {name.removeprefix("cmdstat_") for name in await redis.info("commandstats")}
    assert "llen" in used
    assert not used & {"keys", "scan", "hgetall", "lrem", "lpos", "sort", "sscan", "hscan", "zscan"}
    assert [] in slow


async def test_only_the_three_files_of_saqs_page_are_handed_out(person: httpx.AsyncClient) -> None:
    for name, kind in (("app.js", "text/javascript"), ("snabbdom.js", "text/javascript"), ("pico.min.css", "text/css")):
        for encoding in ("gzip", "identity"):
            answer = await person.get(f"/saq/static/{name}", headers={"Accept-Encoding": encoding})
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert len(answer.text) > 5000
    assert (await person.get("/saq/static/app.js")).text == (STATIC_PATH / "app.js").read_text("utf-8")
    for name in ("", "common.py", "pico.min.css.gz", "..%2Fcommon.py", "%2e%2e/%2e%2e/x", "....//x"):
        assert (await person.get(f"/saq/static/{name}")).status_code == 404, name


async def test_its_pages_hold_no_script_of_their_own(person: httpx.AsyncClient) -> None:
    assert (await person.get("/saq")).headers["location"] == "/saq/"
    for path in ("/saq/", f"/saq/queues/{IO}", f"/saq/queues/{IO}/jobs/a/b"):
        page = await person.get(path)
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "script-src" not in policy
        assert "<script>" not in page.text
        assert "style=" not in page.text
        assert page.headers["cache-control"] == "no-store", "it holds the session's token"


async def test_a_queue_server_that_hangs_is_said_in_time(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.hub.dashboard.ANSWER", 0.5)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    redis = connect(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
    async with serving(catalogue, redis) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        found = (await client.get("/saq/api/queues")).json()["queues"]
        assert {row["active"] for row in found} == {"no answer in time"}
        assert (await client.get(f"/saq/api/queues/{IO}")).status_code == 503
    await redis.aclose()
    silent.close()
    await silent.wait_closed()
