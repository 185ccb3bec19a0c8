"""Sets: long recordings whose tracks are looked for in the library, once for each content.

    fingerprint recorded -> owed (derived.py) -> in the index, and the library's other prints too -> queued -> result

A tracklist is made once, so it waits for the tracks that it may name: until no fingerprint is owed any more, or none
has come for a while.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from agent.hub.file_tasks import FINGERPRINT, FOUND, SET, SET_TASKS
from agent.hub.schema import files, owed, results, tracks
from pipelines.payload import display_path, text_path

QUIET = 300.0
"""Seconds without a new fingerprint after which those that are still owed are not waited for: they fail, or hang."""


@dataclass(frozen=True)
class LiveSet:
    """A present file with the tracklist that was made of it: `result` is a `pipelines.music.live_set.Tracklist`."""

    file_id: int
    path: str
    """For people."""
    artist: str | None
    title: str
    duration: float | None
    outcome: str
    reason: str | None
    finished_at: float
    result: dict[str, Any]
    encoded_path: str
    """Percent-encoded: finds the file whatever bytes its name holds."""

    def as_json(self) -> dict[str, Any]:
        """For tools; `path` has all characters of the name."""
        return {**self.__dict__, "path": text_path(self.encoded_path)}


def ripe(connection: sa.Connection, indexed: float) -> sa.ColumnElement[bool]:
    """Of which owed sets the tracks may be looked for; `indexed`: see `IndexProcess.indexed`."""
    recent = (results.c.finished_at > time.time() - QUIET, results.c.service == FINGERPRINT)
    coming = connection.scalar(sa.select(owed.c.record_id).where(owed.c.service == FINGERPRINT).limit(1))
    if coming is not None and connection.scalar(sa.select(results.c.record_id).where(*recent).limit(1)) is not None:
        return sa.false()
    own = (
        sa.select(results.c.record_id)
        .join(
            tracks, sa.and_(tracks.c.print_record == results.c.record_id, tracks.c.print_version == results.c.version)
        )
        .where(
            results.c.service == FINGERPRINT,
            results.c.recorded_at < indexed,
            tracks.c.file_id == sa.cast(owed.c.record_id, sa.Integer),
        )
    )
    return own.exists()


def _of_content() -> sa.Select[Any]:
    """A row for each present file with a tracklist: its own, or that of another file with the same bytes."""
    profile = SET_TASKS[SET].profile if SET in SET_TASKS else "1"
    last = sa.func.max(results.c.token)  # of SQLite: the other columns come from the row that has it
    return (
        sa.select(
            *(files.c.id.label("file_id"), files.c.path, tracks.c.artist, tracks.c.title, tracks.c.duration),
            *(results.c.outcome, results.c.reason, results.c.finished_at, results.c.result, last),
        )
        .join(tracks, tracks.c.file_id == files.c.id)
        .join(results, sa.and_(results.c.service == SET, results.c.version == files.c.sha256 + f":{profile}"))
        .where(sa.not_(files.c.gone))
        .group_by(files.c.id)
    )


def read(connection: sa.Connection, limit: int | None = None, offset: int = 0) -> list[LiveSet]:
    """The sets, by path."""
    rows = connection.execute(_of_content().order_by(files.c.path).limit(limit).offset(offset))
    return [
        LiveSet(
            *(row.file_id, display_path(row.path), row.artist, row.title, row.duration),
            *(row.outcome, row.reason, row.finished_at, json.loads(row.result), row.path),
        )
        for row in rows
    ]


def counts(connection: sa.Connection) -> tuple[int, int]:
    """How many sets have a tracklist, and how many wait for one."""
    waiting = sa.select(sa.func.count()).where(owed.c.service == SET)
    found = sa.select(sa.func.count()).select_from(_of_content().with_only_columns(files.c.id).subquery())
    return connection.scalar(found) or 0, connection.scalar(waiting) or 0


def of_file(connection: sa.Connection, agent_id: str, path: str, size: int, mtime_ns: int) -> dict[str, Any] | None:
    """The tracklist of the file at `path` (percent-encoded), if it is as it was scanned; None if there is none."""
    same = (files.c.agent_id == agent_id, files.c.path == path, files.c.size == size, files.c.mtime_ns == mtime_ns)
    row = connection.execute(_of_content().where(*same)).first()
    return None if row is None or row.outcome not in FOUND else json.loads(row.result)
