"""What a rescan is told, what it proves, and how files are followed to other places."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.desk import Desk
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FILE_TASKS
from agent.hub.scans import ScanRefused, Wish
from agent.settings import load_settings
from pipelines.errors import NotGranted
from pipelines.payload import encode_path
from tests.hub.deliveries import AGENT, TOKEN, closing, owed, part, result, scan, seen, sha
from tests.hub.test_batches import do, moved


def stamped(path: str, content: str | None = None, *, ctime: int = 5) -> dict[str, Any]:
    return {**seen(path, content), "ctime_ns": ctime}


def paths(catalogue: Catalogue) -> list[str]:
    return [track.path for track in catalogue.tracks(sort="path")]


async def test_the_task_learns_through_the_hub_which_files_are_as_they_were(
    catalogue: Catalogue, hub_url: str, client: httpx.AsyncClient
) -> None:
    odd = encode_path(b"/m/\xff\n")
    scan(catalogue, "/m", [stamped("/m/a"), stamped(odd), stamped("/m/young", ctime=0), stamped("/m/gone")])
    scan(catalogue, "/m", [stamped("/m/a"), stamped(odd), stamped("/m/young", ctime=0)])
    asked = [["/m/a", 1000, 1, 5], [odd, 1000, 1, 5], ["/m/young", 1000, 1, 0], ["/m/gone", 1000, 1, 5]]
    other = [["/m/a", 1001, 1, 5], ["/m/a", 1000, 2, 5], ["/m/a", 1000, 1, 6], ["/m/new", 1000, 1, 5]]
    desk = Desk(load_settings(hub_url=hub_url), TOKEN)
    try:
        answer = await desk.ask("7", "known-files", {"files": asked + other})
        assert answer["known"] == {"/m/a": sha("/m/a"), odd: sha(odd), "/m/gone": sha("/m/gone")}
        assert await desk.ask("7", "known-files", {"files": other}) == {"known": {}}
        with pytest.raises(NotGranted, match="files"):
            await desk.ask("7", "known-files", {"files": [["/m/a", "large", 1, 5]]})
    finally:
        await desk.close()
    catalogue.register_agent("nas", "another")
    stranger = await client.post("/api/agents/nas/known-files", json={"files": asked})
    assert stranger.status_code == 403


def test_what_an_approved_batch_changed_is_read_once_more(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [stamped("/m/a")])
    do(catalogue, moved("/m/a", "/m/b"))
    assert catalogue.unchanged(AGENT, [("/m/b", 7, 9, 0), ("/m/b", 7, 9, 5)]) == {}


def test_a_scan_of_some_places_proves_nothing_about_the_others(catalogue: Catalogue) -> None:
    files = ["/m/a", "/m/b/1", "/m/b/2", "/m/b2", "/m/c"]
    scan(catalogue, "/m", [seen(path) for path in files])
    [scan_id] = catalogue.request_scans(AGENT, [Wish(root="/m", paths=["/m/b/", "/m/c", "/m/new"])])
    [debt] = catalogue.owed(AGENT, "scan_directory", 10)
    assert debt.payload().model_dump() == {
        "version": scan_id,
        "root": "/m",
        "paths": ["/m/b", "/m/c", "/m/new"],
        "mounts": [],
        "reread": False,
    }
    catalogue.record(AGENT, [part(scan_id, [seen("/m/b/2", "other"), seen("/m/new", "/m/c")]), closing(scan_id)])
    assert paths(catalogue) == ["/m/a", "/m/b/2", "/m/b2", "/m/new"]
    last = catalogue.scans_since(0)[-1]
    assert (last.added, last.changed) == (1, 1)
    assert (last.passed_over["gone"], last.passed_over["moved"]) == (1, 1), "c is new now, b/1 gone"


@pytest.mark.parametrize(("outcome", "reason"), [("skipped", "empty-folder"), ("partial", "root-vanished")])
def test_a_root_that_was_taken_away_proves_nothing(catalogue: Catalogue, outcome: str, reason: str) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b")])
    [scan_id] = catalogue.request_scans(AGENT, [Wish(root="/m", paths=["/m/a"])])
    catalogue.record(AGENT, [closing(scan_id, outcome=outcome).model_copy(update={"reason": reason})])
    scan(catalogue, "/m", [seen("/m/a")], outcome=outcome)
    assert paths(catalogue) == ["/m/a", "/m/b"]


def test_what_was_mounted_below_a_root_is_told_to_its_next_scans(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/nas/b")], mounts=["/m/nas"])
    scan(catalogue, "/n", [seen("/n/a")])
    [scan_id] = catalogue.request_scans(AGENT, [Wish(root="/m", paths=["/m/nas/b"])])
    [debt] = catalogue.owed(AGENT, "scan_directory", 10)
    assert debt.payload().model_dump()["mounts"] == ["/m/nas"]
    error = {"path": "/m/nas", "reason": "not-mounted"}
    end = {"errors": [error], "error_count": 1, "mounts": ["/m/nas"]}
    catalogue.record(AGENT, [closing(scan_id, outcome="partial", **end)])
    scan(catalogue, "/m", [seen("/m/a")], outcome="partial", **end)
    assert paths(catalogue) == ["/m/a", "/m/nas/b", "/n/a"]
    scan(catalogue, "/m", [seen("/m/a")], mounts=["/m/nas"])
    assert paths(catalogue) == ["/m/a", "/n/a"], "it was mounted, and held nothing"


def test_nothing_is_looked_at_where_nothing_is_nor_was(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a/1")])
    assert catalogue.request_scans(AGENT, [Wish(root="/m", absent=["/m/x.part", "/m/a0"])]) == []
    assert owed(catalogue).isdisjoint({("scan_directory", "")})
    [_] = catalogue.request_scans(AGENT, [Wish(root="/m", absent=["/m/x.part", "/m/a"])])
    [debt] = catalogue.owed(AGENT, "scan_directory", 10)
    assert debt.payload().model_dump()["paths"] == ["/m/a"]


def test_wishes_that_cannot_be_are_refused(catalogue: Catalogue) -> None:
    for wish in (Wish(root="/m", paths=["/n/a"]), Wish(root="/m", paths=["/m/../n"]), Wish(root="m")):
        with pytest.raises(ScanRefused):
            catalogue.request_scans(AGENT, [wish])


def test_a_scan_that_may_have_begun_does_not_serve_where_something_changed(catalogue: Catalogue) -> None:
    [first] = catalogue.request_scans(AGENT, ["/m"])
    assert catalogue.request_scans(AGENT, [Wish(root="/m", fresh=True)]) != [first]
    [some] = catalogue.request_scans(AGENT, [Wish(root="/m", paths=["/m/a"])])
    assert some not in catalogue.request_scans(AGENT, ["/m"]), "a part of it is not all of it"
    [reread] = catalogue.request_scans(AGENT, [Wish(root="/n", reread=True)])
    assert catalogue.request_scans(AGENT, ["/n"]) == [reread]
    [plain] = catalogue.request_scans(AGENT, ["/o"])
    assert catalogue.request_scans(AGENT, [Wish(root="/o", reread=True)]) != [plain]


async def test_scans_are_asked_for_over_http_whole_or_in_part(catalogue: Catalogue, client: httpx.AsyncClient) -> None:
    body = {"agent_id": AGENT, "roots": ["/m"]}
    assert len((await client.post("/api/scans", json={**body, "reread": True})).json()["scans"]) == 1
    assert len((await client.post("/api/scans", json={**body, "paths": ["/m/a"], "fresh": True})).json()["scans"]) == 1
    assert (await client.post("/api/scans", json={**body, "absent": ["/m/a"]})).json() == {"scans": []}
    for wrong in ({"paths": "all"}, {"paths": ["/n/a"]}, {"reread": "perhaps"}, {"paths": ["/m/a"] * 1001}):
        assert (await client.post("/api/scans", json={**body, **wrong})).status_code == 400, wrong
    assert (await client.post("/api/scans", json={**body, "roots": ["/m", "/n"], "paths": ["/m/a"]})).status_code == 400


def test_a_moved_file_needs_no_work_and_is_told_from_a_new_and_a_gone_one(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b"), seen("/m/c")])
    catalogue.record(AGENT, [result(service, 1, "/m/a", bpm=120) for service in FILE_TASKS])
    scan(catalogue, "/m", [seen("/m/x/a", "/m/a"), seen("/m/c"), seen("/m/d")])
    last = catalogue.scans_since(0)[-1]
    assert (last.added, last.changed, last.passed_over["gone"], last.passed_over["moved"]) == (2, 0, 1, 1)
    [there] = [track for track in catalogue.tracks() if track.path == "/m/x/a"]
    assert there.bpm == 120
    assert str(there.id) not in {record for _, record in owed(catalogue)}


async def test_a_file_that_was_moved_is_heard_at_once_whoever_moved_it(
    catalogue: Catalogue, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        scan(catalogue, encode_path(folder), [])
    (one / "a.mp3").write_bytes(b"approved")
    (one / "b.mp3").write_bytes(b"by hand")
    scan(catalogue, encode_path(one), [seen(encode_path(one / name)) for name in ("a.mp3", "b.mp3")])
    (one / "a.mp3").rename(two / "a.mp3")
    do(catalogue, moved(encode_path(one / "a.mp3"), encode_path(two / "a.mp3")))
    assert (await client.get("/files/1/audio")).content == b"approved", "in another root, and not scanned there yet"
    assert catalogue.location(1) is not None
    (one / "b.mp3").rename(two / "c.mp3")
    scan(catalogue, encode_path(two), [seen(encode_path(two / "c.mp3"), encode_path(one / "b.mp3"))])
    scan(catalogue, encode_path(one), [], other=1)
    assert (await client.get("/files/2/audio")).content == b"by hand", "a page from before it was moved still plays it"


def test_a_catalogue_from_before_is_taken_over_with_its_roots(tmp_path: Path) -> None:
    with Catalogue(tmp_path) as catalogue:
        catalogue.register_agent(AGENT, TOKEN)
        scan(catalogue, "/m", [stamped("/m/a")])
    with sqlite3.connect(tmp_path / "catalogue.sqlite") as file:
        for table, names in {
            "scans": ("paths", "mounts", "reread", "added", "changed", "moved"),
            "files": ("ctime_ns", "root"),
        }.items():
            for name in names:
                file.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
        file.execute("PRAGMA user_version = 2")
    file.close()
    with Catalogue(tmp_path) as catalogue:
        found = catalogue.location(1)
        assert found is not None
        assert (found.root, found.path) == ("/m", "/m/a")
        assert catalogue.unchanged(AGENT, [("/m/a", 1000, 1, 5)]) == {}, "it is read once more"
        scan(catalogue, "/m", [stamped("/m/a")])
        assert catalogue.unchanged(AGENT, [("/m/a", 1000, 1, 5)]) == {"/m/a": sha("/m/a")}
