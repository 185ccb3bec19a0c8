"""Which files of the catalogue somebody wants to send away, and what became of those that were sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from agent.hub.derived import file_id_of, values_of
from agent.hub.schema import files, results, tracks
from agent.hub.tracks import TrackFilter
from pipelines.payload import display_path, text_path

S3, PUSH = "s3_upload", "push_file"
SERVICES = (S3, PUSH)


@dataclass(frozen=True)
class Chosen:
    """One present file. `path` and `root` are percent-encoded; `size` in bytes."""

    id: int
    path: str
    sha256: str
    size: int
    mtime_ns: int
    root: str


@dataclass(frozen=True)
class Transfer:
    """What was recorded of one file's transfer. `finished_at`: Unix seconds."""

    service: str
    record_id: str
    path: str
    """For people; empty if the catalogue knows the file no more."""
    outcome: str
    reason: str | None
    finished_at: float
    attempts: int
    result: dict[str, Any]
    encoded_path: str = ""
    """Percent-encoded: finds the file whatever bytes its name holds."""

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object; `path` has all characters of the name."""
        return {**asdict(self), "path": text_path(self.encoded_path)}


def choose(connection: sa.Connection, agent_id: str, wanted: TrackFilter, paths: Sequence[str]) -> list[Chosen]:
    """The agent's present files that pass the filter; if `paths` (percent-encoded) are given, those at or below one."""
    query = (
        sa.select(files.c.id, files.c.path, files.c.sha256, files.c.size, files.c.mtime_ns, files.c.root)
        .join(tracks, tracks.c.file_id == files.c.id)
        .where(files.c.agent_id == agent_id, sa.not_(files.c.gone), *wanted.clauses())
        .order_by(files.c.id)
    )
    if paths:
        query = query.where(sa.or_(*(clause for path in paths for clause in _at_or_below(path))))
    return [Chosen(**row._mapping) for row in connection.execute(query)]


def _at_or_below(path: str) -> tuple[sa.ColumnElement[bool], ...]:
    folder = path.rstrip("/") + "/"
    return files.c.path == path, sa.func.substr(files.c.path, 1, len(folder)) == folder


def recorded(connection: sa.Connection, limit: int) -> list[Transfer]:
    """The last transfers, the newest first."""
    rows = connection.execute(
        sa.select(results).where(results.c.service.in_(SERVICES)).order_by(results.c.finished_at.desc()).limit(limit)
    ).all()
    ids = {file_id for row in rows if (file_id := file_id_of(row.record_id)) is not None}
    known = sa.select(files.c.id, files.c.path).where(files.c.id.in_(values_of(sorted(ids))))
    paths = {str(row.id): row.path for row in connection.execute(known)}
    return [
        Transfer(
            row.service,
            row.record_id,
            display_path(encoded := paths.get(row.record_id, "")),
            row.outcome,
            row.reason,
            row.finished_at,
            row.attempts,
            json.loads(row.result),
            encoded,
        )
        for row in rows
    ]
