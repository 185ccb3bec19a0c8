from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from redis.asyncio import Redis

from agent.heartbeat import Heartbeat
from agent.hub import limits
from agent.hub.catalogue import Catalogue, CatalogueUnavailable
from agent.hub.file_tasks import ANALYSIS, FILE_TASKS, METADATA
from agent.hub.limits import HEADERS
from agent.lanes import queue_name
from agent.phoenix.queue import LaneQueue
from agent.settings import load_settings
from tests.hub.deliveries import AGENT, closing, part, result, scan, seen, unread

RESULTS = f"/api/agents/{AGENT}/results"


def body(*entries: Any) -> dict[str, Any]:
    return {"entries": [entry if isinstance(entry, dict) else entry.model_dump(mode="json") for entry in entries]}


async def test_from_a_request_for_a_scan_to_a_row_in_the_table(
    client: httpx.AsyncClient, catalogue: Catalogue, redis: Redis
) -> None:
    [scan_id] = (await client.post("/api/scans", json={"agent_id": AGENT, "roots": ["/m"]})).json()["scans"]
    await until_queued(redis, f"scan_directory:{scan_id}")
    answer = await client.post(RESULTS, json=body(part(scan_id, [seen("/m/a.mp3")]), closing(scan_id)))
    assert answer.json() == {"refused": []}
    for service in FILE_TASKS:
        await until_queued(redis, f"{service}:1")
    assert (await client.get("/api/status")).json()["idle"] is False
    entries = [result(service, 1, "/m/a.mp3", bpm=124.0, title="Kite") for service in FILE_TASKS]
    assert (await client.post(RESULTS, json=body(*entries))).json() == {"refused": []}
    found = (await client.get("/api/tracks", params={"bpm": "120..128"})).json()
    assert found["total"] == 1
    assert (found["tracks"][0]["title"], found["tracks"][0]["bpm"]) == ("Kite", 124.0)
    async with asyncio.timeout(10):
        while not (await client.get("/api/status")).json()["idle"]:
            await asyncio.sleep(0.1)


async def test_a_result_that_is_no_strict_json_makes_no_answer_fail(client: httpx.AsyncClient) -> None:
    """JSON as Python writes it has numbers that are none, and halves of surrogate pairs."""
    odd = result(
        "rank_words", 1, "", version="v", words=[float("nan"), float("inf"), 1], said="half \ud800, whole \U0001f600"
    )
    sent = json.dumps({"entries": [odd.model_dump()]}).replace("[NaN", "[1e999, NaN")
    answer = await client.post(RESULTS, content=sent, headers={"content-type": "application/json"})
    assert answer.json() == {"refused": []}
    [row] = (await client.get("/api/results", params={"task": "rank_words"})).raise_for_status().json()["results"]
    assert row["result"]["words"] == [None, None, None, 1]
    assert row["result"]["said"] == "half ?, whole \U0001f600"


async def until_queued(redis: Redis, key: str) -> None:
    async with asyncio.timeout(10):
        while not await redis.keys(f"saq:job:*:{key}"):
            await asyncio.sleep(0.02)


