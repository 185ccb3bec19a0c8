"""scan_directory: which audio files there are below a folder, with their content hashes.

Each chunk is one call of a child process and one `ctx.report(ScanPart)`; the next goes on after the last one's
cursor, so memory is flat and the event loop free.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from pathlib import Path

from pydantic import BaseModel, Field

from pipelines.context import Policy, TaskContext, task
from pipelines.music.ffmpeg import stat_of
from pipelines.music.magic import AUDIO_SUFFIXES, HEAD_BYTES, looks_like_audio
from pipelines.music.walk import Cursor, Entry, reason_of, walk_after
from pipelines.payload import Payload, TaskResult, decode_path, encode_path

CHUNK_FILES = 500
CHUNK_BYTES = 2 << 30
CHUNK_SECONDS = 20.0
"""A chunk ends at whichever comes first: files found, bytes hashed, seconds spent (progress is seen on big files)."""

LISTED_ERRORS = 100
"""Errors that a report lists; all are counted, and each part lists its own in full."""

CHUNK_LIMIT = 1_800.0
"""Seconds for one chunk: the largest file there may be, on the slowest disk; a hang costs no more than this."""

SCAN_SECONDS = 3 * 86_400.0
"""20 TB at 80 MB/s."""


class ScanPayload(Payload):
    """Scan one folder or take one file. `version` names the request, such as the scan's id."""

    root: str
    """Percent-encoded absolute path (`encode_path`)."""


class ScannedFile(BaseModel):
    """One audio file: percent-encoded `path`, `size` in bytes, `mtime_ns` since 1970, `sha256` of its bytes."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


class ScanError(BaseModel):
    """What could not be read: percent-encoded `path` and `reason` (`permission-denied`, `vanished`, ...)."""

    path: str
    reason: str


class ScanPart(BaseModel):
    """At most 500 files of one scan, in the order of the walk."""

    files: list[ScannedFile] = Field(default_factory=list)
    errors: list[ScanError] = Field(default_factory=list)


class ScanReport(TaskResult):
    """The sum of all parts. `partial` (reason `errors`) where something could not be read; `skipped` (reason
    `empty-folder`) where the folder holds nothing at all, as an unmounted archive does."""

    files: int = 0
    bytes: int = 0
    other: int = Field(default=0, description="files that are no audio, AppleDouble companions included")
    links: int = Field(default=0, description="symbolic links, not followed")
    special: int = Field(default=0, description="pipes, sockets and devices")
    error_count: int = 0
    errors: list[ScanError] = Field(default_factory=list, description="the first 100")


class Chunk(BaseModel):
    """What one child call found; `cursor` is None at the end of the walk."""

    part: ScanPart = Field(default_factory=ScanPart)
    cursor: Cursor | None = None
    bytes: int = 0
    other: int = 0
    links: int = 0
    special: int = 0


@task(Policy(timeout=lambda payload: SCAN_SECONDS))
async def scan_directory(ctx: TaskContext, payload: ScanPayload) -> ScanReport:
    """Every audio file below `payload.root`, reported in parts.

    Raises RecordNotFoundError (the root is gone, what it stood in is there) and OSError (it cannot be read, or is
    not mounted).
    """
    root = decode_path(payload.root)
    report = ScanReport()
    cursor: Cursor | None = ()
    while cursor is not None:
        await ctx.check()
        async with asyncio.timeout(CHUNK_LIMIT):
            chunk = await ctx.child(scan_chunk, root, cursor)
        if chunk.part.files or chunk.part.errors:
            await ctx.report(chunk.part)
        add(report, chunk)
        cursor = chunk.cursor
        await ctx.progress(1.0 if cursor is None else 0.0, f"{report.files} files, {report.bytes >> 20} MB")
    if report.error_count:
        report.outcome, report.reason = "partial", "errors"
    elif not (report.files or report.other or report.links or report.special):
        report.outcome, report.reason = "skipped", "empty-folder"
    return report


def add(report: ScanReport, chunk: Chunk) -> None:
    """Count one chunk into the report."""
    report.files += len(chunk.part.files)
    report.bytes += chunk.bytes
    report.other += chunk.other
    report.links += chunk.links
    report.special += chunk.special
    report.error_count += len(chunk.part.errors)
    report.errors += chunk.part.errors[: LISTED_ERRORS - len(report.errors)]


def scan_chunk(
    root: Path,
    cursor: Cursor = (),
    max_files: int = CHUNK_FILES,
    max_bytes: int = CHUNK_BYTES,
    max_seconds: float = CHUNK_SECONDS,
) -> Chunk:
    """The files after `cursor`, until one of the bounds is met. A `root` that is a file is taken, whatever its name."""
    found = stat_of(root)
    chunk = Chunk()
    if not stat.S_ISDIR(found.st_mode):
        if stat.S_ISREG(found.st_mode):
            _take(chunk, os.fsencode(root))
        else:
            chunk.special += 1
        return chunk
    end = time.monotonic() + max_seconds
    for entry in walk_after(os.fsencode(root), cursor):
        _visit(chunk, entry)
        seen = len(chunk.part.files) + len(chunk.part.errors)
        if seen >= max_files or chunk.bytes >= max_bytes or time.monotonic() > end:
            chunk.cursor = entry.cursor
            break
    return chunk


def _visit(chunk: Chunk, entry: Entry) -> None:
    if entry.kind == "file":
        try:
            wanted = is_audio(entry.path)
        except OSError as error:
            _fail(chunk, entry.path, reason_of(error))
            return
        if wanted:
            _take(chunk, entry.path)
        else:
            chunk.other += 1
    elif entry.kind == "link":
        chunk.links += 1
    elif entry.kind == "special":
        chunk.special += 1
    else:
        _fail(chunk, entry.path, entry.error)


def is_audio(path: bytes) -> bool:
    """By suffix; by its first bytes where the name has none. `._x.mp3` is a Mac's companion file, not a sound."""
    name = os.path.basename(path)  # noqa: PTH119 - bytes
    if name.startswith(b"._"):
        return False
    suffix = os.path.splitext(name)[1]  # noqa: PTH122 - bytes
    if suffix:
        return suffix.lower().decode("latin-1") in AUDIO_SUFFIXES
    with Path(os.fsdecode(path)).open("rb") as file:
        return looks_like_audio(file.read(HEAD_BYTES))


def _take(chunk: Chunk, path: bytes) -> None:
    try:
        with Path(os.fsdecode(path)).open("rb") as file:
            before = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
    except OSError as error:
        _fail(chunk, path, reason_of(error))
        return
    chunk.bytes += after.st_size
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        _fail(chunk, path, "changing")
        return
    chunk.part.files.append(
        ScannedFile(path=encode_path(path), size=after.st_size, mtime_ns=after.st_mtime_ns, sha256=digest)
    )


def _fail(chunk: Chunk, path: bytes, reason: str) -> None:
    chunk.part.errors.append(ScanError(path=encode_path(path), reason=reason))
