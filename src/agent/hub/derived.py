"""What follows from files and results: a track for each present file, and what each is still owed.

`refresh` computes both for some files from the record alone, so they can never say different things for long:
a changed profile or a new kind of task is one `refresh` of everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from agent.hub.file_tasks import BATCH, FILE_TASKS, FINGERPRINT, FOUND, OWED_TASKS, SCAN, SET_TASKS, version_for
from agent.hub.schema import files, owed, results, state, tracks
from agent.hub.track_row import number, track_row
from agent.phoenix.outbox import ENDED_ITS_PROCESS

CHUNK = 500
"""Files per round of `refresh`: bounds memory, not the transaction."""

MOMENTARY = ("not-found", "changed-since-scan", f"quarantined: {ENDED_ITS_PROCESS}")
"""Beginnings of reasons that speak of a moment: they settle nothing once a scan sees the file again."""

PRINTS = "prints"
"""State counter that moves whenever a fingerprint of a present file may have changed."""


def values_of(values: Sequence[str | int]) -> sa.Select[tuple[Any]]:
    """A subquery of these values: any number of them in one bound parameter."""
    table = sa.func.json_each(json.dumps(list(values))).table_valued("value")
    return sa.select(table.c.value)


def file_id_of(record_id: str) -> int | None:
    """The file that a record id names; None if it names none."""
    return int(record_id) if record_id.isascii() and record_id.isdigit() and len(record_id) < 19 else None


def is_news(connection: sa.Connection, service: str, version: str, outcome: str) -> bool:
    """Whether a result of this outcome, not recorded yet, tells other files with the same content something new."""
    known = sa.select(results.c.token).where(
        results.c.version == version, results.c.service == service, results.c.outcome.in_(FOUND)
    )
    return outcome in FOUND and connection.execute(known.limit(1)).one_or_none() is None


def files_of(connection: sa.Connection, record_id: str, version: str, *, all_of_content: bool) -> set[int]:
    """The files that a result speaks of: the record's own, and if asked all others with the same content."""
    file_id = file_id_of(record_id)
    mine = files.c.id == (-1 if file_id is None else file_id)
    if all_of_content:
        mine = sa.or_(mine, files.c.sha256 == version.partition(":")[0])
    return set(connection.scalars(sa.select(files.c.id).where(mine)))


def said_to_be_missing(connection: sa.Connection, ids: Sequence[int]) -> set[int]:
    """Those of the files that some task did not find, or found changed: to be looked at again when they are seen."""
    wanted = tracks.c.file_id.in_(values_of(ids))
    rows = connection.execute(sa.select(tracks.c.file_id, tracks.c.problems).where(wanted, tracks.c.has_problem))
    return {row.file_id for row in rows if any(_momentary(problem["reason"]) for problem in json.loads(row.problems))}


def refresh(connection: sa.Connection, file_ids: Iterable[int]) -> None:
    """Bring tracks and debts of these files in line with the record."""
    ordered = sorted(file_ids)
    for start in range(0, len(ordered), CHUNK):
        _refresh_chunk(connection, ordered[start : start + CHUNK])


def refresh_all(connection: sa.Connection) -> None:
    """The same for every file; needed when tasks, profiles or the shape of a track changed."""
    connection.execute(sa.delete(owed).where(owed.c.service.not_in([*OWED_TASKS, SCAN, BATCH])))
    refresh(connection, connection.scalars(sa.select(files.c.id)).all())


def _refresh_chunk(connection: sa.Connection, ids: list[int]) -> None:
    listed = values_of(ids)
    rows = connection.execute(sa.select(files).where(files.c.id.in_(listed))).all()
    present = [row for row in rows if not row.gone]
    found = _current_results(connection, present)
    _write_tracks(connection, ids, present, found)
    _write_owed(connection, ids, present, found)


