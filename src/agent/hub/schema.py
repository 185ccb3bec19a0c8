"""The catalogue's tables, and the steps from one schema version to the next.

`agents`, `scans`, `files`, `results`, `batches` and `usage` are the record. `owed` and `tracks` follow from them
(derived.py) and could be rebuilt from them at any time. Times are Unix seconds of the hub's clock unless a column says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from agent.hub.database import CatalogueError, Database

metadata = sa.MetaData()

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("token_sha256", sa.Text, nullable=False),  # hex; the token itself is never stored
    sa.Column("last_beat_at", sa.Float),
    sa.Column("beat", sa.Text),  # JSON of the last heartbeat
)

scans = sa.Table(
    "scans",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id"), nullable=False),
    sa.Column("root", sa.Text, nullable=False),  # percent-encoded
    sa.Column("state", sa.Text, nullable=False),  # open, or the outcome that closed it
    sa.Column("token", sa.Integer),  # highest fencing token of its parts; null until the first one
    sa.Column("requested_at", sa.Float, nullable=False),
    sa.Column("finished_at", sa.Float),
    sa.Column("reason", sa.Text),
    sa.Column("report", sa.Text),  # JSON of the closing result: counts and errors
    sa.Column("paths", sa.Text),  # JSON list: it looks at these alone, percent-encoded; null: at everything
    sa.Column("mounts", sa.Text),  # JSON list: where below the root an earlier scan found something mounted
    sa.Column("reread", sa.Boolean, nullable=False, server_default=sa.false()),  # also what is known as it is
    sa.Column("added", sa.Integer, nullable=False, server_default="0"),  # tracks that were not there before
    sa.Column("changed", sa.Integer, nullable=False, server_default="0"),  # tracks with another content than before
    sa.Column("gone", sa.Integer),  # tracks that it proved to be gone
    sa.Column("moved", sa.Integer),  # those of them whose content has turned up elsewhere
    sa.Index("ix_scans_root", "agent_id", "root", "requested_at"),
    sa.Index("ix_scans_open", "agent_id", "root", sqlite_where=sa.text("state = 'open'")),
)

files = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id"), nullable=False),
    sa.Column("path", sa.Text, nullable=False),  # percent-encoded
    sa.Column("sha256", sa.Text, nullable=False),  # hex, of the content as scanned
    sa.Column("size", sa.Integer, nullable=False),  # bytes
    sa.Column("mtime_ns", sa.Integer, nullable=False),
    sa.Column("ctime_ns", sa.Integer, nullable=False, server_default="0"),  # 0: the next scan reads it again
    sa.Column("root", sa.Text, nullable=False, server_default=""),  # percent-encoded folder below which it was found
    sa.Column("first_seen", sa.Float, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
    sa.Column("last_scan", sa.Text, nullable=False),
    sa.Column("gone", sa.Boolean, nullable=False, default=False),
    sa.UniqueConstraint("agent_id", "path"),
    sa.Index("ix_files_sha256", "sha256"),
    sqlite_autoincrement=True,  # an id names queue keys and markers: it never comes back for another file
)

results = sa.Table(
    "results",
    metadata,
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("record_id", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id"), nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("result", sa.Text, nullable=False),  # JSON
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),  # the worker's clock
    sa.Column("finished_at", sa.Float, nullable=False),  # the worker's clock
    sa.Column("recorded_at", sa.Float, nullable=False),
    sa.PrimaryKeyConstraint("service", "record_id", "version"),
    sa.Index("ix_results_version", "version"),
    sa.Index("ix_results_finished", "finished_at"),
)

owed = sa.Table(
    "owed",
    metadata,
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("record_id", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("queued_at", sa.Float),  # null: not on a queue yet
    sa.Column("checked_at", sa.Float),  # when the queue was last seen to hold it
    sa.PrimaryKeyConstraint("service", "record_id"),
    sa.Index("ix_owed_unqueued", "agent_id", "service", sqlite_where=sa.text("queued_at IS NULL")),
    sa.Index("ix_owed_checked", "checked_at", sqlite_where=sa.text("queued_at IS NOT NULL")),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id"), nullable=False),
    sa.Column("version", sa.Text, nullable=False),  # hash of the request
    sa.Column("request", sa.Text, nullable=False),  # JSON: roots and proposals, as approved
    sa.Column("undoes", sa.Text),  # the batch whose items it takes back
    sa.Column("state", sa.Text, nullable=False),  # open, or the outcome that closed it
    sa.Column("reason", sa.Text),
    sa.Column("requested_at", sa.Float, nullable=False),
    sa.Column("finished_at", sa.Float),
    sa.Index("ix_batches_undoes", "undoes", sqlite_where=sa.text("undoes IS NOT NULL")),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("record_id", sa.Text, nullable=False),
    sa.Column("token", sa.Integer, nullable=False),  # of the run that made the call
    sa.Column("call", sa.Integer, nullable=False),  # 0, 1, 2 ... of that run
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),  # who paid; empty: nobody was named
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("prompt_tokens", sa.Integer, nullable=False),
    sa.Column("completion_tokens", sa.Integer, nullable=False),
    sa.Column("spent_at", sa.Float, nullable=False),  # the worker's clock
    sa.PrimaryKeyConstraint("agent_id", "service", "record_id", "token", "call"),
    sa.Index("ix_usage_user", "user", "spent_at"),
    sa.Index("ix_usage_spent", "spent_at"),
)

usage_days = sa.Table(
    "usage_days",
    metadata,
    sa.Column("day", sa.Integer, nullable=False),  # since 1970, UTC
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("prompt_tokens", sa.Integer, nullable=False),
    sa.Column("completion_tokens", sa.Integer, nullable=False),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("runs", sa.Integer, nullable=False),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("first", sa.Float, nullable=False),  # the workers' clocks
    sa.Column("last", sa.Float, nullable=False),
    sa.PrimaryKeyConstraint("day", "agent_id", "service", "user", "model"),
    sa.Index("ix_usage_days_user", "user", "day"),
)

tracks = sa.Table(
    "tracks",
    metadata,
    sa.Column("file_id", sa.Integer, sa.ForeignKey("files.id"), primary_key=True),
    sa.Column("path", sa.Text, nullable=False),  # for people: no control characters
    sa.Column("artist", sa.Text),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("duration", sa.Float),  # seconds
    sa.Column("bpm", sa.Float),
    sa.Column("bpm_confidence", sa.Float),
    sa.Column("key", sa.Text),
    sa.Column("scale", sa.Text),
    sa.Column("camelot", sa.Text),
    sa.Column("loudness", sa.Float),  # LUFS
    sa.Column("danceability", sa.Float),
    sa.Column("metadata_outcome", sa.Text),
    sa.Column("fingerprint_outcome", sa.Text),
    sa.Column("analysis_outcome", sa.Text),
    sa.Column("print_record", sa.Text),  # with print_version: the fingerprint result that holds for this file
    sa.Column("print_version", sa.Text),
    sa.Column("problems", sa.Text, nullable=False),  # JSON: [{"service", "outcome", "reason"}]
    sa.Column("has_problem", sa.Boolean, nullable=False),
    sa.Column("search", sa.Text, nullable=False),  # casefolded artist, title, album and path
    sa.Index("ix_tracks_bpm", "bpm"),
    sa.Index("ix_tracks_camelot", "camelot"),
    sa.Index("ix_tracks_problem", "file_id", sqlite_where=sa.text("has_problem")),
)

state = sa.Table(
    "state",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)


def _create(connection: sa.Connection) -> None:
    metadata.create_all(connection)


def _add_batches(connection: sa.Connection) -> None:
    batches.create(connection, checkfirst=True)


def _add_usage(connection: sa.Connection) -> None:
    usage.create(connection, checkfirst=True)


def _add_what_rescans_need(connection: sa.Connection) -> None:
    for table, names in (
        (scans, ("paths", "mounts", "reread", "added", "changed", "moved")),
        (files, ("ctime_ns", "root")),
    ):
        there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
        for name in names:
            if name not in there:
                column = sa.schema.CreateColumn(table.c[name]).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")
    for index in scans.indexes:
        index.create(connection, checkfirst=True)
    seen_by = sa.select(scans.c.root).where(scans.c.id == files.c.last_scan).scalar_subquery()
    connection.execute(sa.update(files).values(root=sa.func.coalesce(seen_by, "")))


def _add_usage_days(connection: sa.Connection) -> None:
    usage_days.create(connection, checkfirst=True)


def _keep_fingerprints_that_hold(connection: sa.Connection) -> None:
    """Fingerprints of version 2 tell files that are cut off, and print sound of many channels. What is the same in both
    versions counts for the second as well, so that a library is not decoded anew; what may differ is asked again."""
    path = sa.select(files.c.path).where(files.c.id == sa.cast(results.c.record_id, sa.Integer)).scalar_subquery()
    seconds = sa.func.coalesce(sa.func.json_extract(results.c.result, "$.duration"), 0)
    unprinted = sa.and_(sa.func.coalesce(results.c.reason, "") == "too-short", seconds > 3)
    suffixes = (".wav", ".wave", ".w64", ".caf", ".ogg", ".oga", ".opus", ".spx")
    uncertain = sa.and_(
        results.c.outcome == "done",
        sa.or_(*(sa.func.lower(sa.func.coalesce(path, "")).endswith(suffix) for suffix in suffixes)),
    )
    connection.execute(
        sa.update(results)
        .where(results.c.service == "fingerprint_file", results.c.version.endswith(":1"))
        .where(sa.not_(unprinted), sa.not_(uncertain))
        .values(version=sa.func.rtrim(results.c.version, "1", type_=sa.Text).concat("2"))
    )


STEPS: tuple[Callable[[sa.Connection], None], ...] = (
    _create, _add_batches, _add_usage, _add_what_rescans_need, _add_usage_days,
    _keep_fingerprints_that_hold,
)  # fmt: skip
"""Step n takes version n to n + 1. A released step never changes: the next change is a new one at the end."""

SCHEMA_VERSION = len(STEPS)


def prepare(database: Database) -> None:
    """Bring the file to this program's schema, all steps in one transaction.

    Raises CatalogueError if a newer program wrote it, or if it would have to change and is open for reading only.
    """
    with database.read() as connection:
        found = version_of(connection)
    if found > SCHEMA_VERSION:
        raise CatalogueError(
            f"{database.path} was written by a newer phaze (schema {found}; this one knows {SCHEMA_VERSION}); "
            "upgrade phaze, or restore the backup made before the upgrade"
        )
    if found == SCHEMA_VERSION:
        return
    if database.read_only:
        raise CatalogueError(
            f"{database.path} has schema {found}, this phaze needs {SCHEMA_VERSION}; start the hub once (`phaze hub`)"
        )
    with database.write() as connection:
        for step in STEPS[version_of(connection) :]:
            step(connection)
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def version_of(connection: sa.Connection) -> int:
    """The schema version in the file: 0 for a new one."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
