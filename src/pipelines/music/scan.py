"""scan_directory: which audio files there are below a folder, with their content hashes.

A child process lists some thousand files; whoever runs the scan is asked which of them it knows as they are (same path,
size, modification and change time); another child call reads the rest. Each part is one `ctx.report(ScanPart)`, and
the next listing goes on after the last one's cursor: memory is flat, the event loop free, and what was reported once
is not read again, whether the scan was killed meanwhile or is the next one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import NotGranted
from pipelines.music.listing import Listed, Read, ScanError, ScannedFile, list_files, read_files
from pipelines.music.walk import Cursor
from pipelines.payload import Payload, TaskResult, decode_path, display_path, encode_path

CHUNK_FILES = 500
"""Files of one part, and of one question."""

LISTED_ERRORS = 100
"""Errors that a report lists; all are counted, and each part lists its own in full."""

SUFFIXES = 50
"""Suffixes of other files that a report names."""

CHUNK_LIMIT = 1_800.0
"""Seconds for one child call: the largest file there may be, on the slowest disk; a hang costs no more than this."""

SCAN_SECONDS = 3 * 86_400.0
"""20 TB at 80 MB/s."""


class ScanPayload(Payload):
    """Scan one folder or take one file. `version` names the request, such as the scan's id."""

    root: str
    """Percent-encoded absolute path (`encode_path`)."""
    paths: list[str] = Field(default_factory=list)
    """Percent-encoded files and folders below `root`: only these are looked at. None: everything."""
    mounts: list[str] = Field(default_factory=list)
    """Percent-encoded folders below `root` where something was mounted at an earlier scan: if nothing is now, they are
    errors (`not-mounted`), and what was in them is not gone."""
    reread: bool = False
    """Read every file, also those that are known as they are: a disk may rot without a new modification time."""

    @model_validator(mode="after")
    def _paths_are_below_the_root(self) -> Self:
        for path in map(decode_path, self.paths + self.mounts):
            if not path.is_relative_to(decode_path(self.root)) or ".." in path.parts:
                raise ValueError(f"{display_path(encode_path(path))} is not below the root")
        return self


class ScanPart(BaseModel):
    """At most 500 files of one scan, nearly in the order of the walk."""

    files: list[ScannedFile] = Field(default_factory=list)
    errors: list[ScanError] = Field(default_factory=list)


class ScanReport(TaskResult):
    """The sum of all parts. `partial`, reason `errors`: something could not be read; reason `root-vanished`: the root
    was taken away or another one meanwhile, as by an unmount. `skipped` (reason `empty-folder`) where the root holds
    nothing at all, as an unmounted archive does."""

    files: int = 0
    read: int = Field(default=0, description="files whose content was read; the others were known as they are")
    bytes: int = Field(default=0, description="bytes that were read")
    other: int = Field(default=0, description="files that are no audio, AppleDouble companions included")
    other_suffixes: Counter[str] = Field(default_factory=Counter, description="of these, by suffix; empty: any other")
    links: int = Field(default=0, description="symbolic links, not followed")
    special: int = Field(default=0, description="pipes, sockets and devices")
    error_count: int = 0
    errors: list[ScanError] = Field(default_factory=list, description="the first 100")
    mounts: list[str] = Field(default_factory=list, description="mount points below the root, mounted now or not")


class Known(BaseModel):
    """The answer to `known-files`: path -> sha256 of those files that are known just as they were listed."""

    known: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]


@task(Policy(timeout=lambda payload: SCAN_SECONDS))
async def scan_directory(ctx: TaskContext, payload: ScanPayload) -> ScanReport:
    """Every audio file below `payload.root` (or `payload.paths`), reported in parts.

    Asks `known-files` with {"files": [[path, size, mtime_ns, ctime_ns], ...]}; where nobody answers it reads all.
    Raises RecordNotFoundError (the root is gone, what it stood in is there), OSError (it cannot be read, or is not
    mounted) and NotAnswered (ask again later).
    """
    root = decode_path(payload.root)
    report = ScanReport()
    cursor: Cursor | None = ()
    identity = None
    report.mounts = payload.mounts
    only = [decode_path(path) for path in payload.paths]
    while cursor is not None:
        await ctx.check()
        async with asyncio.timeout(CHUNK_LIMIT):
            listing = await ctx.child(list_files, root, only, cursor, [decode_path(mount) for mount in report.mounts])
        identity = listing.identity if not cursor else identity
        if listing.identity is None or listing.identity != identity:
            return _ended_early(report, listing.nothing and not report.files)
        report.other += listing.other
        _count(report.other_suffixes, listing.other_suffixes)
        report.links += listing.links
        report.special += listing.special
        if listing.errors:
            await _tell(ctx, report, ScanPart(errors=listing.errors))
        for start in range(0, len(listing.files), CHUNK_FILES):
            lot = listing.files[start : start + CHUNK_FILES]
            await _take(ctx, report, lot, {} if payload.reread else await _known(ctx, lot), follow=listing.follow)
        cursor = listing.cursor
        report.mounts = sorted({*listing.mounts, *listing.unmounted})
        await ctx.progress(1.0 if cursor is None else 0.0, _said(report))
    await _tell(
        ctx, report, ScanPart(errors=[ScanError(path=path, reason="not-mounted") for path in listing.unmounted])
    )
    if report.error_count:
        report.outcome, report.reason = "partial", "errors"
    return report


def _count(counted: Counter[str], more: Counter[str]) -> None:
    """Add `more`, of at most `SUFFIXES` kinds; the rest is any other."""
    for suffix, count in more.most_common():
        counted[suffix if suffix in counted or len(counted) < SUFFIXES else ""] += count


def _ended_early(report: ScanReport, empty: bool) -> ScanReport:
    """What a scan is worth whose root held nothing, or went away meanwhile: it proves nothing to be gone."""
    if empty:
        report.outcome, report.reason = "skipped", "empty-folder"
    else:
        report.outcome, report.reason = "partial", "root-vanished"
    return report


async def _take(
    ctx: TaskContext, report: ScanReport, files: Sequence[Listed], known: Mapping[str, str], *, follow: bool
) -> None:
    """Report one lot: what is known at once, the rest as it is read."""
    part = ScanPart(files=[file.with_hash(known[file.path]) for file in files if file.path in known])
    rest = [file for file in files if file.path not in known]
    while rest:
        await ctx.check()
        async with asyncio.timeout(CHUNK_LIMIT):
            read: Read = await ctx.child(read_files, rest, follow)
        rest = rest[read.taken :]
        part = ScanPart(files=part.files + read.files, errors=read.errors)
        report.read += len(read.files)
        report.bytes += read.bytes
        await _tell(ctx, report, part)
        part = ScanPart()
    await _tell(ctx, report, part)


async def _known(ctx: TaskContext, files: Sequence[Listed]) -> dict[str, str]:
    question = [[file.path, file.size, file.mtime_ns, file.ctime_ns] for file in files]
    try:
        return Known.model_validate(await ctx.ask("known-files", {"files": question})).known
    except NotGranted:
        return {}


async def _tell(ctx: TaskContext, report: ScanReport, part: ScanPart) -> None:
    if not (part.files or part.errors):
        return
    await ctx.report(part)
    report.files += len(part.files)
    report.error_count += len(part.errors)
    report.errors += part.errors[: LISTED_ERRORS - len(report.errors)]
    await ctx.progress(0.0, _said(report))


def _said(report: ScanReport) -> str:
    return f"{report.files} files, {report.read} of them read ({report.bytes >> 20} MB)"
