"""A result stands for the file that was scanned, or there is none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipelines.context import InlineContext
from pipelines.errors import InputChanged, InputRejected, RecordNotFoundError
from pipelines.music.analyze import AnalyzePayload, process_file
from pipelines.music.fingerprint import FingerprintPayload, fingerprint_file
from pipelines.music.metadata import MetadataPayload, extract_file_metadata
from pipelines.music.on_file import on_file
from pipelines.payload import FilePayload, encode_path

TASKS = {process_file: AnalyzePayload, fingerprint_file: FingerprintPayload, extract_file_metadata: MetadataPayload}
Task = Callable[..., Awaitable[object]]


def scanned(path: Path, model: type[FilePayload] = FilePayload, root: Path | None = None) -> FilePayload:
    found = path.stat()
    return model(
        version="v",
        path=encode_path(path),
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        root=encode_path(root) if root else "",
    )


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    """Another content of the same size, as an edited tag is."""
    path.write_bytes(bytes(reversed(path.read_bytes())))


def touch_back(path: Path) -> None:
    """An older file put in its place."""
    os.utime(path, ns=(1, 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a.mp3").write_bytes(b"0123456789")
    return tmp_path / "a.mp3"


@pytest.mark.parametrize("run", TASKS)
@pytest.mark.parametrize("change", [grow, rewrite, touch_back])
async def test_no_task_takes_a_file_that_changed_since_the_scan(
    path: Path, run: Task, change: Callable[[Path], None]
) -> None:
    payload = scanned(path, TASKS[run])
    change(path)
    with pytest.raises(InputChanged, match="not as it was scanned"):
        await run(InlineContext(), payload)


@pytest.mark.parametrize("change", [grow, rewrite, touch_back])
def test_a_file_that_changes_while_it_is_read_gives_no_result(path: Path, change: Callable[[Path], None]) -> None:
    with pytest.raises(InputChanged, match="changed while it was read"):
        on_file(scanned(path), change, path)


def test_a_file_that_was_only_touched_is_the_one_that_was_scanned(path: Path) -> None:
    payload = scanned(path).model_copy(update={"version": f"{hashlib.sha256(path.read_bytes()).hexdigest()}:1"})
    touch_back(path)
    assert on_file(payload, path.read_bytes) == b"0123456789"
    rewrite(path)
    with pytest.raises(InputChanged):
        on_file(payload, path.read_bytes)


def test_a_file_that_looks_corrupt_because_it_changed_is_not_rejected(path: Path) -> None:
    def read_half_of_it(file: Path) -> None:
        grow(file)
        raise InputRejected("corrupt")

    with pytest.raises(InputChanged):
        on_file(scanned(path), read_half_of_it, path)
    with pytest.raises(InputRejected):
        on_file(scanned(path), _reject)


def _reject() -> None:
    raise InputRejected("corrupt")


@pytest.mark.parametrize("run", TASKS)
async def test_a_file_that_went_with_its_folder_is_gone_while_the_scans_root_holds_others(
    tmp_path: Path, run: Task
) -> None:
    root = tmp_path / "music"
    root.mkdir()
    file = TASKS[run](version="v", path=encode_path(root / "album" / "a.mp3"), size=1, root=encode_path(root))
    with pytest.raises(OSError, match="mounted"):
        await run(InlineContext(), file)
    (root / "another.mp3").touch()
    with pytest.raises(RecordNotFoundError, match="is gone with its folder"):
        await run(InlineContext(), file)
