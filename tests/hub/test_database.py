from __future__ import annotations

import resource
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from agent.hub import database, schema
from agent.hub.catalogue import Catalogue, CatalogueError, CatalogueUnavailable
from tests.hub.deliveries import AGENT, TOKEN, owed, part, result, scan, seen, sha


def test_a_full_disk_writes_nothing_and_says_so(catalogue: Catalogue) -> None:
    [scan_id] = catalogue.request_scans(AGENT, ["/m"])
    entry = part(scan_id, [seen(f"/m/{i}.mp3") for i in range(500)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    grown = catalogue.path.with_name(f"{catalogue.path.name}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (grown + 8192, hard))
    try:
        with pytest.raises(CatalogueUnavailable, match=r"catalogue\.sqlite: .*; "):
            catalogue.record(AGENT, [entry])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert catalogue.count_tracks() == 0
    assert catalogue.record(AGENT, [entry]) == [None]
    assert catalogue.count_tracks() == 500


def test_a_write_that_another_process_blocks_is_unavailable_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.2)
    with Catalogue(tmp_path) as catalogue:
        catalogue.register_agent(AGENT, "t")
        other = sqlite3.connect(catalogue.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CatalogueUnavailable, match="another process holds it"):
            catalogue.request_scans(AGENT, ["/m"])
        assert catalogue.count_tracks() == 0
        other.execute("ROLLBACK")
        other.close()
        assert len(catalogue.request_scans(AGENT, ["/m"])) == 1


def test_threads_write_side_by_side(catalogue: Catalogue) -> None:
    ids = catalogue.request_scans(AGENT, [f"/m{i}" for i in range(8)])
    failures: list[BaseException] = []

    def deliver(scan_id: str, number: int) -> None:
        try:
            for start in range(0, 200, 20):
                files = [seen(f"/m{number}/{i}.mp3") for i in range(start, start + 20)]
                assert catalogue.record(AGENT, [part(scan_id, files)]) == [None]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=deliver, args=(scan_id, i)) for i, scan_id in enumerate(ids)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert catalogue.count_tracks() == 1600


def test_settings_of_the_file_are_those_of_a_durable_one(catalogue: Catalogue) -> None:
    with catalogue._database.write() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}


def test_a_newer_schema_is_refused_with_a_remedy(tmp_path: Path) -> None:
    Catalogue(tmp_path).close()
    with sqlite3.connect(tmp_path / "catalogue.sqlite") as file:
        file.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    file.close()
    with pytest.raises(CatalogueError, match=r"newer phaze .*upgrade phaze"):
        Catalogue(tmp_path)


def test_reading_needs_a_catalogue(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="phaze up PATH"):
        Catalogue(tmp_path, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_in_another_container_than_the_hubs_the_catalogue_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("container", "docker")
    with pytest.raises(CatalogueError, match="docker compose exec hub phaze"):
        Catalogue(tmp_path, read_only=True)


def test_what_is_no_catalogue_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "catalogue.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(CatalogueError, match="restore the file from a backup"):
        Catalogue(tmp_path)


def test_a_reader_sees_what_the_hub_writes_and_can_write_nothing(catalogue: Catalogue) -> None:
    with Catalogue(catalogue.path.parent, read_only=True) as reader:
        scan(catalogue, "/m", [seen("/m/a.mp3")])
        assert reader.count_tracks() == 1
        with pytest.raises(CatalogueUnavailable):
            reader.request_scans(AGENT, ["/n"])
    catalogue.close()
    with Catalogue(catalogue.path.parent, read_only=True) as reader:
        assert [track.path for track in reader.tracks()] == ["/m/a.mp3"]


def test_a_new_profile_owes_every_file_that_task_again(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.hub.file_tasks import ANALYSIS, FILE_TASKS, FileTask

    scan(catalogue, "/m", [seen("/m/a.mp3")])
    for service in FILE_TASKS:
        catalogue.record(AGENT, [result(service, 1, "/m/a.mp3")])
    assert owed(catalogue) == set()
    catalogue.close()
    monkeypatch.setitem(FILE_TASKS, ANALYSIS, FileTask("next", FILE_TASKS[ANALYSIS].payload))
    with Catalogue(catalogue.path.parent) as opened:
        assert owed(opened) == {(ANALYSIS, "1")}
        assert opened.tracks()[0].pending == [ANALYSIS]


def test_fingerprints_from_before_are_kept_but_those_that_may_differ_now(tmp_path: Path) -> None:
    from agent.hub.file_tasks import FILE_TASKS, FINGERPRINT

    rows: dict[str, dict[str, Any]] = {
        "/m/fine.mp3": {"duration": 200.0},
        "/m/blip.mp3": {"outcome": "partial", "reason": "too-short", "duration": 0.5},
        "/m/half.flac": {"outcome": "partial", "reason": "short", "duration": 100.0},
        "/m/bad.mp3": {"outcome": "rejected", "reason": "corrupt"},
        "/m/six.flac": {"outcome": "partial", "reason": "too-short", "duration": 200.0},
        "/m/cut.WAV": {"duration": 100.0},
        "/m/cut.opus": {"duration": 100.0},
    }
    with Catalogue(tmp_path) as catalogue:
        catalogue.register_agent(AGENT, TOKEN)
        scan(catalogue, "/m", [seen(path) for path in rows])
        for number, (path, fields) in enumerate(rows.items(), 1):
            for service in FILE_TASKS:
                said = {**fields, "version": f"{sha(path)}:1"} if service == FINGERPRINT else {}
                assert catalogue.record(AGENT, [result(service, number, path, **said)]) == [None]
    with sqlite3.connect(tmp_path / "catalogue.sqlite") as file:
        file.execute("PRAGMA user_version = 5")
        file.execute("DELETE FROM state WHERE name = 'derived_for'")
    file.close()
    with Catalogue(tmp_path) as catalogue:
        assert owed(catalogue) == {(FINGERPRINT, number) for number in "567"}
