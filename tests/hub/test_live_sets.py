"""Sets are listened to by themselves: when, how often, and where it is shown."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from agent.hub import live_sets
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FINGERPRINT, SET, SET_TASKS, use_sets
from agent.hub.reconciler import Reconciler
from agent.lanes import queue_name
from agent.phoenix.keys import queued_key
from agent.producer import Producer
from agent.tracklist import tracklist
from pipelines.music.fingerprint import fingerprint
from pipelines.music.samples import Sample
from pipelines.payload import encode_path
from tests.hub.deliveries import AGENT, TOKEN, owed, result, scan, seen
from tests.hub.test_tracklist import party, shelf

__all__ = ["party", "shelf"]

LONG, SHORT = 1200.0, 1199.9


@pytest.fixture(autouse=True)
def _own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test says of sets is forgotten afterwards."""
    monkeypatch.setitem(SET_TASKS, SET, SET_TASKS[SET])


def sets_owed(catalogue: Catalogue) -> set[str]:
    return {record for service, record in owed(catalogue) if service == SET}


def printed(catalogue: Catalogue, number: int, content: str, duration: float, **fields: Any) -> None:
    assert catalogue.record(AGENT, [result(FINGERPRINT, number, content, duration=duration, **fields)]) == [None]


async def queued(redis: Redis) -> list[str]:
    waiting = await redis.lrange(queued_key(queue_name(AGENT, "meta")), 0, -1)
    return [job.decode().rpartition(":")[2] for job in waiting if f":{SET}:".encode() in job]


