"""What the catalogue still owes: jobs to put on a lane, jobs that a lane was given, scans that are open.

A row of `owed` is one job. `queued_at` says that it was put on a queue; settling it deletes the row (derived.py,
scans.py). Nothing here asks the queue.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from agent.hub.file_tasks import BATCH, SCAN, batch_payload, file_payload, scan_payload
from agent.hub.schema import batches, files, owed, scans
from pipelines.payload import Payload


@dataclass(frozen=True)
class Debt:
    """One job that is owed."""

    agent_id: str
    service: str
    record_id: str
    version: str
    path: str
    """Percent-encoded: the file, or the scan's root."""
    size: int = 0
    mtime_ns: int = 0
    """As scanned; a payload of the file tasks names the file that was seen."""
    root: str = ""
    """Percent-encoded folder below which the file was found."""
    request: str = ""
    """JSON of an approved batch: its roots and proposals."""
    paths: str = ""
    """JSON list: what a scan looks at, if not at everything."""
    mounts: str = ""
    """JSON list: where below the root an earlier scan found something mounted."""
    reread: bool = False
    """Whether a scan reads also what is known as it is."""

    def payload(self) -> Payload:
        """What goes into the job."""
        if self.service == SCAN:
            return scan_payload(
                version=self.version, root=self.path, paths=self.paths, mounts=self.mounts, reread=self.reread
            )
        if self.service == BATCH:
            return batch_payload(version=self.version, request=self.request)
        return file_payload(
            self.service, version=self.version, path=self.path, size=self.size, mtime_ns=self.mtime_ns, root=self.root
        )


_FILE = files.c.id == sa.cast(owed.c.record_id, sa.Integer)
_JOB = (owed.c.agent_id, owed.c.service, owed.c.record_id, owed.c.version)
_QUERY = (
    sa.select(
        *_JOB,
        sa.func.coalesce(scans.c.root, files.c.path, "").label("path"),
        sa.func.coalesce(files.c.size, 0).label("size"),
        sa.func.coalesce(files.c.mtime_ns, 0).label("mtime_ns"),
        sa.func.coalesce(files.c.root, "").label("root"),
        sa.func.coalesce(batches.c.request, "").label("request"),
        sa.func.coalesce(scans.c.paths, "").label("paths"),
        sa.func.coalesce(scans.c.mounts, "").label("mounts"),
        sa.func.coalesce(scans.c.reread, sa.false()).label("reread"),
    )
    .outerjoin(scans, sa.and_(owed.c.service == SCAN, scans.c.id == owed.c.record_id))
    .outerjoin(batches, sa.and_(owed.c.service == BATCH, batches.c.id == owed.c.record_id))
    .outerjoin(files, sa.and_(owed.c.service.not_in((SCAN, BATCH)), _FILE))
)


def kinds(connection: sa.Connection) -> list[tuple[str, str]]:
    """The (agent id, service) pairs with something that is not on a queue yet."""
    rows = connection.execute(sa.select(owed.c.agent_id, owed.c.service).where(owed.c.queued_at.is_(None)).distinct())
    return [(row.agent_id, row.service) for row in rows]


def unqueued(
    connection: sa.Connection, agent_id: str, service: str, limit: int, *more: sa.ColumnElement[bool]
) -> list[Debt]:
    """Up to `limit` jobs that were not put on a queue yet, and for which `more` holds."""
    mine = (*more, owed.c.agent_id == agent_id, owed.c.service == service, owed.c.queued_at.is_(None))
    return _debts(connection.execute(_QUERY.where(*mine).limit(limit)))


def unchecked(connection: sa.Connection, older_than: float, limit: int) -> list[Debt]:
    """Up to `limit` queued jobs that the queue was not seen to hold for `older_than` seconds, the longest first."""
    due = (owed.c.queued_at.is_not(None), owed.c.checked_at < time.time() - older_than)
    return _debts(connection.execute(_QUERY.where(*due).order_by(owed.c.checked_at).limit(limit)))


def mark_queued(connection: sa.Connection, debts: Sequence[Debt]) -> None:
    """These are on their queues now."""
    _mark(connection, debts, queued_at=time.time(), checked_at=time.time())


def mark_checked(connection: sa.Connection, debts: Sequence[Debt]) -> None:
    """The queue was looked at for these."""
    _mark(connection, debts, checked_at=time.time())


def mark_lost(connection: sa.Connection, debts: Sequence[Debt]) -> int:
    """The queue lost these: to be queued again. How many; those that were settled meanwhile stay settled."""
    return _mark(connection, debts, queued_at=None, checked_at=None)


def _mark(connection: sa.Connection, debts: Sequence[Debt], **values: float | None) -> int:
    if not debts:
        return 0
    same = (
        owed.c.service == sa.bindparam("s"),
        owed.c.record_id == sa.bindparam("r"),
        owed.c.version == sa.bindparam("v"),
    )
    rows = [{"s": debt.service, "r": debt.record_id, "v": debt.version} for debt in debts]
    return connection.execute(sa.update(owed).where(*same).values(**values), rows).rowcount


def counts(connection: sa.Connection, agent_id: str | None = None) -> dict[str, int]:
    """service -> how many jobs are owed, to one agent or to all."""
    query = sa.select(owed.c.service, sa.func.count()).where(*_of(agent_id)).group_by(owed.c.service)
    return {row[0]: row[1] for row in connection.execute(query)}


def versions(
    connection: sa.Connection, limit: int, agent_id: str | None = None, *, without: Collection[str] = ()
) -> dict[tuple[str, str], str]:
    """(service, record id) -> version of up to `limit` jobs that are owed, to one agent or to all; of no service in
    `without`."""
    wanted = (*_of(agent_id), owed.c.service.not_in(list(without)))
    rows = connection.execute(sa.select(owed.c.service, owed.c.record_id, owed.c.version).where(*wanted).limit(limit))
    return {(row.service, row.record_id): row.version for row in rows}


def _of(agent_id: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if agent_id is None else [owed.c.agent_id == agent_id]


def _debts(rows: sa.CursorResult[Any]) -> list[Debt]:
    return [Debt(**row._mapping) for row in rows]
