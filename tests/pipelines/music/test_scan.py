"""Every file is found once, counted, or named with the reason why not."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pipelines.context import InlineContext
from pipelines.errors import NotAnswered, RecordNotFoundError
from pipelines.music import listing, scan
from pipelines.music.listing import list_files, read_files
from pipelines.music.magic import AUDIO_SUFFIXES
from pipelines.music.scan import ScanPart, ScanPayload, ScanReport, scan_directory
from pipelines.music.walk import walk_after, walk_within
from pipelines.payload import decode_path, encode_path
from tests.conftest import REPO

AWKWARD = [
    b"plain.mp3",
    b"\xff\xfe latin.mp3",
    b"new\nline.flac",
    b"-rf.ogg",
    b"percent%20.opus",
    b"n" * 251 + b".mp3",
    "nfd-o\u0308.mp3".encode(),
    "nfc-\u00f6.mp3".encode(),
    b"UPPER.MP3",
    b" space .wav",
]


Scanned = tuple[ScanReport, list[ScanPart]]


def fill(root: Path, *names: bytes | str) -> None:
    for name in names:
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(path))


class Memory:
    """What a catalogue does for a scan: it keeps what was reported, and says what it knows of it."""

    def __init__(self) -> None:
        self.files: dict[tuple[Any, ...], str] = {}
        self.asked = 0

    def keep(self, parts: list[ScanPart]) -> None:
        for file in (file for part in parts for file in part.files):
            if file.ctime_ns:
                self.files[file.path, file.size, file.mtime_ns, file.ctime_ns] = file.sha256

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return {"known": {file[0]: self.files[tuple(file)] for file in question["files"] if tuple(file) in self.files}}


async def run(root: Path, *only: Path, memory: Memory | None = None, reread: bool = False) -> Scanned:
    ctx = InlineContext(answers={} if memory is None else {"known-files": memory.answer})
    paths = [encode_path(path) for path in only]
    report = await scan_directory(ctx, ScanPayload(version="1", root=encode_path(root), paths=paths, reread=reread))
    parts = [part for part in ctx.parts if isinstance(part, ScanPart)]
    if memory is not None:
        memory.keep(parts)
    return report, parts


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's times prove at once that it is unchanged: no test waits for a clock of FAT's coarseness."""
    monkeypatch.setattr(listing, "COARSE_NS", 0)


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose content is read from now on."""
    read: list[str] = []
    digest = hashlib.file_digest

    def told(file, name):  # type: ignore[no-untyped-def]
        read.append(Path(f"/proc/self/fd/{file.fileno()}").readlink().name)
        return digest(file, name)

    monkeypatch.setattr(listing.hashlib, "file_digest", told)
    return read


def found(parts: list[ScanPart]) -> list[bytes]:
    return [os.fsencode(decode_path(file.path)) for part in parts for file in part.files]


async def test_awkward_names_survive_and_find_the_same_file(tmp_path: Path) -> None:
    fill(tmp_path, *AWKWARD)
    report, parts = await run(tmp_path)
    assert (report.outcome, report.files, report.error_count) == ("done", len(AWKWARD), 0)
    assert found(parts) == sorted(os.fsencode(tmp_path) + b"/" + name for name in AWKWARD)
    for part in parts:
        assert ScanPart.model_validate_json(part.model_dump_json()) == part
        for file in part.files:
            content = decode_path(file.path).read_bytes()
            assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
            assert file.mtime_ns == decode_path(file.path).stat().st_mtime_ns


async def test_chunks_continue_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, *[f"d{n % 7}/e{n % 3}/{n:03}.mp3" for n in range(100)], "a.mp3", "d3.mp3", "z/z.mp3", "d3/notes.txt")
    whole = found((await run(tmp_path))[1])
    for size in (1, 7, 50):
        monkeypatch.setattr(list_files, "__defaults__", ((), (), (), size, 60.0))
        report, parts = await run(tmp_path)
        assert found(parts) == whole
        assert len(set(whole)) == report.files == 103
        assert report.other == 1
        assert max(len(part.files) for part in parts) <= size


def test_a_listing_and_a_read_end_by_their_bounds(tmp_path: Path) -> None:
    fill(tmp_path, *[f"{n}.mp3" for n in range(9)])
    assert len(list_files(tmp_path, max_files=2).files) == 2
    assert len(list_files(tmp_path, max_seconds=-1).files) == 1
    whole = list_files(tmp_path)
    assert whole.cursor is None
    assert read_files(whole.files, max_bytes=1).taken == 1
    assert read_files(whole.files, max_seconds=-1).taken == 1
    assert read_files(whole.files).taken == 9


def test_only_folders_on_the_cursors_way_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a/1.mp3", "b/c/1.mp3", "b/c/2.mp3", "b/d/1.mp3", "e/1.mp3")
    read: list[bytes] = []
    scandir = os.scandir

    def watched(path: bytes):  # type: ignore[no-untyped-def]
        read.append(os.path.relpath(path, os.fsencode(tmp_path)))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", watched)
    rest = [entry.cursor for entry in walk_after(os.fsencode(tmp_path), (b"b", b"c", b"1.mp3"))]
    assert rest == [(b"b", b"c", b"2.mp3"), (b"b", b"d", b"1.mp3"), (b"e", b"1.mp3")]
    assert read == [b".", b"b", b"b/c", b"b/d", b"e"]


def test_a_folder_that_vanished_between_chunks_only_ends_its_own_part(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.mp3", "c/1.mp3")
    assert [e.cursor for e in walk_after(os.fsencode(tmp_path), (b"b", b"x", b"1.mp3"))] == [(b"c", b"1.mp3")]


async def test_links_are_counted_and_never_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    fill(root, "in/a.mp3")
    fill(outside, "secret.mp3")
    (root / "loop").symlink_to(root)
    (root / "in" / "up").symlink_to("..")
    (root / "out").symlink_to(outside)
    (root / "file.mp3").symlink_to(outside / "secret.mp3")
    (root / "dangling.mp3").symlink_to("nowhere")
    report, parts = await run(root)
    assert (report.outcome, report.files, report.links, report.error_count) == ("done", 1, 5, 0)
    assert found(parts) == [os.fsencode(root / "in" / "a.mp3")]


async def test_pipes_and_sockets_are_counted_and_do_not_hang(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp3")
    os.mkfifo(tmp_path / "pipe.mp3")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(tmp_path)
        listener.bind("socket.mp3")
        report, _ = await run(tmp_path)
    assert (report.files, report.special) == (1, 2)


async def test_other_files_and_mac_companions_are_counted_and_left(tmp_path: Path) -> None:
    fill(tmp_path, "cover.jpg", "._a.mp3", "list.m3u", "film.mkv", "a.mp3")
    (tmp_path / "README").write_text("no suffix, no music")
    (tmp_path / "bare").write_bytes(b"fLaC" + b"\0" * 40)
    report, parts = await run(tmp_path)
    assert (report.files, report.other) == (2, 5)
    assert report.other_suffixes == {".jpg": 1, "._*": 1, ".m3u": 1, ".mkv": 1, "": 1}
    assert [decode_path(file.path).name for part in parts for file in part.files] == ["a.mp3", "bare"]


async def test_the_kinds_of_what_is_left_are_bounded_and_plain(tmp_path: Path) -> None:
    odd = ["a.\x1b[31m", "b.Mr Somebody", "c.", "\udcff.\udcff"]
    kinds = [f"x.k{number}" for number in range(scan.SUFFIXES + 9)]
    fill(tmp_path, *odd, *kinds, "again.k1", "AGAIN.K1")
    report, _ = await run(tmp_path)
    assert len(report.other_suffixes) <= scan.SUFFIXES + 1
    assert report.other_suffixes[".k1"] == 3
    assert report.other_suffixes.total() == report.other == len(odd) + len(kinds) + 2
    assert all(suffix.isprintable() for suffix in report.other_suffixes)


async def test_a_webm_is_taken_as_the_song_that_it_mostly_is_among_music(tmp_path: Path) -> None:
    fill(tmp_path, "song.webm", "SONG.WEBM")
    report, _ = await run(tmp_path)
    assert (report.files, report.other) == (2, 0)


def test_readme_names_the_suffixes() -> None:
    _, _, said = (REPO / "README.md").read_text("utf-8").partition("The suffixes are ")
    assert {f".{name}" for name in said.partition(". ")[0].replace(",", "").split()} == AUDIO_SUFFIXES


async def test_a_file_given_by_name_is_always_taken(tmp_path: Path) -> None:
    fill(tmp_path, "film.mkv")
    report, parts = await run(tmp_path / "film.mkv")
    assert (report.files, found(parts)) == (1, [os.fsencode(tmp_path / "film.mkv")])


async def test_a_root_that_is_not_there_or_empty_never_looks_like_a_finished_scan(tmp_path: Path) -> None:
    (tmp_path / "mountpoint").mkdir()
    report, _ = await run(tmp_path / "mountpoint")
    assert (report.outcome, report.reason) == ("skipped", "empty-folder")
    with pytest.raises(RecordNotFoundError):
        await run(tmp_path / "gone")
    with pytest.raises(OSError, match="mounted"):
        await run(tmp_path / "mountpoint" / "music")


class Denied:
    """os.scandir and os.open as they behave for a user without rights: tests often run as root, who has them all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
        scandir, opened = os.scandir, os.open

        def refuse(path: object) -> None:
            if isinstance(path, str | bytes) and Path(os.fsdecode(path)).name in names:
                raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "scandir", lambda path: (refuse(path), scandir(path))[1])
        monkeypatch.setattr(os, "open", lambda path, *a, **k: (refuse(path), opened(path, *a, **k))[1])


