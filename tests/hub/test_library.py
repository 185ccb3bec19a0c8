"""The index follows the catalogue, through kills and damage, and answers from a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from agent.hub import index as index_module
from agent.hub.catalogue import PRINTS_FOLDER, Catalogue
from agent.hub.file_tasks import FINGERPRINT
from agent.hub.index import IndexProcess, IndexUnavailable
from agent.hub.library import Library, sole_writer
from pipelines.music import print_index
from pipelines.music.postings import Items
from pipelines.music.prints import encode_items
from tests.hub.deliveries import AGENT, result, scan, seen
from tests.pipelines.music.test_print_index import played, rough, tune


def fill(catalogue: Catalogue, prints: dict[str, Items]) -> None:
    """One file for each print, named and with content by its key."""
    scan(catalogue, "/m", [seen(f"/m/{name}", name) for name in prints])
    ids = {track.path: track.id for track in catalogue.tracks()}
    entries = [
        result(FINGERPRINT, ids[f"/m/{name}"], name, raw=encode_items(items.tolist())) for name, items in prints.items()
    ]
    assert set(catalogue.record(AGENT, entries)) == {None}


PRINTS = {
    "a": tune(1),
    "b": rough(tune(1), 0.1),
    "c": tune(2),
    "faster": played(tune(2), 1.04),
    "set": np.concatenate([tune(50), tune(3)[100:800], tune(51)]),
    "e": tune(3),
}


def library(catalogue: Catalogue, **options: bool) -> Library:
    found = Library(
        catalogue._database.read, catalogue.path.with_name(PRINTS_FOLDER), **{"read_only": False, **options}
    )
    while found.sync():
        pass
    return found


def test_groups_and_relatives_name_files(catalogue: Catalogue) -> None:
    fill(catalogue, PRINTS)
    scan(catalogue, "/n", [seen("/n/again", "c")])
    catalogue.compare_prints(at_once=True)
    names = {track.id: track.path for track in catalogue.tracks()}
    groups = [(group.kind, [member.path for member in group.members]) for group in catalogue.groups()]
    assert groups == [("same", ["/m/a", "/m/b"]), ("exact", ["/m/c", "/n/again"])]
    part, tempo = catalogue.relatives()
    assert (part.kind, part.file.path, part.of.path) == ("part", "/m/e", "/m/set")
    assert part.start == pytest.approx(900 / 8.08, abs=1)
    assert part.end == pytest.approx(1600 / 8.08 + 2.6, abs=1)
    assert (tempo.kind, tempo.file.path, names[tempo.of.id]) == ("tempo", "/m/faster", "/m/c")
    assert tempo.tempo == pytest.approx(1.04, abs=0.005)
    assert catalogue.groups(limit=1, offset=1)[0].label == "d2"


def test_what_is_gone_or_replaced_is_not_found(catalogue: Catalogue) -> None:
    fill(catalogue, PRINTS)
    shelf = library(catalogue)
    assert {row["file_id"] for row in shelf.find(tune(1)[:300])} == {1, 2}
    catalogue.record(AGENT, [result(FINGERPRINT, 1, "a", token=2, raw=encode_items(tune(60).tolist()))])
    scan(catalogue, "/m", [seen(f"/m/{name}", name) for name in PRINTS if name != "b"])
    while shelf.sync():
        pass
    assert shelf.find(tune(1)[:300]) == []
    assert [row["file_id"] for row in shelf.find(tune(60)[:300])] == [1]


def test_a_restart_reads_only_what_the_checkpoint_has_not(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(print_index, "FEWEST", 3)
    fill(catalogue, PRINTS)
    first = library(catalogue)
    assert (catalogue.path.with_name(PRINTS_FOLDER) / "index.json").exists()
    assert len(first.index) == len(PRINTS)
    fill(catalogue, {**PRINTS, "new": tune(70)})
    read: list[str] = []
    monkeypatch.setattr(Library, "_prints", lambda _self, batch: read.extend(row[0] for row in batch) or iter(()))
    again = library(catalogue)
    assert len(read) == 1
    assert {row["file_id"] for row in again.find(tune(3)[200:400])} == {5, 6}
    assert again.comparison(0).labels == first.comparison(0).labels


def test_one_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.hub.library.LOCK_WAIT", 0.2)
    with sole_writer(tmp_path), pytest.raises(OSError, match="another process"), sole_writer(tmp_path):
        pass
    with sole_writer(tmp_path):
        pass


@pytest.fixture
async def process(catalogue: Catalogue) -> AsyncIterator[IndexProcess]:
    found = IndexProcess(catalogue.path, catalogue.path.with_name(PRINTS_FOLDER), catalogue.duplicates)
    running = asyncio.create_task(found.run())
    yield found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert found._process is None or found._process.returncode is not None


async def until_indexed(catalogue: Catalogue) -> None:
    async with asyncio.timeout(30):
        while catalogue.duplicates.due(at_once=True):
            await asyncio.sleep(0.05)


async def test_the_process_indexes_answers_and_comes_back_when_killed(
    catalogue: Catalogue, process: IndexProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "PERIOD", 0.1)
    fill(catalogue, PRINTS)
    await until_indexed(catalogue)
    assert catalogue.duplicates.labels == {"1": "d1", "2": "d1"}
    raw = encode_items(tune(3)[200:400].tolist())
    answer = await process.find(raw)
    assert {row["file_id"] for row in answer["found"]} == {5, 6}
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(process.find(raw)) for _ in range(3)]
    await asyncio.sleep(0.1)
    waiting[0].cancel()
    os.kill(process._process.pid, signal.SIGKILL)
    for question in waiting[1:]:
        with pytest.raises(IndexUnavailable, match="ended"):
            await question
    with pytest.raises(IndexUnavailable, match="being built: 0 of 6"):
        await process.find(raw)
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(IndexUnavailable):
                assert len((await process.find(raw))["found"]) == 2
                break
            await asyncio.sleep(0.05)


async def test_a_process_that_hangs_is_ended(
    catalogue: Catalogue, process: IndexProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = encode_items(tune(3).tolist())
    await process.find(raw)
    monkeypatch.setattr(index_module, "PATIENCE", 0.5)
    assert process._process is not None
    stopped = process._process.pid
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(IndexUnavailable, match="did not answer"):
        await process.find(raw)
    monkeypatch.setattr(index_module, "PATIENCE", 30.0)
    assert (await process.find(raw))["found"] == []
    assert not psutil.pid_exists(stopped)


async def test_an_agent_asks_what_a_sound_is(client: httpx.AsyncClient, catalogue: Catalogue) -> None:
    fill(catalogue, PRINTS)
    await until_indexed(catalogue)
    path = f"/api/agents/{AGENT}/prints"
    sound = np.concatenate([tune(99, 300), played(tune(2), 1.04)])
    answer = (await client.post(path, json={"raw": encode_items(sound.tolist())})).json()
    assert (answer["indexed"], answer["waiting"]) == (6, 0)
    first = min(answer["heard"], key=lambda row: row["file_id"])
    assert (first["file_id"], first["title"], first["path"]) == (3, "c", "/m/c")
    assert first["start"] == pytest.approx(300 / 8.08, abs=1)
    assert first["finish"] == pytest.approx(900 / 8.08 + 2.6, abs=1)
    for wrong in ({}, {"raw": 1}, {"raw": "!"}, {"raw": "YWJj"}):
        assert (await client.post(path, json=wrong)).status_code == 400
    assert (await client.post(path, json={"raw": ""})).json()["heard"] == []
    assert (await client.post(path, json={"raw": ""}, headers={"Authorization": ""})).status_code == 401
