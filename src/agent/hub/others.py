"""Results of tasks that no file is owed: transfers, batches, and those of other packages, unknown to the hub."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from agent.hub.derived import values_of
from agent.hub.file_tasks import FILE_TASKS, SCAN, SET
from agent.hub.schema import results

SERVICES = sa.text("""
    WITH RECURSIVE found(service) AS (
        SELECT min(service) FROM results
        UNION ALL
        SELECT (SELECT min(service) FROM results WHERE service > found.service) FROM found WHERE service IS NOT NULL
    )
    SELECT service FROM found WHERE service IS NOT NULL
""")
"""One step down the primary key's index for each service, however many results each has."""


def counts(connection: sa.Connection) -> dict[str, int]:
    """task -> results, without the file tasks, scans and sets, which are shown as such; 15 ms for each 100,000."""
    wanted = set(connection.scalars(SERVICES)) - {*FILE_TASKS, SCAN, SET}
    if not wanted:
        return {}
    query = sa.select(results.c.service, sa.func.count()).where(results.c.service.in_(values_of(sorted(wanted))))
    return {row[0]: row[1] for row in connection.execute(query.group_by(results.c.service))}


def results_of(
    connection: sa.Connection, service: str, record_id: str | None = None, *, limit: int, offset: int = 0
) -> list[dict[str, Any]]:
    """What is recorded of a task, or of one of its records, by record id and version: a row as JSON. Unix seconds."""
    query = sa.select(results).where(results.c.service == service)
    if record_id is not None:
        query = query.where(results.c.record_id == record_id)
    rows = connection.execute(query.order_by(results.c.record_id, results.c.version).limit(limit).offset(offset))
    return [{**row._mapping, "result": json.loads(row.result)} for row in rows]
