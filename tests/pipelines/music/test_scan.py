"""Every file is found once, counted, or named with the reason why not."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from pipelines.context import InlineContext
from pipelines.errors import RecordNotFoundError
from pipelines.music import scan
from pipelines.music.scan import ScanPart, ScanPayload, ScanReport, scan_chunk, scan_directory
from pipelines.music.walk import walk_after
from pipelines.payload import decode_path, encode_path

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


def fill(root: Path, *names: bytes | str) -> None:
    for name in names:
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(path))


async def run(root: Path) -> tuple[ScanReport, list[ScanPart]]:
    ctx = InlineContext()
    report = await scan_directory(ctx, ScanPayload(version="1", root=encode_path(root)))
    return report, [part for part in ctx.parts if isinstance(part, ScanPart)]


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
        monkeypatch.setattr(scan_chunk, "__defaults__", ((), size, 1 << 40, 60.0))
        report, parts = await run(tmp_path)
        assert found(parts) == whole
        assert len(set(whole)) == report.files == 103
        assert report.other == 1
        assert max(len(part.files) for part in parts) <= size


def test_a_chunk_ends_by_bytes_and_by_time_too(tmp_path: Path) -> None:
    fill(tmp_path, *[f"{n}.mp3" for n in range(9)])
    assert len(scan_chunk(tmp_path, max_bytes=1).part.files) == 1
    assert len(scan_chunk(tmp_path, max_seconds=-1).part.files) == 1
    assert scan_chunk(tmp_path).cursor is None


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
    assert [decode_path(file.path).name for part in parts for file in part.files] == ["a.mp3", "bare"]


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
    """os.scandir and open as they behave for a user without rights: tests often run as root, who has them all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
        scandir, opened = os.scandir, Path.open

        def refuse(path: object) -> None:
            if Path(os.fsdecode(path)).name in names:  # type: ignore[arg-type]
                raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "scandir", lambda path: (refuse(path), scandir(path))[1])
        monkeypatch.setattr(Path, "open", lambda path, *a, **k: (refuse(path), opened(path, *a, **k))[1])


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
    fill(tmp_path, "a.mp3", "b.mp3", "c.mp3")
    digest = hashlib.file_digest

    def meanwhile(file, name):  # type: ignore[no-untyped-def]
        if file.name.endswith("a.mp3"):
            (tmp_path / "b.mp3").unlink()
            with (tmp_path / "a.mp3").open("ab") as more:
                more.write(b"still being written")
        return digest(file, name)

    monkeypatch.setattr(scan.hashlib, "file_digest", meanwhile)
    report, _ = await run(tmp_path)
    assert report.files == 1
    assert [error.reason for error in report.errors] == ["changing", "vanished"]


async def test_a_report_lists_100_errors_and_counts_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{n:03}.mp3" for n in range(150)]
    fill(tmp_path, *names)
    Denied(monkeypatch, set(names))
    report, parts = await run(tmp_path)
    assert (report.files, report.error_count, len(report.errors)) == (0, 150, 100)
    assert report.outcome == "partial"
    assert sum(len(part.errors) for part in parts) == 150