async def test_a_body_may_be_as_slow_as_a_thin_line_but_not_stand_still(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_TIMEOUT", 0.5)

    async def slowly(pieces: list[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0.1)

    large = json.dumps(body({"service": "x" * 2**20})).encode()
    pieces = [large[at : at + 2**16] for at in range(0, len(large), 2**16)]
    assert (await client.post(RESULTS, content=slowly(pieces))).status_code == 200
    async with asyncio.timeout(10):
        with contextlib.suppress(httpx.ReadError, httpx.WriteError):  # hung up on, which may be faster than the answer
            assert (await client.post(RESULTS, content=slowly([b" "] * 1000))).status_code == 408


async def test_entries_are_refused_one_by_one(client: httpx.AsyncClient, catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    good = result(ANALYSIS, 1, "/m/a", token=5)
    answer = await client.post(RESULTS, json=body({"service": 1}, good, {}, result(ANALYSIS, 1, "/m/a", token=4)))
    assert answer.status_code == 200
    assert [(row["index"], row["reason"].split(":")[0]) for row in answer.json()["refused"]] == [
        (0, "service"), (2, "service"), (3, "stale"),
    ]  # fmt: skip
    assert METADATA in catalogue.tracks()[0].pending
    assert ANALYSIS not in catalogue.tracks()[0].pending


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (RESULTS, {"entries": []}),
        (f"/api/agents/{AGENT}/heartbeat", {"pid": 1}),
        ("/api/scans", {"agent_id": AGENT, "roots": ["/m"]}),
    ],
)
async def test_an_agent_shows_its_own_token(
    client: httpx.AsyncClient, catalogue: Catalogue, path: str, sent: dict[str, Any]
) -> None:
    catalogue.register_agent("other", "others-token")
    for value, expected in (
        ("", 401),
        ("Basic abc", 401),
        ("Bearer", 401),
        ("Bearer wrong", 403),
        ("Bearer others-token", 403),
        ("Bearer a-token", 200),
        ("bearer a-token", 200),
    ):
        answer = await client.post(path, json=sent, headers={"Authorization": value})
        assert answer.status_code == expected, value
        assert (expected == 200) == ("error" not in answer.json())
    unknown = await client.post("/api/agents/nobody/results", json={"entries": []})
    assert unknown.status_code == 403
    catalogue.register_agent(AGENT, "a-new-token")
    assert (await client.post(path, json=sent)).status_code == 403, "the old one ends at once"


async def test_a_catalogue_that_cannot_write_acknowledges_nothing(
    client: httpx.AsyncClient, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(catalogue, "/m", [seen("/m/a")])

    def fail(*_args: object) -> None:
        raise CatalogueUnavailable("catalogue.sqlite: database or disk is full; free space on that disk")

    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "record", fail)
        answer = await client.post(RESULTS, json=body(result(ANALYSIS, 1, "/m/a")))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "disk is full" in answer.json()["error"]
    assert (await client.post(RESULTS, json=body(result(ANALYSIS, 1, "/m/a")))).json() == {"refused": []}


async def test_every_answer_carries_the_guards(
    client: httpx.AsyncClient, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(catalogue, "tracks", fail)
    asked: list[tuple[int, str, str, dict[str, str]]] = [
        (200, "GET", "/health", {}),
        (200, "HEAD", "/static/hub.js", {}),
        (500, "GET", "/", {}),
        (500, "GET", "/api/tracks", {}),
        (404, "GET", "/nothing", {}),
        (404, "GET", "/static/nothing", {}),
        (405, "DELETE", "/api/status", {}),
        (401, "POST", RESULTS, {"Authorization": ""}),
        (400, "GET", "/", {"Host": "evil.example"}),
    ]
    for expected, method, path, headers in asked:
        answer = await client.request(method, path, headers=headers)
        assert answer.status_code == expected, path
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, path
    assert (await client.get("/api/tracks")).json() == {"error": "the hub failed on this request; its log says why"}


async def test_an_agent_asks_for_its_own_status(client: httpx.AsyncClient, catalogue: Catalogue) -> None:
    catalogue.register_agent("other", "t")
    catalogue.request_scans("other", ["/m"])
    assert (await client.get("/api/status", params={"agent": AGENT})).json()["idle"] is True
    assert (await client.get("/api/status", params={"agent": "other"})).json()["idle"] is False
    assert (await client.get("/api/status")).json()["idle"] is False
    for unknown in ("nobody", ""):
        answer = await client.get("/api/status", params={"agent": unknown})
        assert answer.status_code == 404
        assert answer.json() == {"error": f"there is no agent '{unknown}'; there are local, other"}


async def test_what_is_no_request_is_said_in_json(client: httpx.AsyncClient) -> None:
    async def answer(content: bytes, path: str = RESULTS) -> tuple[int, str]:
        found = await client.post(path, content=content)
        return found.status_code, found.json()["error"]

    assert await answer(b"{") == (400, "the body must be JSON")
    assert await answer(b"[" * 100_000) == (400, "the body must be JSON")
    assert (await answer(b"[]"))[0] == 400
    assert (await answer(b'{"entries": 1}'))[0] == 400
    assert (await answer(b"x" * (16 * 2**20 + 1)))[0] == 413
    assert (await answer(b"x" * 20_000, f"/api/agents/{AGENT}/heartbeat"))[0] == 413
    assert await answer(json.dumps({"agent_id": AGENT, "roots": ["music"]}).encode(), "/api/scans") == (
        400,
        "'music' is not an absolute path; give the percent-encoded absolute path of a folder",
    )
    assert (await answer(json.dumps({"agent_id": AGENT, "roots": []}).encode(), "/api/scans"))[0] == 400
    for name in ("", "half \ud800", "\0", None):
        asked = json.dumps({"agent_id": name, "roots": ["/m"]}).encode()
        assert await answer(asked, "/api/scans") == (400, "agent_id must name the agent that scans"), name
    missing = await client.get("/api/nothing")
    assert (missing.status_code, missing.json()) == (404, {"error": "Not Found"})
    assert (await client.get("/api/tracks", params={"key": "H"})).status_code == 400
    assert (await client.get("/nothing")).text == "Not Found\n"


async def test_a_body_without_a_length_is_bounded_too(client: httpx.AsyncClient) -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 2**20

    try:
        answer = await client.post(RESULTS, content=endless())
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the hub answered and hung up while we were still sending


async def test_a_heartbeat_is_kept(client: httpx.AsyncClient, catalogue: Catalogue) -> None:
    beat = {"worker_pid": 7, "lane": "analyze", "odd": "\ud800"}
    content = json.dumps(beat).encode()
    assert (await client.post(f"/api/agents/{AGENT}/heartbeat", content=content)).json() == {"status": "ok"}
    with catalogue._database.read() as connection:
        [row] = connection.exec_driver_sql("SELECT beat, last_beat_at FROM agents").all()
    assert json.loads(row.beat) == beat
    assert row.last_beat_at > 0


async def test_a_heartbeat_that_is_refused_says_what_to_do(hub_url: str, redis: Redis) -> None:
    settings = load_settings(agent_id=AGENT, agent_lane="analyze", hub_url=hub_url)
    beat = Heartbeat(settings, LaneQueue(redis, queue_name(AGENT, "analyze")), "revoked")
    with structlog.testing.capture_logs() as lines:
        assert not await beat.beat()
    await beat.close()
    (line,) = lines
    assert line["event"] == "heartbeat.failed"
    assert "phaze agents rotate" in line["error"]
    assert "revoked" in line["error"]


async def test_names_that_point_here_from_elsewhere_are_refused(client: httpx.AsyncClient, hub_url: str) -> None:
    port = hub_url.rsplit(":", 1)[1]
    for host, expected in (
        (f"127.0.0.1:{port}", 200),
        ("localhost", 200),
        (f"[::1]:{port}", 200),
        ("evil.example", 400),
        (f"192.168.1.5:{port}", 200),
        ("Hub.home.example", 200),
        ("127.0.0.1.evil.example", 400),
        ("evil.example@127.0.0.1", 400),
        ("127.0.0.1@evil.example", 400),
        ("[::1", 400),
        (f"localhost.evil.example:{port}", 400),
    ):
        for path in ("/", "/api/status", "/api/tracks", "/health"):
            assert (await client.get(path, headers={"Host": host})).status_code == expected, host


async def test_what_could_not_be_read_is_on_the_page_and_under_the_table_of_tracks(
    client: httpx.AsyncClient, catalogue: Catalogue, tmp_path: Path
) -> None:
    scan(catalogue, "/m", [seen("/m/a.mp3")], **unread("/m/%3Cb%3Elocked"))
    page = (await client.get("/")).text
    assert "1 place not read by the last scan" in page
    assert "/m/&lt;b&gt;locked: the worker&#39;s user may not read it" in page
    command = [sys.executable, "-m", "agent.cli", "tracks"]
    env = {**os.environ, "PHAZE_DATA_DIR": str(tmp_path / "hub")}
    said = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, timeout=60)
    assert "/m/<b>locked: not read by the last scan: the worker's user may not read it" in said.stdout


async def test_the_page_works_without_scripts(client: httpx.AsyncClient, catalogue: Catalogue) -> None:
    assert "phaze up /path/to/music" in (await client.get("/")).text
    scan(catalogue, "/m", [seen("/m/%3Cscript%3Ealert(1)%3C%2Fscript%3E%0A.mp3"), seen("/m/b.mp3")])
    catalogue.record(AGENT, [result(ANALYSIS, 2, "/m/b.mp3", bpm=124.0, key="A", scale="minor", camelot="8A")])
    page = await client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    assert "<script>alert" not in page.text
    assert "script&gt;\ufffd.mp3" in page.text
    assert "2 tracks" in page.text
    filtered = await client.get("/", params={"key": "Am", "bpm": "120..128", "q": "b.mp3", "sort": "-bpm"})
    assert "1 track<" in filtered.text
    assert "A minor" in filtered.text
    wrong = await client.get("/", params={"bpm": '"><script>alert(1)</script>'})
    assert wrong.status_code == 400
    assert "is not a tempo" in wrong.text
    assert "<script>alert" not in wrong.text
    assert "No track matches" in (await client.get("/", params={"q": "nowhere"})).text


async def test_more_rows_than_a_page_are_paged(
    client: httpx.AsyncClient, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.hub.pages.PER_PAGE", 10)
    scan(catalogue, "/m", [seen(f"/m/{i:02d}") for i in range(25)])
    first, third = [await client.get("/", params={"page": page, "sort": "-title"}) for page in (1, 3)]
    assert first.text.count("<tr>") == 11
    assert "data-sortable" not in first.text, "sorting one page of several would mislead"
    assert 'href="?sort=-title&amp;page=2"' in first.text
    assert "Page 3 of 3" in third.text
    assert third.text.count("<tr>") == 6
    assert (await client.get("/", params={"page": "x" * 30})).status_code == 200