def _current_results(connection: sa.Connection, present: Sequence[sa.Row[Any]]) -> dict[tuple[int, str], sa.Row[Any]]:
    """(file id, service) -> the result that settles it: the file's own, else one of the same content."""
    versions = sorted({version_for(service, row.sha256) for row in present for service in OWED_TASKS})
    wanted = results.c.version.in_(values_of(versions))
    mine = results.c.record_id.in_(values_of([str(row.id) for row in present]))
    own = {
        (result.record_id, result.service, result.version): result
        for result in connection.execute(sa.select(results).where(wanted, mine))
    }
    # Of SQLite: beside one MAX() the other columns come from the row that has it. One row a content, however many
    # files share it.
    last = sa.func.max(results.c.token)
    by_content = sa.select(results, last).where(wanted, results.c.outcome.in_(FOUND))
    shared = {
        (result.service, result.version): result
        for result in connection.execute(by_content.group_by(results.c.service, results.c.version))
    }
    found: dict[tuple[int, str], sa.Row[Any]] = {}
    for row in present:
        for service in OWED_TASKS:
            version = version_for(service, row.sha256)
            for result in (own.get((str(row.id), service, version)), shared.get((service, version))):
                if result is not None and settles(result, row):
                    found[row.id, service] = result
                    break
    return found


def _is_for(service: str, print_: sa.Row[Any] | None) -> bool:
    """Whether a file with this fingerprint is owed that task at all."""
    if service not in SET_TASKS:
        return True
    if print_ is None or print_.outcome not in FOUND:
        return False
    return (number(json.loads(print_.result).get("duration")) or 0.0) >= SET_TASKS[service].shortest


def settles(result: sa.Row[Any], file: sa.Row[Any]) -> bool:
    """Whether a result for the file's present content (and profile) leaves nothing owed."""
    if result.outcome in FOUND:
        return True  # for every file with this content; a failure may be the one file's own
    if result.record_id != str(file.id):
        return False
    return not _momentary(result.reason) or bool(result.recorded_at >= file.seen_at)


def _momentary(reason: str | None) -> bool:
    return (reason or "").startswith(MOMENTARY)


def _write_tracks(
    connection: sa.Connection,
    ids: list[int],
    present: Sequence[sa.Row[Any]],
    found: dict[tuple[int, str], sa.Row[Any]],
) -> None:
    prints = _prints(connection, ids)
    connection.execute(sa.delete(tracks).where(tracks.c.file_id.in_(values_of(ids))))
    rows = [
        track_row(row.id, row.path, {task: found[row.id, task] for task in FILE_TASKS if (row.id, task) in found})
        for row in present
    ]
    if rows:
        connection.execute(sa.insert(tracks), rows)
    if _prints(connection, ids) != prints:
        first = insert(state).values(name=PRINTS, value="1")
        following = sa.cast(sa.cast(state.c.value, sa.Integer) + 1, sa.Text)
        connection.execute(first.on_conflict_do_update(index_elements=["name"], set_={"value": following}))


def _prints(connection: sa.Connection, ids: list[int]) -> list[tuple[Any, ...]]:
    columns = sa.select(tracks.c.file_id, tracks.c.print_record, tracks.c.print_version)
    rows = connection.execute(columns.where(tracks.c.file_id.in_(values_of(ids))).order_by(tracks.c.file_id))
    return [tuple(row) for row in rows if row.print_version is not None]


def _write_owed(
    connection: sa.Connection,
    ids: list[int],
    present: Sequence[sa.Row[Any]],
    found: dict[tuple[int, str], sa.Row[Any]],
) -> None:
    due = [
        {
            "service": service,
            "record_id": str(row.id),
            "version": version_for(service, row.sha256),
            "agent_id": row.agent_id,
        }
        for row in present
        for service in OWED_TASKS
        if (row.id, service) not in found and _is_for(service, found.get((row.id, FINGERPRINT)))
    ]
    still = {(debt["service"], debt["record_id"]) for debt in due}
    settled = [
        {"s": service, "r": str(file_id)}
        for file_id in ids
        for service in OWED_TASKS
        if (service, str(file_id)) not in still
    ]
    if settled:
        connection.execute(
            sa.delete(owed).where(owed.c.service == sa.bindparam("s"), owed.c.record_id == sa.bindparam("r")), settled
        )
    if due:
        statement = insert(owed)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["service", "record_id"],
                set_={"version": statement.excluded.version, "queued_at": None, "checked_at": None},
                where=owed.c.version != statement.excluded.version,
            ),
            due,
        )