async def test_what_may_not_be_read_is_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a.mp3", "locked/b.mp3", "mine.mp3", "z.mp3")
    Denied(monkeypatch, {"locked", "mine.mp3"})
    report, parts = await run(tmp_path)
    assert (report.outcome, report.reason, report.files, report.error_count) == ("partial", "errors", 2, 2)
    assert [(decode_path(e.path).name, e.reason) for e in report.errors] == [
        ("locked", "permission-denied"),
        ("mine.mp3", "permission-denied"),
    ]
    assert sum(len(part.errors) for part in parts) == 2


async def test_a_root_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "root", "a.mp3")
    Denied(monkeypatch, {"root"})
    with pytest.raises(PermissionError):
        await run(tmp_path / "root")


async def test_files_that_vanish_or_change_under_the_scan_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "a.mp3", "b.mp3", "c.mp3", "d.mp3", "e.mp3")
    digest = hashlib.file_digest

    def meanwhile(file, name):  # type: ignore[no-untyped-def]
        if not (tmp_path / "d.mp3").is_symlink():
            (tmp_path / "b.mp3").unlink()
            (tmp_path / "d.mp3").unlink()
            (tmp_path / "d.mp3").symlink_to(tmp_path / "c.mp3")
            (tmp_path / "e.mp3").unlink()
            os.mkfifo(tmp_path / "e.mp3")
            with (tmp_path / "a.mp3").open("ab") as more:
                more.write(b"still being written")
        return digest(file, name)

    monkeypatch.setattr(listing.hashlib, "file_digest", meanwhile)
    report, _ = await run(tmp_path)
    assert report.files == 1
    reasons = [error.reason for error in report.errors]
    assert reasons[:2] == ["changing", "vanished"]
    assert "symbolic links" in reasons[2]
    assert len(reasons) == 4, "a pipe that took a file's place was not waited for"


