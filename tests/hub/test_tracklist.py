"""From a file to its tracklist: by a worker that asks a hub, and by the command."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from agent.desk import Desk
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FINGERPRINT, METADATA
from agent.hub.index import IndexProcess, IndexUnavailable
from agent.producer import Producer
from agent.settings import load_settings
from agent.tracklist import tracklist, write
from pipelines.errors import NotAnswered, NotGranted
from pipelines.music.fingerprint import fingerprint
from pipelines.music.live_set import LiveSetPayload, Tracklist
from pipelines.music.samples import Sample
from pipelines.music.tracklists import read_tracklist
from pipelines.payload import encode_path
from tests.hub.deliveries import AGENT, TOKEN, result, scan, seen
from tests.pipelines.conftest import Make


@pytest.fixture
def shelf(catalogue: Catalogue, samples: list[Sample]) -> list[Sample]:
    """The sample tracks in the catalogue, with names and prints."""
    tracks = [sample for sample in samples if sample.duplicate_of is None]
    names = [encode_path(sample.path) for sample in tracks]
    scan(catalogue, encode_path(tracks[0].path.parent), [seen(name) for name in names])
    for number, (name, sample) in enumerate(zip(names, tracks, strict=True), 1):
        raw = fingerprint(sample.path).raw
        entries = [
            result(FINGERPRINT, number, name, raw=raw),
            result(METADATA, number, name, artist="Phaze", title=sample.title),
        ]
        assert catalogue.record(AGENT, entries) == [None, None]
    return tracks


@pytest.fixture(scope="session")
def party(samples: list[Sample], make: Make) -> Path:
    """Two of the samples after each other, the second 3 % faster."""
    graph = "[0:a:0]aresample=44100,atrim=0:24[a];[1:a:0]aresample=44100,atempo=1.03[b];[a][b]concat=n=2:v=0:a=1"
    return make("party.mp3", "-i", samples[2].path, "-i", samples[4].path, "-filter_complex", graph)


def check(found: Tracklist, shelf: list[Sample]) -> None:
    assert [(track.artist, track.title) for track in found.tracks] == [
        ("Phaze", shelf[2].title),
        ("Phaze", shelf[4].title),
    ]
    assert abs(found.tracks[1].start - 24) < 10
    assert found.tracks[1].tempo == pytest.approx(1.03, abs=0.02)
    assert found.indexed == len(shelf)


async def test_a_meta_worker_asks_the_hub_and_stays_small(
    hub_url: str, catalogue: Catalogue, redis: Redis, valkey_url: str, shelf: list[Sample], party: Path, tmp_path: Path
) -> None:
    env = {
        **os.environ,
        **{"PHAZE_REDIS_URL": valkey_url, "PHAZE_HUB_URL": hub_url, "PHAZE_AGENT_TOKEN": TOKEN},
        **{"PHAZE_AGENT_ID": AGENT, "PHAZE_AGENT_LANE": "meta", "PHAZE_LOG_FORMAT": "json"},
    }
    with (tmp_path / "log").open("wb") as log:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent.cli", "worker"), env=env, stdout=log, stderr=log
        )
        try:
            payload = LiveSetPayload(version="v", path=encode_path(party), size=party.stat().st_size)
            await Producer(redis).enqueue(AGENT, "scan_live_set", "set-1", payload)
            row = None
            async with asyncio.timeout(60):
                while row is None:
                    await asyncio.sleep(0.1)
                    with catalogue._database.read() as connection:
                        query = "SELECT outcome, result FROM results WHERE service = 'scan_live_set'"
                        row = connection.exec_driver_sql(query).one_or_none()
            check(Tracklist.model_validate_json(row.result), shelf)
            own = psutil.Process(worker.pid)
            assert own.memory_info().rss < 120 * 2**20, "usually 60 MB: no numpy"
            assert not any("numpy" in mapped.path for mapped in own.memory_maps())
        finally:
            worker.terminate()
            await worker.wait()


def desk(hub_url: str, agent_id: str = AGENT, token: str = TOKEN) -> Desk:
    return Desk(load_settings(hub_url=hub_url, agent_id=agent_id), token)


async def test_an_outage_and_a_refusal_are_told_apart(hub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    away, stranger, mine = desk("http://127.0.0.1:9"), desk(hub_url, token="wrong"), desk(hub_url)
    with pytest.raises(NotAnswered, match="PHAZE_HUB_URL"):
        await away.ask("1", "prints", {"raw": ""})
    with pytest.raises(NotGranted, match="PHAZE_AGENT_TOKEN"):
        await stranger.ask("1", "prints", {"raw": ""})
    assert (await mine.ask("1", "prints", {"raw": ""}))["heard"] == []
    with pytest.raises(NotGranted, match="raw must be a fingerprint"):
        await mine.ask("1", "prints", {"raw": 7})

    async def busy(_index: IndexProcess, _raw: str) -> dict[str, object]:
        raise IndexUnavailable("the index is being built")

    monkeypatch.setattr(IndexProcess, "find", busy)
    with pytest.raises(NotAnswered, match="503: the index is being built"):
        await mine.ask("1", "prints", {"raw": ""})
    for each in (away, stranger, mine):
        await each.close()


def test_the_command_writes_a_cue_sheet_and_json_and_nothing_else(
    catalogue: Catalogue, shelf: list[Sample], party: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHAZE_DATA_DIR", str(catalogue.path.parent))
    folder = tmp_path / "sets"
    folder.mkdir()
    file = folder / "a set.mp3"
    file.write_bytes(party.read_bytes())
    theirs = folder / "a set.cue"
    theirs.write_text("not a cue sheet\n")
    told = CliRunner().invoke(tracklist, [str(file)], catch_exceptions=False)
    assert told.exit_code == 0
    assert f"Phaze - {shelf[2].title}" in told.output
    assert "of its tempo" in told.output
    assert sorted(path.name for path in folder.iterdir()) == [
        "a set.cue", "a set.mp3", "a set.phaze.cue", "a set.phaze.json",
    ]  # fmt: skip
    assert theirs.read_text() == "not a cue sheet\n"
    check(Tracklist.model_validate_json((folder / "a set.phaze.json").read_text()), shelf)
    assert [track.title for track in read_tracklist(folder / "a set.phaze.cue")] == [shelf[2].title, shelf[4].title]
    told = CliRunner().invoke(tracklist, [str(file), "--show", "--json"], catch_exceptions=False)
    check(Tracklist.model_validate(json.loads(told.output)), shelf)
    assert len(list(folder.iterdir())) == 4


def test_a_file_that_is_no_sound_and_a_folder_that_is_full_are_one_line(
    catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHAZE_DATA_DIR", str(catalogue.path.parent))
    assert load_settings().data_dir == catalogue.path.parent
    (tmp_path / "a.mp3").write_bytes(b"no sound at all" * 99)
    told = CliRunner().invoke(tracklist, [str(tmp_path / "a.mp3")])
    assert "gives no tracklist: not-audio" in str(told.exception)
    with pytest.raises(OSError, match="too long"):
        write(Tracklist(), tmp_path / ("x" * 250 + ".mp3"), tmp_path, "{}")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_of_the_two_files_of_a_tracklist_both_are_written_or_none(tmp_path: Path) -> None:
    cue, listing = tmp_path / "set.phaze.cue", tmp_path / "set.phaze.json"
    cue.write_text("an older one")
    with pytest.raises(UnicodeEncodeError):
        write(Tracklist(), tmp_path / "set.mp3", tmp_path, "what cannot be written: \ud800")
    assert [path.name for path in tmp_path.iterdir()] == [cue.name]
    assert cue.read_text() == "an older one"
    assert write(Tracklist(), tmp_path / "set.mp3", tmp_path, "{}") == [cue, listing]
    assert sorted(tmp_path.iterdir()) == [cue, listing]
    assert cue.read_text() != "an older one"
