"""Scans: what was asked for, the files that their parts report, and what a finished one proves to be gone."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Collection
from typing import Annotated

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.dialects.sqlite import insert

from agent.hub import derived
from agent.hub.file_tasks import SCAN
from agent.hub.problems import first_problem
from agent.hub.schema import files, owed, scans
from agent.phoenix.outbox import Entry
from pipelines.music.scan import ScanReport
from pipelines.payload import decode_path, encode_path

OPEN = "open"


class ScanRefused(Exception):
    """A scan request or report that cannot be taken; the message says why."""


class SeenFile(BaseModel):
    """One file as a scan reports it."""

    model_config = ConfigDict(extra="ignore")

    path: str
    """Percent-encoded, absolute."""
    size: Annotated[int, Field(ge=0, lt=2**63)]
    mtime_ns: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")

    files: list[SeenFile]


def clean_root(root: str) -> str:
    """The one spelling of a percent-encoded absolute folder. Raises ScanRefused."""
    try:
        path = os.fspath(decode_path(root))
    except ValueError:
        raise ScanRefused(f"{root!r} is not a percent-encoded path") from None
    if not path.startswith("/") or "\0" in path:
        raise ScanRefused(f"{root!r} is not an absolute path; give the percent-encoded absolute path of a folder")
    return encode_path("/" + os.path.normpath(path).lstrip("/"))


def request(connection: sa.Connection, agent_id: str, root: str) -> str:
    """Ask for a scan of `root`; returns its id. One that nothing has come back from yet serves again."""
    root = clean_root(root)
    waiting = connection.scalar(
        sa.select(scans.c.id).where(
            scans.c.agent_id == agent_id, scans.c.root == root, scans.c.state == OPEN, scans.c.token.is_(None)
        )
    )
    if waiting is not None:
        return str(waiting)
    scan_id = secrets.token_hex(8)
    connection.execute(
        sa.insert(scans).values(id=scan_id, agent_id=agent_id, root=root, state=OPEN, requested_at=time.time())
    )
    connection.execute(sa.insert(owed).values(service=SCAN, record_id=scan_id, version=scan_id, agent_id=agent_id))
    return scan_id


def record_part(connection: sa.Connection, agent_id: str, entry: Entry) -> set[int]:
    """Take one part: {"files": [{"path", "size", "mtime_ns", "sha256"}, ...]}. Returns the files that changed."""
    scan = _own_scan(connection, agent_id, entry)
    if scan.state != OPEN:
        return set()  # a second delivery, after the end
    seen = _seen_files(entry, str(scan.root))
    connection.execute(sa.update(scans).where(scans.c.id == scan.id).values(token=entry.token))
    return _upsert_files(connection, agent_id, str(scan.id), seen)


def close(connection: sa.Connection, agent_id: str, entry: Entry) -> set[int]:
    """Take the closing result of a scan. Returns the files that it proves to be gone."""
    scan = _own_scan(connection, agent_id, entry)
    connection.execute(sa.delete(owed).where(owed.c.service == SCAN, owed.c.record_id == scan.id))
    if scan.state != OPEN:
        return set()
    connection.execute(
        sa.update(scans)
        .where(scans.c.id == scan.id)
        .values(
            state=entry.outcome,
            reason=entry.reason,
            token=entry.token,
            finished_at=time.time(),
            report=json.dumps(entry.result),
        )
    )
    unread = _unread(entry)
    gone = set() if unread is None else _mark_gone(connection, agent_id, scan, unread)
    connection.execute(sa.update(scans).where(scans.c.id == scan.id).values(gone=len(gone)))
    return gone


def report_of(document: object) -> ScanReport | None:
    """The closing result of a scan; None where an agent sent something else."""
    try:
        return ScanReport.model_validate(document)
    except ValidationError:
        return None


def _unread(entry: Entry) -> list[str] | None:
    """The paths at or below which a scan may have missed files; None where it may have missed them anywhere.

    A scan that found nothing at all may have looked at an archive that was not mounted.
    """
    report = report_of(entry.result)
    if report is None or not (report.files or report.other or report.links or report.special):
        return None
    if entry.outcome == "done" and not report.error_count and not report.errors:
        return []
    tells_all = bool(report.errors) and report.error_count == len(report.errors)
    if entry.outcome != "partial" or entry.reason != "errors" or not tells_all:
        return None
    try:
        return [clean_root(error.path) for error in report.errors]
    except ScanRefused:
        return None


def _own_scan(connection: sa.Connection, agent_id: str, entry: Entry) -> sa.Row[tuple[object, ...]]:
    """The scan that the entry is about. Raises ScanRefused, also where a later owner has reported already."""
    scan = connection.execute(sa.select(scans).where(scans.c.id == entry.record_id)).one_or_none()
    if scan is None or scan.agent_id != agent_id:
        raise ScanRefused(f"this agent has no scan {entry.record_id}; ask for one with POST /api/scans")
    if scan.token is not None and scan.token > entry.token:
        raise ScanRefused("stale")
    return scan


def _seen_files(entry: Entry, root: str) -> list[SeenFile]:
    try:
        seen = _Part.model_validate(entry.result).files
    except ValidationError as error:
        raise ScanRefused(first_problem(error)) from None
    below = _below(root)
    for file in seen:
        if not _lies_in(file.path, below) or not file.path.isascii() or "\0" in file.path:
            raise ScanRefused(f"{file.path!r} is not a percent-encoded path under the scan's root {root}")
    return seen


def _below(root: str) -> str:
    return root if root.endswith("/") else f"{root}/"


def _lies_in(path: str, below: str | tuple[str, ...]) -> bool:
    """Whether a path is a folder whose `_below` is given, or lies in it."""
    return f"{path}/".startswith(below)


def _upsert_files(connection: sa.Connection, agent_id: str, scan_id: str, seen: list[SeenFile]) -> set[int]:
    if not seen:
        return set()
    paths = {file.path for file in seen}
    listed = derived.values_of(sorted(paths))
    mine = sa.and_(files.c.agent_id == agent_id, files.c.path.in_(listed))
    known = {row.path: row for row in connection.execute(sa.select(files).where(mine))}
    now = time.time()
    rows = [
        {
            "agent_id": agent_id,
            "path": file.path,
            "sha256": file.sha256,
            "size": file.size,
            "mtime_ns": file.mtime_ns,
            "first_seen": now,
            "seen_at": now,
            "last_scan": scan_id,
            "gone": False,
        }
        for file in seen
    ]
    statement = insert(files)
    updated = ("sha256", "size", "mtime_ns", "seen_at", "last_scan", "gone")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["agent_id", "path"], set_={name: statement.excluded[name] for name in updated}
        ),
        rows,
    )
    changed = {
        file.path
        for file in seen
        if (before := known.get(file.path)) is None or before.gone or before.sha256 != file.sha256
    }
    ids = {row.path: row.id for row in connection.execute(sa.select(files.c.id, files.c.path).where(mine))}
    return {ids[path] for path in changed} | derived.said_to_be_missing(connection, list(ids.values()))


def _mark_gone(
    connection: sa.Connection, agent_id: str, scan: sa.Row[tuple[object, ...]], unread: Collection[str]
) -> set[int]:
    """Note that what the scan did not see is gone, except in `unread`."""
    below = _below(str(scan.root))
    # A range instead of LIKE, so that the unique index answers; "0" is the character after "/".
    unseen = sa.and_(
        files.c.agent_id == agent_id,
        sa.or_(files.c.path == scan.root, sa.and_(files.c.path >= below, files.c.path < f"{below[:-1]}0")),
        files.c.gone.is_(False),
        files.c.last_scan != scan.id,
        files.c.seen_at < scan.requested_at,  # else another, overlapping scan has just seen it
    )
    spared = tuple(map(_below, unread))
    rows = connection.execute(sa.select(files.c.id, files.c.path).where(unseen))
    gone = {row.id for row in rows if not _lies_in(row.path, spared)}
    if gone:
        connection.execute(sa.update(files).where(files.c.id.in_(derived.values_of(sorted(gone)))).values(gone=True))
    return gone
