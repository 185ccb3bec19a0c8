"""What was done since a moment: jobs, time and the slowest by task; how the scans ended."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from agent.hub.derived import values_of
from agent.hub.file_tasks import ABOUT_FILES, ANALYSIS, FOUND, version_for
from agent.hub.scans import OPEN, report_of
from agent.hub.schema import files, results, scans
from agent.hub.track_row import number
from pipelines.music.scan import ScanReport
from pipelines.payload import display_path


@dataclass(frozen=True)
class TaskWork:
    """One task's results since a moment. Seconds."""

    service: str
    jobs: int
    wall: float
    """From the first start to the last end."""
    busy: float
    """Sum over the jobs; more than `wall` where several ran side by side."""
    slowest: float
    slowest_path: str | None
    """The file of the slowest job, for people."""


def since(connection: sa.Connection, moment: float) -> list[TaskWork]:
    """The work recorded after `moment` (Unix seconds), the busiest task first."""
    seconds = results.c.finished_at - results.c.started_at
    rows = connection.execute(
        sa.select(
            results.c.service,
            sa.func.count().label("jobs"),
            (sa.func.max(results.c.finished_at) - sa.func.min(results.c.started_at)).label("wall"),
            sa.func.sum(seconds).label("busy"),
            sa.func.max(seconds).label("slowest"),
        )
        .where(results.c.finished_at >= moment)
        .group_by(results.c.service)
        .order_by(sa.func.sum(seconds).desc())
    ).all()
    return [
        TaskWork(row.service, row.jobs, row.wall, row.busy, row.slowest, _slowest_path(connection, row.service, moment))
        for row in rows
    ]


def _slowest_path(connection: sa.Connection, service: str, moment: float) -> str | None:
    if service not in ABOUT_FILES:
        return None
    path = connection.scalar(
        sa.select(files.c.path)
        .join(results, sa.cast(files.c.id, sa.Text) == results.c.record_id)
        .where(results.c.service == service, results.c.finished_at >= moment)
        .order_by((results.c.finished_at - results.c.started_at).desc())
        .limit(1)
    )
    return None if path is None else display_path(path)


def decoded(connection: sa.Connection, ids: Collection[int]) -> dict[int, float]:
    """file id -> the seconds of sound that its analysis could decode, for those of `ids` that have one."""
    profile = version_for(ANALYSIS, "")
    analysis = sa.and_(results.c.service == ANALYSIS, results.c.version == files.c.sha256 + profile)
    seconds = sa.func.json_extract(results.c.result, "$.decoded_duration")
    rows = connection.execute(
        sa.select(files.c.id, seconds.label("seconds"))
        .join(results, sa.and_(analysis, results.c.outcome.in_(FOUND)))
        .where(files.c.id.in_(values_of(sorted(ids))))
    )
    return {row.id: heard for row in rows if (heard := number(row.seconds)) is not None}


SCAN_ENDS = {
    "open": "its scan is not finished; the next start goes on",
    "empty-folder": "it holds nothing at all; is an archive mounted there?",
    "permission-denied": "the worker's user may not read it; let him (in containers PHAZE_UID says who he is)",
    "not-mounted": "nothing is mounted there now; its tracks are kept",
    "root-vanished": "it was taken away meanwhile; is an archive mounted there?",
}
"""States and reasons of scans in words; the others speak for themselves."""


@dataclass(frozen=True)
class ScanResult:
    """How one scan ended. `errors`: {"path" for people, "reason"}, the first hundred of `error_count`."""

    root: str
    state: str
    reason: str | None
    files: int
    error_count: int
    errors: list[dict[str, str]]
    passed_over: dict[str, int]
    """`other`: files of other kinds, `links`, `special`: pipes and devices, `gone`: tracks that are no longer there,
    `moved`: such whose content has turned up elsewhere."""
    other_suffixes: Counter[str] = field(default_factory=Counter)
    """How many of the other files have which suffix; empty: none, or a rare one."""
    added: int = 0
    """Tracks that were not there before."""
    changed: int = 0
    """Tracks with another content than before."""

    @property
    def unread(self) -> list[tuple[str, str]]:
        """(path, why) of what it could not read, in words."""
        lines = [(error["path"], SCAN_ENDS.get(error["reason"], error["reason"])) for error in self.errors]
        if self.state != "done" and not lines:
            said = self.reason or self.state
            lines.append((self.root, SCAN_ENDS.get(said, said)))
        if self.error_count > len(self.errors):
            lines.append((self.root, f"and {self.error_count - len(self.errors):,} more errors"))
        return lines


def scans_since(connection: sa.Connection, moment: float) -> list[ScanResult]:
    """The scans that ended at or after `moment` (Unix seconds) and those still `open`, oldest first."""
    wanted = sa.or_(scans.c.finished_at >= moment, scans.c.state == OPEN)
    rows = connection.execute(sa.select(scans).where(wanted).order_by(scans.c.requested_at, scans.c.id))
    return [_scan_result(row) for row in rows]


RECENT = 7 * 86_400
"""Seconds; of a root that nobody has had scanned for longer nothing is said any more."""


def last_scans(connection: sa.Connection) -> list[ScanResult]:
    """Of each root of each agent the last scan of all of it that has ended, where that was within a week."""
    whole = (scans.c.finished_at >= time.time() - RECENT, scans.c.paths.is_(None))
    place = (scans.c.agent_id, scans.c.root)
    last = sa.select(*place, sa.func.max(scans.c.requested_at).label("at")).where(*whole).group_by(*place).subquery()
    same = sa.and_(*(scans.c[name] == last.c[name] for name in ("agent_id", "root")), scans.c.requested_at == last.c.at)
    rows = connection.execute(sa.select(scans).join(last, same).where(*whole).order_by(*place))
    return [_scan_result(row) for row in rows]


def _scan_result(row: sa.Row[Any]) -> ScanResult:
    report = report_of(json.loads(row.report or "{}")) or ScanReport()
    errors = [{"path": display_path(error.path), "reason": error.reason} for error in report.errors]
    count = max(report.error_count, len(errors))
    passed_over = {"other": report.other, "links": report.links, "special": report.special}
    passed_over |= {"gone": (row.gone or 0) - (row.moved or 0), "moved": row.moved or 0}
    counts = (report.files, count, errors, passed_over, report.other_suffixes)
    return ScanResult(display_path(row.root), row.state, row.reason, *counts, added=row.added, changed=row.changed)