async def test_a_report_lists_100_errors_and_counts_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{n:03}.mp3" for n in range(150)]
    fill(tmp_path, *names)
    Denied(monkeypatch, set(names))
    report, parts = await run(tmp_path)
    assert (report.files, report.error_count, len(report.errors)) == (0, 150, 100)
    assert report.outcome == "partial"
    assert sum(len(part.errors) for part in parts) == 150


async def test_a_second_scan_reads_what_is_new_or_changed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    root, memory = tmp_path / "root", Memory()
    fill(root, *AWKWARD, "kept/a.mp3", "kept/b.mp3", "gone.mp3", "moved.mp3")
    first, _ = await run(root, memory=memory)
    assert first.read == first.files == len(AWKWARD) + 4
    fill(root, "new.mp3")
    before = (root / "kept" / "b.mp3").stat()
    (root / "kept" / "b.mp3").write_bytes(b"KEPT/B.MP3")
    os.utime(root / "kept" / "b.mp3", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "gone.mp3").unlink()
    (root / "moved.mp3").rename(root / "kept" / "there.mp3")
    read = reads(monkeypatch)
    second, again = await run(root, memory=memory)
    assert sorted(read) == ["b.mp3", "new.mp3", "there.mp3"], "b has its old size and modification time"
    assert (second.outcome, second.files, second.read) == ("done", len(AWKWARD) + 4, 3)
    hashes = {file.path: file.sha256 for part in again for file in part.files}
    assert hashes == {
        encode_path(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()
    }
    assert await run(root, memory=memory) == (second.model_copy(update={"read": 0, "bytes": 0}), again_known(again))
    reread, _ = await run(root, memory=memory, reread=True)
    assert reread.read == reread.files


def again_known(parts: list[ScanPart]) -> list[ScanPart]:
    """The same files in one part, by path: a scan that reads nothing keeps the order of the walk."""
    files = [file for part in parts for file in part.files]
    return [ScanPart(files=sorted(files, key=lambda file: os.fsencode(decode_path(file.path)).split(b"/")))]


async def test_a_file_that_changed_just_before_it_was_read_is_read_again(tmp_path: Path) -> None:
    """Its clock may be too coarse to tell one more change that follows at once."""
    memory = Memory()
    fill(tmp_path, "fresh.mp3")
    assert (await run(tmp_path, memory=memory))[1][0].files[0].ctime_ns == 0
    assert (await run(tmp_path, memory=memory))[0].read == 1


async def test_a_scan_that_is_killed_goes_on_without_reading_what_it_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    fill(tmp_path, *[f"d{n % 7}/{n:03}.mp3" for n in range(100)])
    monkeypatch.setattr(scan, "CHUNK_FILES", 10)
    memory, payload = Memory(), ScanPayload(version="1", root=encode_path(tmp_path))

    class Killed(InlineContext):
        async def report(self, part: BaseModel) -> None:
            if len(self.parts) == 6:
                raise ConnectionError
            await super().report(part)

    first = Killed(answers={"known-files": memory.answer})
    with pytest.raises(ConnectionError):
        await scan_directory(first, payload)
    memory.keep([part for part in first.parts if isinstance(part, ScanPart)])
    report, _ = await run(tmp_path, memory=memory)
    assert (report.files, report.read) == (100, 40)


async def test_where_nobody_knows_anything_all_is_read_and_a_hub_that_is_away_is_asked_again(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp3")
    assert (await run(tmp_path))[0].read == 1

    def away(question: Mapping[str, Any]) -> dict[str, Any]:
        raise NotAnswered("the hub does not answer")

    with pytest.raises(NotAnswered):
        await scan_directory(
            InlineContext(answers={"known-files": away}), ScanPayload(version="1", root=encode_path(tmp_path))
        )


async def test_only_what_is_named_is_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root, "a/1.mp3", "a/b/2.mp3", "a/b/3.mp3", "a/b2/4.mp3", "c.mp3", "d.mp3", b"\xff.mp3")
    fill(tmp_path, "outside/secret.mp3")
    (root / "out").symlink_to(tmp_path / "outside")
    odd = root / os.fsdecode(b"\xff.mp3")
    report, parts = await run(root, root / "c.mp3", root / "a" / "b", root / "gone", root / "a" / "b" / "2.mp3", odd)
    assert found(parts) == [
        os.fsencode(root) + name for name in (b"/a/b/2.mp3", b"/a/b/3.mp3", b"/c.mp3", b"/\xff.mp3")
    ]
    assert (report.outcome, report.files) == ("done", 4)
    report, parts = await run(root, root / "out" / "secret.mp3", root / "c.mp3" / "x.mp3")
    assert (report.outcome, report.files, report.links) == ("done", 0, 1), "a link on the way leads out of the root"
    shutil.rmtree(root)
    root.mkdir()
    report, _ = await run(root, root / "c.mp3")
    assert (report.outcome, report.reason) == ("skipped", "empty-folder")


@pytest.mark.parametrize("path", ["/elsewhere/a.mp3", "/music/../a.mp3", "a.mp3"])
def test_a_path_that_is_not_below_the_root_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="below the root"):
        ScanPayload(version="1", root="/music", paths=[path])


