"""Scans: what was asked for, what is known of their files, what their parts report, and what one proves to be gone."""

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

MAX_PATHS = 1_000
"""Paths of one request."""

Asked = tuple[str, int, int, int]
"""Percent-encoded path, size in bytes, modification and change time in nanoseconds."""


class ScanRefused(Exception):
    """A scan request or report that cannot be taken; the message says why."""


class SeenFile(BaseModel):
    """One file as a scan reports it."""

    model_config = ConfigDict(extra="ignore")

    path: str
    """Percent-encoded, absolute."""
    size: Annotated[int, Field(ge=0, lt=2**63)]
    mtime_ns: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    ctime_ns: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """0: not known, or too young to prove anything."""
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


class Wish(BaseModel):
    """What shall be scanned."""

    model_config = ConfigDict(extra="forbid")

    root: str
    """Percent-encoded, absolute."""
    reread: bool = False
    """Read also what is known as it is."""
    fresh: bool = False
    """Something has changed by now: a scan that may have begun before is not good enough."""
    paths: list[str] = Field(default_factory=list, max_length=MAX_PATHS)
    """Files and folders below `root`: only these. None: everything."""
    absent: list[str] = Field(default_factory=list, max_length=MAX_PATHS)
    """The same, of which nothing was there just now: looked at only where the catalogue has something."""


def request(connection: sa.Connection, agent_id: str, wish: Wish) -> str | None:
    """Ask for a scan; its id, None if there is nothing to look at. A scan of a whole root that nothing has come back
    from yet serves again. Raises ScanRefused."""
    root = clean_root(wish.root)
    values: dict[str, object] = {"agent_id": agent_id, "root": root, "reread": wish.reread}
    values["mounts"] = json.dumps(_mounts(connection, agent_id, root))
    if wish.paths or wish.absent:
        below = _below(root)
        cleaned = {clean_root(path) for path in wish.paths}
        cleaned |= {path for path in map(clean_root, wish.absent) if _has_something_at(connection, agent_id, path)}
        if not all(_lies_in(path, below) for path in cleaned):
            raise ScanRefused(f"paths must lie below the root {root}")
        if not cleaned:
            return None
        values["paths"] = json.dumps(sorted(cleaned))
    elif not wish.fresh and (waiting := _waiting(connection, agent_id, root, wish.reread)) is not None:
        return waiting
    scan_id = secrets.token_hex(8)
    connection.execute(sa.insert(scans).values(id=scan_id, state=OPEN, requested_at=time.time(), **values))
    connection.execute(sa.insert(owed).values(service=SCAN, record_id=scan_id, version=scan_id, agent_id=agent_id))
    return scan_id


def _waiting(connection: sa.Connection, agent_id: str, root: str, reread: bool) -> str | None:
    return connection.scalar(
        sa.select(scans.c.id).where(
            scans.c.agent_id == agent_id,
            scans.c.root == root,
            scans.c.state == OPEN,
            scans.c.token.is_(None),
            scans.c.paths.is_(None),
            sa.true() if not reread else scans.c.reread,
        )
    )


def _mounts(connection: sa.Connection, agent_id: str, root: str) -> list[str]:
    """Where the last scan of the root found something mounted below it."""
    last = connection.scalar(
        sa.select(scans.c.report)
        .where(scans.c.agent_id == agent_id, scans.c.root == root, scans.c.state.in_(("done", "partial")))
        .order_by(scans.c.requested_at.desc())
        .limit(1)
    )
    report = report_of(json.loads(last or "{}"))
    return [] if report is None else report.mounts


def _has_something_at(connection: sa.Connection, agent_id: str, path: str) -> bool:
    return connection.scalar(sa.select(files.c.id).where(*_present(agent_id, path)).limit(1)) is not None


def unchanged(connection: sa.Connection, agent_id: str, asked: Collection[Asked]) -> dict[str, str]:
    """path -> sha256 of those files that are known just as they were found now: path, size, both times."""
    columns = (files.c.path, files.c.size, files.c.mtime_ns, files.c.ctime_ns)
    listed = derived.values_of(sorted({file[0] for file in asked}))
    mine = (files.c.agent_id == agent_id, files.c.path.in_(listed), files.c.ctime_ns != 0)
    wanted = set(asked)
    rows = connection.execute(sa.select(*columns, files.c.sha256).where(*mine))
    return {row.path: row.sha256 for row in rows if tuple(row[:4]) in wanted}


