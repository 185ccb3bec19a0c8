"""Results and scan reports come in: each is recorded once, whatever is delivered how often and in which order.

Per (service, record, version) the highest fencing token wins; an equal one is a second delivery of the same result.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from agent.hub import batches, derived, scans, usage
from agent.hub.file_tasks import ABOUT_FILES, BATCH, SCAN
from agent.hub.schema import files, owed, results
from agent.hub.schema import scans as scan_table
from agent.phoenix.outbox import MAX_NAME, Entry, is_name
from agent.redaction import redact_text

MAX_TOKEN = 2**63 - 1


class EntryRefused(Exception):
    """This entry cannot be recorded; the message goes back to the agent as the reason."""


@dataclass(frozen=True)
class Refusal:
    """Why one entry was not recorded. `stale`: a run with a higher token has already reported."""

    reason: str


def record(connection: sa.Connection, agent_id: str, entries: list[Entry]) -> list[Refusal | None]:
    """Record `entries` in order, in the caller's transaction; one answer each, None where it was recorded.

    An entry that is refused leaves nothing behind and spoils no other.
    """
    answers: list[Refusal | None] = []
    touched: set[int] = set()
    for entry in entries:
        try:
            with connection.begin_nested():
                _check(entry)
                touched |= _record_one(connection, agent_id, entry)
        except (EntryRefused, scans.ScanRefused, usage.UsageRefused) as refusal:
            answers.append(Refusal(str(refusal)))
        else:
            answers.append(None)
    derived.refresh(connection, touched)
    return answers


def _record_one(connection: sa.Connection, agent_id: str, entry: Entry) -> set[int]:
    """Returns the ids of the files whose tracks and debts follow from it."""
    if entry.usage is not None:
        usage.record(connection, agent_id, entry)
        return set()
    if entry.part is not None:
        if entry.service != SCAN:
            raise EntryRefused(f"{entry.service} has no parts; only {SCAN} reports in parts")
        return scans.record_part(connection, agent_id, entry)
    _own(connection, agent_id, entry)
    news = derived.is_news(connection, entry.service, entry.version, entry.outcome)
    fresh = _upsert_result(connection, agent_id, entry)
    if entry.service == BATCH:
        return batches.close(connection, agent_id, entry) if fresh else set()
    if entry.service == SCAN:
        return scans.close(connection, agent_id, entry)
    if entry.service not in ABOUT_FILES:
        return set()
    _free_the_key(connection, entry)
    return derived.files_of(connection, entry.record_id, entry.version, all_of_content=news)


def _check(entry: Entry) -> None:
    for name in ("service", "record_id", "version"):
        if not is_name(getattr(entry, name)):
            raise EntryRefused(f"{name} must be 1 to {MAX_NAME} characters of text")
    if not 0 <= entry.token <= MAX_TOKEN:
        raise EntryRefused("token must be a whole number from 0 to 2^63 - 1")
    if not 0 <= entry.attempts <= MAX_TOKEN:
        raise EntryRefused("attempts must be a whole number from 0 to 2^63 - 1")
    if not (math.isfinite(entry.started_at) and math.isfinite(entry.finished_at)):
        raise EntryRefused("started_at and finished_at must be Unix seconds")


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8")


def _as_json(result: Any) -> str:
    """A result as every reader of JSON takes it: a number that is none is null, half a surrogate pair a question mark.

    Without this one such result would make every answer fail that holds it.
    """
    text = json.dumps(result)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda name: None))
    if "\\ud" in text:
        text = _text(json.dumps(json.loads(text), ensure_ascii=False))
    return text


def _own(connection: sa.Connection, agent_id: str, entry: Entry) -> None:
    """An agent reports about its own files and scans only."""
    owner: str | None = None
    if entry.service == SCAN:
        owner = connection.scalar(sa.select(scan_table.c.agent_id).where(scan_table.c.id == entry.record_id))
    elif entry.service == BATCH:
        owner = batches.owner(connection, entry.record_id)
    elif entry.service in ABOUT_FILES and (file_id := derived.file_id_of(entry.record_id)) is not None:
        owner = connection.scalar(sa.select(files.c.agent_id).where(files.c.id == file_id))
    if owner is not None and owner != agent_id:
        raise EntryRefused(f"{entry.service}:{entry.record_id} belongs to another agent")


def _upsert_result(connection: sa.Connection, agent_id: str, entry: Entry) -> bool:
    """Whether it is news, not a second delivery."""
    row = {
        "service": entry.service,
        "record_id": entry.record_id,
        "version": entry.version,
        "token": entry.token,
        "agent_id": agent_id,
        "outcome": entry.outcome,
        "reason": None if entry.reason is None else redact_text(_text(entry.reason)),
        "result": _as_json(entry.result),
        "worker": _text(entry.worker),
        "attempts": entry.attempts,
        "started_at": entry.started_at,
        "finished_at": entry.finished_at,
        "recorded_at": time.time(),
    }
    same = (
        results.c.service == entry.service,
        results.c.record_id == entry.record_id,
        results.c.version == entry.version,
    )
    known = connection.execute(sa.select(results.c.token, results.c.agent_id).where(*same)).one_or_none()
    if known is not None and known.agent_id != agent_id:
        raise EntryRefused(f"{entry.service}:{entry.record_id} belongs to another agent")
    if known is not None and known.token > entry.token:
        raise EntryRefused("stale")
    if known is not None and known.token == entry.token:
        # Delivered again. What was recorded stays; that the worker stands by it now is news (see derived.settles).
        connection.execute(sa.update(results).where(*same).values(recorded_at=row["recorded_at"]))
        return False
    statement = insert(results).values(row)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["service", "record_id", "version"],
            set_={name: statement.excluded[name] for name in row},
        )
    )
    return True


def _free_the_key(connection: sa.Connection, entry: Entry) -> None:
    """A job that ran for an earlier version held the record's key; what is owed now can be queued at once."""
    connection.execute(
        sa.update(owed)
        .where(owed.c.service == entry.service, owed.c.record_id == entry.record_id, owed.c.version != entry.version)
        .values(queued_at=None)
    )