@given(
    names=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), min_size=1, max_size=12),
    wanted=st.lists(st.lists(st.sampled_from("abc"), max_size=3), min_size=1, max_size=4),
    size=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_a_walk_within_some_places_is_the_whole_walk_without_the_others(
    tmp_path_factory: pytest.TempPathFactory, names: list[list[str]], wanted: list[list[str]], size: int
) -> None:
    root = tmp_path_factory.mktemp("walk")
    for steps in names:
        (root.joinpath(*steps)).mkdir(parents=True, exist_ok=True)
        (root.joinpath(*steps) / "x.mp3").touch()
    places = [tuple(map(os.fsencode, place)) for place in wanted]
    top = os.fsencode(root)
    whole = [entry for entry in walk_after(top) if any(entry.cursor[: len(place)] == place for place in places)]
    assert list(walk_within(top, places)) == whole
    for last in whole[::size]:
        assert list(walk_within(top, places, last.cursor)) == whole[whole.index(last) + 1 :]


async def test_a_root_that_is_taken_away_meanwhile_is_no_finished_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    fill(root, "a.mp3", "b.mp3", "c.mp3")
    fill(tmp_path, "other/a.mp3")
    monkeypatch.setattr(list_files, "__defaults__", ((), (), (), 1, 60.0))

    class Unmounted(InlineContext):
        async def report(self, part: BaseModel) -> None:
            await super().report(part)
            if len(self.parts) == 1:
                root.rename(tmp_path / "away")
                (tmp_path / "other").rename(root)

    report = await scan_directory(Unmounted(), ScanPayload(version="1", root=encode_path(root)))
    assert (report.outcome, report.reason) == ("partial", "root-vanished")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_what_is_unmounted_below_the_root_is_an_error_and_no_empty_folder(tmp_path: Path) -> None:
    root, inner = tmp_path / "root", tmp_path / "root" / "nas"
    fill(root, "a.mp3")
    inner.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", inner], check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        fill(inner, "b.mp3")
        report, _ = await run(root)
        assert (report.outcome, report.files, report.mounts) == ("done", 2, [encode_path(inner)])
    finally:
        subprocess.run(["umount", inner], check=True)
    for only in ([], [inner / "b.mp3"]):
        payload = ScanPayload(
            version="2", root=encode_path(root), mounts=report.mounts, paths=[encode_path(path) for path in only]
        )
        again = await scan_directory(InlineContext(), payload)
        assert (again.outcome, again.reason, again.mounts) == ("partial", "errors", report.mounts)
        assert [(error.path, error.reason) for error in again.errors] == [(encode_path(inner), "not-mounted")]
    inner.rmdir()
    last = await scan_directory(InlineContext(), payload)
    assert (last.outcome, last.mounts) == ("done", []), "its mount point was taken away as well"
