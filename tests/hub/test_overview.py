"""Agents and queues at one look."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from agent.hub.beats import Beats, state_of
from agent.hub.catalogue import Catalogue
from agent.lanes import DOCUMENT_LANES, FILE_LANES, queue_name
from agent.phoenix import keys
from agent.phoenix.breaker import Breakers
from agent.phoenix.queue import LaneQueue
from agent.phoenix.scripts import Scripts
from tests.hub.deliveries import AGENT


@pytest.mark.parametrize(
    ("age", "state"), [(0, "alive"), (89.9, "alive"), (90, "stale"), (299.9, "stale"), (300, "dead"), (1e9, "dead")]
)
def test_an_agent_is_alive_under_90_seconds_stale_under_300_then_dead(age: float, state: str) -> None:
    assert state_of(1e9, 1e9 + age) == state
    assert state_of(None, age) == "never"


def beat(pid: int, host: str = "box") -> dict[str, Any]:
    return {"hostname": host, "worker_pid": pid, "started_at": pid}


def test_two_workers_that_beat_in_turn_are_named_and_one_that_was_replaced_is_not() -> None:
    beats = Beats()
    for moment, pid in ((0, 1), (30, 1), (50, 2), (80, 2)):
        beats.note("a", beat(pid), moment)
        assert beats.rivals("a", moment) == [], "the second took over"
    beats.note("a", beat(1), 90)
    assert beats.rivals("a", 90) == ["box (process 1)", "box (process 2)"]
    beats.note("a", beat(3), 100)
    assert beats.rivals("a", 100) == ["box (process 1)", "box (process 2)"], "a third does not hide them"
    assert beats.rivals("b", 100) == []
    assert beats.rivals("a", 169) == ["box (process 1)", "box (process 2)"]
    assert beats.rivals("a", 171) == [], "the second is silent for 90 seconds"


def test_a_second_worker_that_is_started_again_and_again_is_noticed_too() -> None:
    beats = Beats()
    for i in range(40):
        beats.note("a", beat(1), i * 30)
        beats.note("a", beat(100 + i, host="spare"), i * 30 + 10)
    assert "box (process 1)" in beats.rivals("a", 1190)
    assert len(beats._beaters["a"]) < 10, "who is silent is forgotten"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_rivals_are_those_whose_beats_interleave(order: list[int]) -> None:
    beats = Beats()
    for moment, pid in enumerate(order):
        beats.note("a", beat(pid), moment)
    span = {pid: (order.index(pid), len(order) - 1 - order[::-1].index(pid)) for pid in order}
    expected = {
        one for one, (first, last) in span.items()
        for other, (begun, ended) in span.items() if one != other and last >= begun and ended >= first
    }  # fmt: skip
    assert beats.rivals("a", len(order)) == sorted(f"box (process {pid})" for pid in expected)


async def test_agents_are_told_with_their_state(client: httpx.AsyncClient, catalogue: Catalogue) -> None:
    for name in ("old", "quiet", "revoked"):
        catalogue.register_agent(name, name)
    catalogue.revoke_agent("revoked")
    with catalogue._database.write() as connection:
        connection.exec_driver_sql("UPDATE agents SET last_beat_at = ? WHERE id = 'old'", (time.time() - 200,))
    sent = {**beat(7), "agent_version": "1", "queue_depth": 3, "odd": "x"}
    assert (await client.post(f"/api/agents/{AGENT}/heartbeat", json=sent)).status_code == 200
    found = {agent["id"]: agent for agent in (await client.get("/api/agents")).json()["agents"]}
    assert {name: agent["state"] for name, agent in found.items()} == {
        AGENT: "alive", "old": "stale", "quiet": "never", "revoked": "never",
    }  # fmt: skip
    assert found["revoked"]["revoked"]
    assert 200 <= found["old"]["age"] < 230
    assert {name: found[AGENT]["beat"][name] for name in ("hostname", "worker_pid", "queue_depth")} == {
        "hostname": "box", "worker_pid": 7, "queue_depth": 3,
    }  # fmt: skip


async def test_the_page_names_two_workers_that_beat_for_one_agent(client: httpx.AsyncClient) -> None:
    for pid in (7, 8):
        await client.post(f"/api/agents/{AGENT}/heartbeat", json=beat(pid, host="<b>nas</b>"))
    assert "workers beat for it" not in (await client.get("/")).text
    await client.post(f"/api/agents/{AGENT}/heartbeat", json=beat(7, host="<b>nas</b>"))
    page = (await client.get("/")).text
    assert "2 workers beat for it" in page
    assert "&lt;b&gt;nas&lt;/b&gt; (process 7), &lt;b&gt;nas&lt;/b&gt; (process 8)" in page
    assert '<details id="overview" open>' in page, "it wants a look"
    [agent] = (await client.get("/api/agents")).json()["agents"]
    assert agent["beating"] == ["<b>nas</b> (process 7)", "<b>nas</b> (process 8)"]


@pytest.mark.parametrize(
    "odd",
    [
        '{"hostname": "\\ud800", "worker_pid": [1e400, NaN], "agent_version": {"a": 1}, "queue_depth": 1e999}',
        f'{{"queue_depth": {"9" * 400}, "worker_pid": {"9" * 4000}, "started_at": -{"9" * 310}}}',
    ],
)
async def test_a_beat_of_any_shape_breaks_no_page(client: httpx.AsyncClient, odd: str) -> None:
    for _ in range(2):
        answer = await client.post(f"/api/agents/{AGENT}/heartbeat", content=odd)
        assert answer.status_code == 200
    for path in ("/", "/overview", "/api/agents", "/metrics"):
        assert (await client.get(path)).status_code == 200, path


async def test_a_beat_that_cannot_be_read_any_more_breaks_no_page(
    client: httpx.AsyncClient, catalogue: Catalogue
) -> None:
    with catalogue._database.write() as connection:
        connection.exec_driver_sql("UPDATE agents SET last_beat_at = 1, beat = ?", ('{"lane":' + "[" * 5000,))
    for path in ("/", "/overview", "/api/agents", "/metrics"):
        assert (await client.get(path)).status_code == 200, path


async def test_a_pause_or_circuit_with_an_odd_name_breaks_no_page(client: httpx.AsyncClient, redis: Redis) -> None:
    await redis.sadd(keys.PAUSED, b"\xff", "meta\n")
    await redis.sadd(keys.CIRCUITS, b"\xff")
    await Breakers(Scripts(redis), redis).force('a\n"{}', "open", "odd")
    for path in ("/", "/overview", "/api/queues", "/metrics", "/api/status"):
        assert (await client.get(path)).status_code == 200, path


async def test_the_page_shows_each_queue_with_a_link_to_its_jobs(
    client: httpx.AsyncClient, catalogue: Catalogue, redis: Redis
) -> None:
    catalogue.register_agent("nas", "t")
    catalogue.register_agent("gone", "t3")
    catalogue.revoke_agent("gone")
    calm = (await client.get("/")).text
    for name in (queue_name(agent, lane) for agent in (AGENT, "nas") for lane in FILE_LANES):
        assert f'href="/saq/queues/{name}"' in calm
    assert not any(queue_name(AGENT, lane) in calm for lane in DOCUMENT_LANES), "nobody is there for documents"
    assert queue_name(AGENT, None) + '"' not in calm
    assert "phaze-agent-gone" not in calm
    io = LaneQueue(redis, name=queue_name("nas", "io"))
    for i in range(1234):
        await io.enqueue("push_file", key=f"push_file:{i}")
    await io.enqueue("push_file", key="push_file:late", scheduled=int(time.time()) + 3600)
    await io.step("w", "io", 3)
    await LaneQueue(redis, name=queue_name(AGENT, None)).enqueue("push_file", key="push_file:1")
    await LaneQueue(redis, name=queue_name("gone", "io")).enqueue("push_file", key="push_file:1")
    await redis.sadd(keys.PAUSED, "meta", "process_file", "scan_directory")
    await redis.set(keys.active_key(queue_name(AGENT, "fingerprint")), "somebody else's")
    page = (await client.get("/overview")).text
    row = page.split(f'data-queue="{io.name}"')[1].split("</tr>")[0]
    assert [cell for cell in ("1,231", ">3<", ">1<", ">0<", "no worker") if cell not in row] == []
    assert page.count(">paused: meta, scan_directory<") == 2
    assert page.count(">paused: process_file<") == 2, "of both agents, and not of base queues that nobody uses"
    assert "WRONGTYPE" in page
    assert "base queue" in page
    assert "phaze-agent-gone-io" in page, "what waits for a revoked agent is somebody's to see"


async def test_a_hub_whose_queue_server_is_away_shows_its_page(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    async def refuse(*_args: object, **_more: object) -> None:
        raise ConnectionError("refused redis://me:hush@host")

    monkeypatch.setattr("agent.queue_activity._counts", refuse)
    page = await client.get("/")
    assert page.status_code == 200
    assert "refused" in page.text
    assert "hush" not in page.text
    assert json.loads((await client.get("/api/queues")).text)["total"]["queued"] == 0