def record_part(connection: sa.Connection, agent_id: str, entry: Entry) -> set[int]:
    """Take one part: {"files": [{"path", "size", "mtime_ns", "sha256"}, ...]}. Returns the files that changed."""
    scan = _own_scan(connection, agent_id, entry)
    if scan.state != OPEN:
        return set()  # a second delivery, after the end
    seen = _seen_files(entry, str(scan.root))
    added, changed, again = _upsert_files(connection, agent_id, scan, seen)
    counts = {"added": scans.c.added + len(added), "changed": scans.c.changed + len(changed)}
    connection.execute(sa.update(scans).where(scans.c.id == scan.id).values(token=entry.token, **counts))
    return added | changed | again


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
    unread = _unread(entry, whole=scan.paths is None)
    gone = set() if unread is None else _mark_gone(connection, agent_id, scan, unread)
    counts = {"gone": len(gone), "moved": _count_moved(connection, agent_id, gone)}
    connection.execute(sa.update(scans).where(scans.c.id == scan.id).values(**counts))
    return gone


def report_of(document: object) -> ScanReport | None:
    """The closing result of a scan; None where an agent sent something else."""
    try:
        return ScanReport.model_validate(document)
    except ValidationError:
        return None


def _unread(entry: Entry, *, whole: bool) -> list[str] | None:
    """The paths at or below which a scan may have missed files; None where it may have missed them anywhere.

    A scan of a whole root that found nothing at all may have looked at an archive that was not mounted.
    """
    report = report_of(entry.result)
    if report is None or (whole and not (report.files or report.other or report.links or report.special)):
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


def _upsert_files(
    connection: sa.Connection, agent_id: str, scan: sa.Row[tuple[object, ...]], seen: list[SeenFile]
) -> tuple[set[int], set[int], set[int]]:
    """Returns the files that were not there before, those that changed, those to be looked at again all the same."""
    if not seen:
        return set(), set(), set()
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
            "ctime_ns": file.ctime_ns,
            "root": scan.root,
            "first_seen": now,
            "seen_at": now,
            "last_scan": scan.id,
            "gone": False,
        }
        for file in seen
    ]
    statement = insert(files)
    updated = ("sha256", "size", "mtime_ns", "ctime_ns", "root", "seen_at", "last_scan", "gone")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["agent_id", "path"], set_={name: statement.excluded[name] for name in updated}
        ),
        rows,
    )
    ids = {row.path: row.id for row in connection.execute(sa.select(files.c.id, files.c.path).where(mine))}
    added = {ids[path] for path in paths if path not in known or known[path].gone}
    changed = {ids[file.path] for file in seen if file.path in known and known[file.path].sha256 != file.sha256} - added
    return added, changed, derived.said_to_be_missing(connection, list(ids.values()))


def _mark_gone(
    connection: sa.Connection, agent_id: str, scan: sa.Row[tuple[object, ...]], unread: Collection[str]
) -> set[int]:
    """Note that what the scan did not see is gone, except in `unread`."""
    places = [str(scan.root)] if scan.paths is None else json.loads(str(scan.paths))
    spared = tuple(map(_below, unread))
    gone: set[int] = set()
    for place in places:
        unseen = (
            *_present(agent_id, place),
            files.c.last_scan != scan.id,
            files.c.seen_at < scan.requested_at,  # else another, overlapping scan has just seen it
        )
        rows = connection.execute(sa.select(files.c.id, files.c.path).where(*unseen))
        gone |= {row.id for row in rows if not _lies_in(row.path, spared)}
    if gone:
        connection.execute(sa.update(files).where(files.c.id.in_(derived.values_of(sorted(gone)))).values(gone=True))
    return gone


def _present(agent_id: str, place: str) -> tuple[sa.ColumnElement[bool], ...]:
    """The agent's files at or below a path that are not known to be gone."""
    below = _below(place)
    # A range instead of LIKE, so that the unique index answers; "0" is the character after "/".
    there = sa.or_(files.c.path == place, sa.and_(files.c.path >= below, files.c.path < f"{below[:-1]}0"))
    return (files.c.agent_id == agent_id, there, files.c.gone.is_(False))


def _count_moved(connection: sa.Connection, agent_id: str, gone: Collection[int]) -> int:
    """How many of these have turned up elsewhere since they were last seen: the same content at a new path."""
    there = files.alias("there")
    turned_up = sa.exists().where(
        there.c.agent_id == agent_id,
        there.c.sha256 == files.c.sha256,
        there.c.gone.is_(False),
        there.c.first_seen > files.c.seen_at,
    )
    moved = sa.select(sa.func.count()).where(files.c.id.in_(derived.values_of(sorted(gone))), turned_up)
    return int(connection.scalar(moved) or 0)
