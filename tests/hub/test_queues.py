"""What waits on the queues, as JSON and for Prometheus."""

from __future__ import annotations

import os
import shutil
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from structlog.testing import capture_logs

from agent.hub import queues
from agent.lanes import LANES, queue_name
from agent.phoenix import keys
from agent.phoenix.boot import take_over_queue
from agent.phoenix.breaker import Breakers
from agent.phoenix.queue import LaneQueue
from tests.hub.deliveries import AGENT


async def test_queues_are_told_one_by_one_and_in_all(client: httpx.AsyncClient, redis: Redis) -> None:
    for lane in ("io", "meta", None):
        await LaneQueue(redis, name=queue_name(AGENT, lane)).enqueue("push_file", key="push_file:1")
    await redis.set(keys.active_key(queue_name(AGENT, "meta")), "somebody else's")
    found = (await client.get("/api/queues")).json()
    rows = {row["lane"]: row for row in found["queues"]}
    assert set(rows) == {*LANES, None}
    assert (rows["io"]["queued"], rows[None]["queued"]) == (1, 1)
    assert "WRONGTYPE" in rows["meta"]["error"]
    assert found["total"] == {"queued": 2, "active": 0, "scheduled": 0, "parked": 0}


async def test_metrics_say_what_waits(client: httpx.AsyncClient, redis: Redis) -> None:
    await LaneQueue(redis, name=queue_name(AGENT, "io")).enqueue("push_file", key="push_file:1")
    await Breakers(LaneQueue(redis).scripts, redis).force('s3."odd"\\name', "open", "a test")
    await redis.rpush(keys.dead_letters_key("push_file"), "{}")
    await redis.rpush(keys.quarantine_key("unknown"), "{}", "{}")
    await take_over_queue(LaneQueue(redis, name="q"), ["elsewhere"])
    await redis.rpush(keys.quarantine_key("elsewhere"), "{}")
    for pid in (7, 8, 7):
        await client.post(f"/api/agents/{AGENT}/heartbeat", json={"worker_pid": pid})
    answer = await client.get("/metrics")
    samples = {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["phaze_queue_server_up", frozenset()] == 1
    assert samples["phaze_queue_jobs", frozenset({"io", "queued", AGENT})] == 1
    assert samples["phaze_circuit_state", frozenset({"open", 's3."odd"\\name'})] == 1
    assert samples["phaze_circuit_state", frozenset({"closed", 's3."odd"\\name'})] == 0
    assert 0 <= samples["phaze_agent_heartbeat_age_seconds", frozenset({AGENT})] < 60
    assert samples["phaze_agent_rival_workers", frozenset({AGENT})] == 2
    assert samples["phaze_dead_letters", frozenset({"push_file"})] == 1
    assert samples["phaze_quarantined_jobs", frozenset({"unknown"})] == 2, "of no task"
    assert samples["phaze_quarantined_jobs", frozenset({"elsewhere"})] == 1, "of a task that only its worker has"
    assert not [name for name, *_ in samples if not name.startswith("phaze_")]


async def test_metrics_say_what_waits_on_each_stage_s_stream(client: httpx.AsyncClient, redis: Redis) -> None:
    stream, group = keys.stream_key("router"), keys.group_name("router")
    for number in range(4):
        await redis.xadd(stream, {"record_id": f"r{number}", "user_id": "u"})
    await redis.xgroup_create(stream, group, "0")
    await redis.xreadgroup(group, "a bridge", {stream: ">"}, count=2)
    await redis.xgroup_create(keys.stream_key("parser"), keys.group_name("parser"), "0", mkstream=True)
    await redis.set(keys.stream_key("grouper"), "somebody else's")
    await redis.xadd(keys.stream_key("push_file"), {"record_id": "r"}, id="1000000-0")
    text = (await client.get("/metrics")).text
    found = {
        (family.name, sample.labels["task"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name.startswith("phaze_stream_")
    }
    oldest = {task: found.pop(("phaze_stream_oldest_seconds", task)) for task in ("router", "parser", "push_file")}
    assert found == {
        ("phaze_stream_entries", "router"): 4,
        ("phaze_stream_pending_entries", "router"): 2,
        ("phaze_stream_entries", "parser"): 0,
        ("phaze_stream_pending_entries", "parser"): 0,
        ("phaze_stream_entries", "push_file"): 1,
    }, "no bridge has been at that of push_file, nobody has asked the others for anything"
    assert 0 <= oldest["router"] < 60
    assert oldest["parser"] == 0
    assert oldest["push_file"] > 1e9, "its id says when it was written"


async def test_metrics_that_cannot_be_told_say_so_and_the_log_says_why(
    client: httpx.AsyncClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_complain", lambda: True)
    await redis.set(keys.CIRCUITS, "somebody else's")
    with capture_logs() as lines:
        assert "phaze_queue_server_up 0.0" in (await client.get("/metrics")).text
    (line,) = [line for line in lines if line["event"] == "metrics.queues_not_counted"]
    assert "rename or delete it" in line["remedy"]


@pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ, reason="promtool (Debian: prometheus) is not installed"
)
async def test_promtool_has_nothing_to_say(client: httpx.AsyncClient, redis: Redis) -> None:
    await redis.xadd(keys.stream_key("router"), {"record_id": "r", "user_id": "u"})
    text = (await client.get("/metrics")).content
    assert b"phaze_stream_entries" in text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
