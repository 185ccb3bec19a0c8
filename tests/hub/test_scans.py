from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from agent.hub import schema, work
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, FILE_TASKS
from agent.hub.scans import ScanRefused, Wish, clean_root
from pipelines.payload import encode_path
from tests.hub.deliveries import AGENT, closing, owed, part, result, scan, seen, unread


def paths(catalogue: Catalogue) -> list[str]:
    return [track.path for track in catalogue.tracks(sort="path")]


def test_every_file_is_owed_every_file_task_once(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    assert owed(catalogue) == {(service, record) for service in FILE_TASKS for record in ("1", "2")}
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    assert len(owed(catalogue)) == 2 * len(FILE_TASKS)


def test_a_scan_is_owed_until_it_ends(catalogue: Catalogue) -> None:
    [scan_id] = catalogue.request_scans(AGENT, ["/m"])
    assert owed(catalogue) == {("scan_directory", scan_id)}
    [debt] = catalogue.owed(AGENT, "scan_directory", 10)
    assert debt.payload().model_dump() == {"version": scan_id, "root": "/m", "paths": [], "mounts": [], "reread": False}
    catalogue.record(AGENT, [part(scan_id, [])])
    assert owed(catalogue) == {("scan_directory", scan_id)}
    catalogue.record(AGENT, [closing(scan_id)])
    assert owed(catalogue) == set()
    assert catalogue.progress().scans == {"done": 1}


def test_a_scan_that_nothing_came_back_from_serves_again(catalogue: Catalogue) -> None:
    [first] = catalogue.request_scans(AGENT, ["/m/"])
    assert catalogue.request_scans(AGENT, ["/m"]) == [first]
    catalogue.record(AGENT, [part(first, [seen("/m/a")])])
    assert catalogue.request_scans(AGENT, ["/m"]) != [first], "it may have passed by what is new"


@pytest.mark.parametrize(
    ("typed", "clean"),
    [("/m/", "/m"), ("//m//x/../y", "/m/y"), ("/", "/"), ("/a%20b%FF", "/a%20b%FF"), ("/ä", "/%C3%A4")],
)
def test_a_root_has_one_spelling(typed: str, clean: str) -> None:
    assert clean_root(typed) == clean


@pytest.mark.parametrize("root", ["", "music", "./m", "/nul%00", "/\ud800"])
def test_a_root_that_is_no_absolute_path_is_refused(root: str) -> None:
    with pytest.raises(ScanRefused, match=r"absolute path|percent-encoded path"):
        clean_root(root)


def test_changed_content_is_owed_again(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a", "old")])
    catalogue.record(AGENT, [result(service, 1, "old", bpm=120) for service in FILE_TASKS])
    assert owed(catalogue) == set()
    scan(catalogue, "/m", [seen("/m/a", "new")])
    assert owed(catalogue) == {(service, "1") for service in FILE_TASKS}
    assert catalogue.tracks()[0].bpm is None
    catalogue.record(AGENT, [result(ANALYSIS, 1, "old", token=9, bpm=99)])
    assert catalogue.tracks()[0].bpm is None, "a late result of the old content says nothing of the new"
    scan(catalogue, "/m", [seen("/m/a", "old")])
    assert owed(catalogue) == set(), "what is known of the old content still holds"
    assert catalogue.tracks()[0].bpm == 99


def test_only_a_scan_that_saw_all_proves_what_is_gone(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b"), seen("/m/c")])
    for outcome in ("partial", "rejected", "skipped"):
        scan(catalogue, "/m", [seen("/m/a")], outcome=outcome)
        assert len(paths(catalogue)) == 3
    scan(catalogue, "/m", [seen("/m/a")], errors=[{"path": "/m/x", "reason": "permission-denied"}])
    assert len(paths(catalogue)) == 3
    scan(catalogue, "/m", [seen("/m/a")])
    assert paths(catalogue) == ["/m/a"]
    assert {record for _, record in owed(catalogue)} == {"1"}


def test_beside_what_could_not_be_read_a_scan_proves_what_is_gone(catalogue: Catalogue) -> None:
    odd = encode_path(b"/m/\xff")
    kept = ["/m/locked/deep/b", "/m/locked/c", "/m/busy.mp3", f"{odd}/d"]
    lost = ["/m/lockedaway/e", "/m/lock", "/m/busy.mp30", "/m/f"]
    scan(catalogue, "/m", [seen(path) for path in ["/m/a", *kept, *lost]])
    scan(catalogue, "/m", [seen("/m/a")], **unread("/m/locked", "/m/busy.mp3", odd))
    assert {track.encoded_path for track in catalogue.tracks()} == {"/m/a", *kept}
    assert {record for _, record in owed(catalogue)} == {"1", "2", "3", "4", "5"}


@pytest.mark.parametrize(
    "end",
    [
        unread("/m/x", count=2),
        unread("/m/x", count=0),
        unread(),
        unread("/m"),
        unread("/"),
        unread("not absolute"),
        {**unread("/m/x"), "outcome": "done"},
        {**unread("/m/x"), "outcome": "rejected"},
        {**unread("/m/x"), "outcome": "skipped"},
        {**unread("/m/x"), "files": 0},
        {**unread(), "errors": "none", "error_count": 1},
        {"files": 0},
    ],
    ids=lambda end: "-".join(f"{name}={value}" for name, value in end.items())[:80],
)
def test_a_scan_that_may_have_missed_files_anywhere_proves_nothing(catalogue: Catalogue, end: dict[str, Any]) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    scan(catalogue, "/m", [seen("/m/a")], **end)
    assert paths(catalogue) == ["/m/a", "/m/b"]


def test_gone_is_what_lies_under_the_root_and_nothing_beside_it(catalogue: Catalogue) -> None:
    odd = [encode_path(b"/m/\xff\n"), "/m-other/a", "/m0/a", "/m", "/m/x"]
    for path in odd:
        scan(catalogue, path, [seen(path)])
    scan(catalogue, "/m", [seen("/m/x")])
    assert paths(catalogue) == ["/m-other/a", "/m/x", "/m0/a"]


def test_a_gone_file_that_is_back_needs_no_work(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    catalogue.record(AGENT, [result(service, 2, "/m/b") for service in FILE_TASKS])
    scan(catalogue, "/m", [seen("/m/a")])
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    assert {record for _, record in owed(catalogue)} == {"1"}


def test_overlapping_scans_do_not_lose_each_others_files(catalogue: Catalogue) -> None:
    outer, inner = catalogue.request_scans(AGENT, ["/m", "/m/x"])
    catalogue.record(AGENT, [part(outer, [seen("/m/x/a"), seen("/m/b")])])
    catalogue.record(AGENT, [part(inner, [seen("/m/x/a")]), closing(inner)])
    catalogue.record(AGENT, [closing(outer)])
    assert paths(catalogue) == ["/m/b", "/m/x/a"]


def test_a_stale_run_of_a_scan_is_refused_and_repeats_are_not(catalogue: Catalogue) -> None:
    [scan_id] = catalogue.request_scans(AGENT, ["/m"])
    new = part(scan_id, [seen("/m/a", "new")], token=2)
    assert catalogue.record(AGENT, [new, new]) == [None, None]
    [stale] = catalogue.record(AGENT, [part(scan_id, [seen("/m/a", "old")], token=1)])
    assert stale is not None
    assert stale.reason == "stale"
    end = closing(scan_id, token=2)
    assert catalogue.record(AGENT, [end, new, end]) == [None, None, None]
    assert catalogue.progress().scans == {"done": 1}


def test_the_end_that_a_stale_run_reports_changes_nothing(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    [scan_id] = catalogue.request_scans(AGENT, ["/m"])
    assert catalogue.record(AGENT, [part(scan_id, [seen("/m/a")], token=2)]) == [None]
    before = record_of(catalogue)
    for outcome in ("done", "partial", "rejected", "skipped"):
        [answer] = catalogue.record(AGENT, [closing(scan_id, outcome=outcome, token=1, files=1)])
        assert answer is not None
        assert answer.reason == "stale"
        assert record_of(catalogue) == before
    assert ("scan_directory", scan_id) in owed(catalogue)
    assert paths(catalogue) == ["/m/a", "/m/b"]
    assert catalogue.record(AGENT, [closing(scan_id, token=2, files=1)]) == [None]
    assert paths(catalogue) == ["/m/a"]
    ended = record_of(catalogue)
    for late in (closing(scan_id, outcome="partial", token=1), part(scan_id, [seen("/m/b")], token=1)):
        [answer] = catalogue.record(AGENT, [late])
        assert answer is not None
        assert answer.reason == "stale"
    assert record_of(catalogue) == ended


def record_of(catalogue: Catalogue) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    with catalogue._database.read() as connection:
        return {
            name: [tuple(row) for row in connection.execute(sa.select(table))]
            for name, table in schema.metadata.tables.items()
        }


@pytest.mark.parametrize(
    "file",
    [
        {"path": "/elsewhere/a", "size": 1, "mtime_ns": 1, "sha256": "0" * 64},
        {"path": "/m/../etc", "size": -1, "mtime_ns": 1, "sha256": "0" * 64},
        {"path": "/m/a", "size": 1, "mtime_ns": 1, "sha256": "xyz"},
        {"path": "/m/ä", "size": 1, "mtime_ns": 1, "sha256": "0" * 64},
        {"path": "/m/a"},
        None,
    ],
)
def test_a_part_with_a_file_that_cannot_be_is_refused_whole(catalogue: Catalogue, file: object) -> None:
    [scan_id] = catalogue.request_scans(AGENT, ["/m"])
    entry = part(scan_id, [seen("/m/good")])
    entry.result["files"].append(file)
    [refusal] = catalogue.record(AGENT, [entry])
    assert refusal is not None
    assert paths(catalogue) == []


def test_how_scans_ended_is_told(catalogue: Catalogue) -> None:
    before = time.time()
    errors = [{"path": "/m/%FFx", "reason": "permission-denied"}]
    scan(catalogue, "/m", [seen("/m/a")], outcome="partial", files=1, error_count=3, errors=errors)
    catalogue.request_scans(AGENT, ["/n"])
    ended, still_open = catalogue.scans_since(before)
    assert (ended.root, ended.state, ended.reason, ended.files, ended.error_count) == ("/m", "partial", "errors", 1, 3)
    assert ended.errors == [{"path": "/m/\ufffdx", "reason": "permission-denied"}]
    assert still_open.state == "open"
    assert [scan.state for scan in catalogue.scans_since(time.time())] == ["open"]


def test_what_the_last_scan_of_all_of_a_root_could_not_read_is_told_until_one_could(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> list[tuple[str, str]]:
        return [line for scan in catalogue.last_scans() for line in scan.unread]

    scan(catalogue, "/m", [seen("/m/a")], **unread("/m/x", count=2))
    scan(catalogue, "/n", [], outcome="skipped")
    (where, why), more, other = told()
    assert (where, more) == ("/m/x", ("/m", "and 1 more errors"))
    assert "PHAZE_UID" in why
    assert other[0] == "/n"
    [some] = catalogue.request_scans(AGENT, [Wish(root="/m", paths=["/m/a"])])
    catalogue.record(AGENT, [closing(some, files=1)])
    assert len(told()) == 3, "it has not looked there"
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/x")])
    assert [path for path, _ in told()] == ["/n"]
    monkeypatch.setattr(work, "RECENT", 0.0)
    assert told() == [], "nobody has it scanned any more"


def test_debts_are_found_by_index_at_20_000_files(catalogue: Catalogue) -> None:
    """Not by a look at every file: the plan says so, and a batch of a large debt costs no more than one of a small."""
    scan(catalogue, "/m", [seen(f"/m/{i:05d}") for i in range(20_000)])
    with catalogue._database.read() as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT * FROM owed WHERE agent_id='a' AND service='s' AND queued_at IS NULL LIMIT 500"
        ).all()
    assert any("ix_owed_unqueued" in row.detail for row in plan)
    started = time.perf_counter()
    queued = 0
    while batch := catalogue.owed(AGENT, ANALYSIS, 500):
        catalogue.mark(queued=batch)
        queued += len(batch)
    whole = time.perf_counter() - started
    assert queued == 20_000
    assert catalogue.owed_kinds() == [(AGENT, service) for service in sorted(FILE_TASKS) if service != ANALYSIS]
    started = time.perf_counter()
    assert catalogue.owed(AGENT, ANALYSIS, 500) == []
    assert catalogue.unchecked(60, 500) == []
    assert time.perf_counter() - started < whole / 10
