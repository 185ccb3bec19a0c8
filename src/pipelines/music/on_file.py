"""Run a function on just the file that was scanned: not on one that changed, and not on one that is gone."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from pipelines.errors import InputChanged, InputRejected, RecordNotFoundError
from pipelines.music.ffmpeg import holds_something, stat_of
from pipelines.payload import FilePayload, decode_path

P = ParamSpec("P")
T = TypeVar("T")


def on_file(payload: FilePayload, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`; its result stands for the file that `payload` describes, or there is none.

    Raises InputChanged (size or modification time are others than scanned, before or after), RecordNotFoundError (the
    file is gone, also with its whole folder, while the scan's root still holds things), and what `function` raises.
    """
    path = decode_path(payload.path)
    try:
        before = stat_of(path)
        touched = bool(payload.mtime_ns) and before.st_mtime_ns != payload.mtime_ns
        if before.st_size != payload.size or (touched and not _holds_what_was_scanned(path, payload.version)):
            raise InputChanged(f"{path} is not as it was scanned")
        try:
            result = function(*args, **kwargs)
        except InputRejected as error:
            _same_as(before, path, error)
            raise
        _same_as(before, path)
        return result
    except OSError as error:
        root = decode_path(payload.root) if payload.root else None
        if error.errno == errno.ENOENT and root is not None and holds_something(root):
            raise RecordNotFoundError(f"{error.filename} is gone with its folder; {root} is there") from error
        raise


def _holds_what_was_scanned(path: Path, version: str) -> bool:
    """Whether a file with another time has the same bytes all the same (it was copied back, or only touched)."""
    expected = version.partition(":")[0]
    if len(expected) != 64:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected


def _same_as(before: os.stat_result, path: Path, cause: Exception | None = None) -> None:
    after = stat_of(path)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise InputChanged(f"{path} changed while it was read") from cause
