"""What transfers have in common: which file may go, how long it may take, what may go wrong on the way."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from pipelines.errors import InputChanged, InputRejected, RecordNotFoundError, TaskError
from pipelines.music.ffmpeg import holds_something, stat_of
from pipelines.payload import FilePayload, decode_path

P = ParamSpec("P")
T = TypeVar("T")

LEAST_RATE = 16 * 1024
"""Bytes a second below which a line is of no use: a slower run ends and goes on later where it was."""

SPARE = 900.0
"""Seconds on top, for both ends to read the file through and for the far side to put it in its place."""

DISK_RATE = 10e6
"""Bytes a second at which a slow disk is read; a transfer reads the file up to three times."""

DISK_STALL = 300.0
"""Seconds in which a disk must answer one call."""


class Unreachable(TaskError, ConnectionError):
    """The other side does not answer, fails, or is overloaded. Retried; it counts against its circuit."""


class Stalled(Unreachable):
    """Nothing moved for longer than the payload's `stall`. Retried; what arrived is not sent again."""


class Refused(TaskError):
    """The other side works and says no: a permission, a missing bucket or folder, a full disk. Retried: an operator
    can mend it, and the message says how."""


class Mismatch(TaskError):
    """What arrived is not what was sent. Retried."""


class Unreadable(TaskError):
    """The file is there and cannot be read. Retried: permissions and disks can be mended."""


async def on_disk(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which waits for a disk, in a thread. Raises Unreadable if the disk hangs, and what it raises."""
    try:
        async with asyncio.timeout(DISK_STALL):
            return await asyncio.to_thread(function, *args, **kwargs)
    except TimeoutError:
        raise Unreadable(f"the disk has not answered for {DISK_STALL:.0f} s; is the archive mounted?") from None


def transfer_seconds(payload: FilePayload) -> float:
    """The most that one run may take: 900 s, three readings at 10 MB/s, and the bytes at 16 KiB/s.

    This is the outer bound only. A line on which nothing moves is given up after `stall` seconds.
    """
    return SPARE + payload.size * (3 / DISK_RATE + 1 / LEAST_RATE)


def sha256_named(payload: FilePayload) -> str:
    """The content's sha256 (hex) with which the version begins; empty if it begins with none."""
    named = payload.version.partition(":")[0]
    return named if len(named) == 64 and not set(named) - set("0123456789abcdef") else ""


async def look(payload: FilePayload, before: os.stat_result | None = None) -> os.stat_result:
    """The stat of the payload's file, which is as it was scanned and, if given, as it was `before`.

    Raises InputChanged (another size, or another file than before), InputRejected (`not-a-file`), RecordNotFoundError
    (it is gone, and its root is there), OSError (its root is not there) and Unreadable.
    """
    path = decode_path(payload.path)
    try:
        found = await on_disk(_stat, path)
    except OSError as error:
        raise await on_disk(explained, error, payload) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputRejected("not-a-file", "a folder, pipe, socket or device; only regular files are sent")
    if found.st_size != payload.size:
        raise InputChanged(f"{path} has {found.st_size} bytes, {payload.size} when it was scanned")
    if before is not None and _identity(found) != _identity(before):
        raise InputChanged(f"{path} changed while it was sent")
    return found


def _stat(path: Path) -> os.stat_result:
    found = stat_of(path)
    if stat.S_ISREG(found.st_mode):
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))  # whether it can be read is known at once
    return found


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def explained(error: OSError, payload: FilePayload) -> Exception:
    """What an error about the payload's file means: gone (only while its root holds things), unreadable, or itself."""
    root = decode_path(payload.root) if payload.root else None
    if isinstance(error, FileNotFoundError):
        if root is not None and holds_something(root):
            return RecordNotFoundError(f"{error.filename} is gone with its folder; {root} is there")
        return error
    reason = error.strerror or type(error).__name__
    return Unreadable(f"{decode_path(payload.path)} cannot be read ({reason}); see its permissions and its disk")


class Rate:
    """Bytes a second since the start. `add` what has moved."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.bytes = 0

    def add(self, count: int) -> None:
        self.bytes += count

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def per_second(self) -> float:
        return self.bytes / max(self.seconds, 1e-3)


def moved(done: int, total: int, rate: float) -> str:
    """`12 of 80 MB, 3.1 MB/s`: how far a transfer is, in few words."""
    return f"{done >> 20} of {total >> 20} MB, {rate / 1e6:.1f} MB/s"
