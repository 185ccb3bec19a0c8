"""What is recorded of one record, by all tasks; and which records were the last."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from agent.hub.derived import values_of
from agent.hub.file_tasks import FILE_TASKS, SCAN, SET
from agent.hub.others import SERVICES
from agent.hub.schema import results


@dataclass(frozen=True)
class Recorded:
    """A task's last word on a record; Unix seconds."""

    service: str
    record_id: str
    outcome: str
    reason: str
    attempts: int
    finished_at: float


_COLUMNS = [results.c[name] for name in ("service", "record_id", "outcome", "reason", "attempts", "finished_at")]


def of_record(connection: sa.Connection, record_id: str) -> list[Recorded]:
    """One for each task that has recorded it, of several versions the last; in the order in which they were done."""
    services = sorted(connection.scalars(SERVICES))
    query = sa.select(*_COLUMNS).where(results.c.service.in_(values_of(services)), results.c.record_id == record_id)
    rows = connection.execute(query.order_by(results.c.finished_at))
    found = {row.service: _read(row) for row in rows}
    return sorted(found.values(), key=lambda one: one.finished_at)


def latest(connection: sa.Connection, limit: int) -> list[Recorded]:
    """The last records of tasks that are not about files of music, the last first."""
    services = sorted(set(connection.scalars(SERVICES)) - {*FILE_TASKS, SCAN, SET})
    query = sa.select(*_COLUMNS).where(results.c.service.in_(values_of(services)))
    return [_read(row) for row in connection.execute(query.order_by(results.c.finished_at.desc()).limit(limit))]


def _read(row: sa.Row[tuple[object, ...]]) -> Recorded:
    return Recorded(**{**row._mapping, "reason": row.reason or ""})