def test_a_file_is_owed_its_tracklist_once_for_its_content_when_it_is_long_enough(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/long"), seen("/m/short"), seen("/m/failed")])
    assert sets_owed(catalogue) == set()
    printed(catalogue, 1, "/m/long", LONG)
    printed(catalogue, 2, "/m/short", SHORT)
    printed(catalogue, 3, "/m/failed", LONG, outcome="rejected", reason="not-audio")
    assert sets_owed(catalogue) == {"1"}
    catalogue.record(AGENT, [result(SET, 1, "/m/long", outcome="partial", reason="no-tracks")])
    scan(catalogue, "/m", [seen("/m/long"), seen("/m/copy", "/m/long")])
    assert sets_owed(catalogue) == set()
    scan(catalogue, "/m", [seen("/m/long", "another content")])
    assert sets_owed(catalogue) == set()
    printed(catalogue, 1, "another content", LONG)
    assert sets_owed(catalogue) == {"1"}


def test_another_length_holds_from_the_next_start_and_none_is_none(catalogue: Catalogue, tmp_path: Path) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    printed(catalogue, 1, "/m/a", 700.0)
    for minutes, expected in ((20, set()), (11, {"1"}), (0, set()), (11.5, {"1"})):
        use_sets(minutes)
        with Catalogue(catalogue.path.parent) as again:
            assert sets_owed(again) == expected


async def test_a_set_is_queued_when_its_print_and_the_librarys_are_in_the_index(
    catalogue: Catalogue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = 0.0
    reconciler = Reconciler(catalogue, Producer(redis), redis, indexed=lambda: indexed)
    scan(catalogue, "/m", [seen("/m/set"), seen("/m/track")])
    printed(catalogue, 1, "/m/set", LONG, finished_at=time.time())
    await reconciler.reconcile()
    assert await queued(redis) == []
    indexed = time.time() + 1
    await reconciler.reconcile()
    assert await queued(redis) == [], "the track's fingerprint is still to come"
    printed(catalogue, 2, "/m/track", 200.0, finished_at=time.time())
    indexed = 1.0
    await reconciler.reconcile()
    assert await queued(redis) == [], "its own is not in the index yet"
    indexed = time.time() + 1
    await reconciler.reconcile()
    await reconciler.reconcile()
    assert await queued(redis) == ["1"]


async def test_a_fingerprint_that_never_comes_is_not_waited_for(
    catalogue: Catalogue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler = Reconciler(catalogue, Producer(redis), redis, indexed=lambda: time.time() + 1)
    scan(catalogue, "/m", [seen("/m/set"), seen("/m/hangs")])
    printed(catalogue, 1, "/m/set", LONG, finished_at=time.time() - live_sets.QUIET - 1)
    await reconciler.reconcile()
    assert await queued(redis) == ["1"]


async def test_a_long_file_of_the_library_is_listened_to_shown_and_told(
    hub_url: str,
    catalogue: Catalogue,
    redis: Redis,
    valkey_url: str,
    shelf: list[Sample],
    party: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real hub with its index, and a real meta worker; what is a set is a matter of its length."""
    print_ = fingerprint(party)
    assert print_.duration is not None
    monkeypatch.setitem(SET_TASKS, SET, replace(SET_TASKS[SET], shortest=print_.duration - 1))
    name, there = encode_path(party), party.stat()
    content = {"sha256": hashlib.sha256(party.read_bytes()).hexdigest()}
    file = {"path": name, "size": there.st_size, "mtime_ns": there.st_mtime_ns, **content}
    scan(catalogue, encode_path(party.parent), [file])
    [number] = [track.id for track in catalogue.tracks() if track.encoded_path == name]
    entry = result(FINGERPRINT, number, "-", raw=print_.raw, duration=print_.duration)
    version = entry.version.replace(entry.version.partition(":")[0], content["sha256"])
    assert catalogue.record(AGENT, [entry.model_copy(update={"version": version})]) == [None]
    env = {
        **os.environ,
        **{"PHAZE_REDIS_URL": valkey_url, "PHAZE_HUB_URL": hub_url, "PHAZE_AGENT_TOKEN": TOKEN},
        **{"PHAZE_AGENT_ID": AGENT, "PHAZE_AGENT_LANE": "meta", "PHAZE_LOG_FORMAT": "json"},
    }
    with (tmp_path / "log").open("wb") as log:
        argv = (sys.executable, "-m", "agent.cli", "worker")
        worker = await asyncio.create_subprocess_exec(*argv, env=env, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(60):
            while not (found := catalogue.live_sets()):
                await asyncio.sleep(0.1)
    finally:
        worker.terminate()
        await worker.wait()
    [one] = found
    assert (one.file_id, one.outcome) == (number, "done")
    assert sets_owed(catalogue) == set()
    async with httpx.AsyncClient(base_url=hub_url) as client:
        page = (await client.get("/sets")).text
        listed = (await client.get("/api/sets")).json()
    assert shelf[2].title in page
    assert "1 set with a tracklist" in page
    assert listed["sets"][0]["result"]["tracks"][1]["title"] == shelf[4].title
    monkeypatch.setenv("PHAZE_DATA_DIR", str(catalogue.path.parent))
    told = CliRunner().invoke(tracklist, [], catch_exceptions=False)
    assert f"2 tracks  {party}" in told.output

    def listens_again(*_: Any) -> None:
        raise AssertionError("it is recorded")

    monkeypatch.setattr("agent.tracklist.find", listens_again)
    told = CliRunner().invoke(tracklist, [str(party), "--show", "--json"], catch_exceptions=False)
    assert json.loads(told.output)["tracks"] == one.result["tracks"]
    with pytest.raises(AssertionError, match="it is recorded"):
        CliRunner().invoke(tracklist, [str(party), "--show", "--again"], catch_exceptions=False)


async def test_whatever_an_agent_records_the_page_stands(catalogue: Catalogue, hub_url: str) -> None:
    scan(catalogue, "/m", [seen("/m/a")])
    odd = {"tracks": [7, {"start": "x", "title": "<b>\x00", "tempo": []}, {}], "gaps": "none"}
    catalogue.record(AGENT, [result(SET, 1, "/m/a", **odd)])
    async with httpx.AsyncClient(base_url=hub_url) as client:
        answer = await client.get("/sets")
        assert (await client.get("/api/sets")).status_code == 200
    assert answer.status_code == 200
    assert "&lt;b&gt;" in answer.text
