"""Approved batches: asked for, done, undone; and how the catalogue's files follow what was done.

A moved file keeps its id, so nothing is owed anew. A file with new tags has a new content hash; its sound is the same,
so what was found out by listening holds for it, and only its tags are read again.
An undo is a batch like any other, made from the results of the first.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.dialects.sqlite import insert

from agent.hub.file_tasks import ANALYSIS, BATCH, FINGERPRINT, FOUND, INGEST, OWED_TASKS, SET, version_for
from agent.hub.problems import first_problem
from agent.hub.schema import batches, files, owed, results, scans
from agent.phoenix.outbox import Entry
from pipelines.files.proposals import BatchPayload, BatchReport, Item, Move, Proposal, TagRestore
from pipelines.payload import display_path

OPEN = "open"

HEARD = (ANALYSIS, FINGERPRINT, INGEST, SET)
"""Tasks whose results depend on the sound alone."""


class BatchRefused(Exception):
    """A batch that cannot be taken; the message says why and what to do."""


@dataclass(frozen=True)
class Batch:
    """One batch as people and programs see it."""

    id: str
    agent_id: str
    state: str
    """`open`, or the outcome that closed it."""
    reason: str | None
    requested_at: float
    finished_at: float | None
    undoes: str | None
    payload: BatchPayload
    details: list[Item]
    """What became of each proposal; empty until it is over."""


# What is asked for.


def filled(connection: sa.Connection, agent_id: str, document: dict[str, Any]) -> BatchPayload:
    """A batch from {"proposals": [...], "roots": [...]}, with what may be left out put in from the catalogue.

    Roots: those of the agent's scans. `sha256` and `size`: what was scanned at the source, or what an earlier proposal
    brings there. `proposal_id`: its number. `action`: move. Raises BatchRefused.
    """
    proposals = document.get("proposals")
    if not isinstance(proposals, list):
        raise BatchRefused('give {"proposals": [...]}; docs/approved-moves.md shows one')
    roots = document.get("roots") or sorted(
        connection.scalars(sa.select(scans.c.root).where(scans.c.agent_id == agent_id).distinct())
    )
    if not roots:
        raise BatchRefused('no folder of this agent was scanned yet; give "roots": the folders that may be changed')
    known = _Known(connection, agent_id)
    full = [
        known.fill({"proposal_id": str(number), "action": "move", **_mapping(raw)})
        for number, raw in enumerate(proposals, 1)
    ]
    return _payload({"roots": roots, "proposals": full})


def _mapping(raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise BatchRefused("each proposal must be a JSON object")
    paths = {name: _plain(raw[name]) for name in ("source", "destination") if isinstance(raw.get(name), str)}
    return {**raw, **paths}


def _plain(path: str) -> str:
    """One spelling of a percent-encoded path, as the catalogue has it."""
    return quote_from_bytes(unquote_to_bytes(path.encode("utf-8", "surrogatepass")), safe="/")


class _Known:
    """What is at a path: in the catalogue, or by then."""

    def __init__(self, connection: sa.Connection, agent_id: str) -> None:
        self._connection = connection
        self._agent = agent_id
        self._by_then: dict[str, dict[str, Any]] = {}

    def fill(self, raw: dict[str, Any]) -> dict[str, Any]:
        source = str(raw.get("source"))
        content = self._by_then.get(source) or self._scanned(source)
        if "sha256" not in raw:
            if content is None:
                raise BatchRefused(
                    f"{display_path(source)} is not in the catalogue; scan its folder (`phaze up FOLDER`), "
                    "or give its sha256"
                )
            raw = {**content, **raw}
        content = {name: raw[name] for name in ("sha256", "size", "follows") if name in raw}
        if raw["action"] == "move":
            self._by_then[str(raw.get("destination"))] = content
        else:
            self._by_then[source] = {**content, "follows": raw["proposal_id"]}
        return raw

    def _scanned(self, source: str) -> dict[str, Any] | None:
        row = self._connection.execute(
            sa.select(files.c.sha256, files.c.size).where(
                files.c.agent_id == self._agent, files.c.path == source, files.c.gone.is_(False)
            )
        ).one_or_none()
        return None if row is None else {"sha256": row.sha256, "size": row.size}


def _payload(request: dict[str, Any]) -> BatchPayload:
    text = json.dumps(request, sort_keys=True)
    try:
        return BatchPayload.model_validate({"version": hashlib.sha256(text.encode()).hexdigest(), **request})
    except ValidationError as error:
        raise BatchRefused(first_problem(error)) from None


def request(connection: sa.Connection, agent_id: str, payload: BatchPayload, undoes: str | None = None) -> str:
    """Ask for a batch; its id. One with the same content that is not over yet serves again."""
    waiting = connection.scalar(
        sa.select(batches.c.id).where(
            batches.c.agent_id == agent_id, batches.c.version == payload.version, batches.c.state == OPEN
        )
    )
    if waiting is not None:
        return str(waiting)
    batch_id = f"b{secrets.token_hex(5)}"  # the letter: digits alone would be a file's id
    row = {"id": batch_id, "agent_id": agent_id, "version": payload.version, "undoes": undoes, "state": OPEN}
    text = payload.model_dump_json(exclude={"version"})
    connection.execute(sa.insert(batches).values(**row, request=text, requested_at=time.time()))
    connection.execute(
        sa.insert(owed).values(service=BATCH, record_id=batch_id, version=payload.version, agent_id=agent_id)
    )
    return batch_id


def inverse(connection: sa.Connection, agent_id: str, batch_id: str) -> BatchPayload:
    """What takes back all that a batch has done and no undo has taken back yet. Raises BatchRefused."""
    batch = read(connection, batch_id)
    if batch is None or batch.agent_id != agent_id:
        raise BatchRefused(f"this agent has no batch {batch_id}; `phaze batches list` shows them")
    if batch.state == OPEN:
        raise BatchRefused(f"batch {batch_id} is not over yet; see `phaze why {BATCH}:{batch_id}`")
    undone: set[str] = set()
    for undo_id in connection.scalars(sa.select(batches.c.id).where(batches.c.undoes == batch_id)).all():
        undo = read(connection, undo_id)
        assert undo is not None
        if undo.state == OPEN:
            return undo.payload
        undone |= {item.proposal_id for item in undo.details if item.outcome == "done"}
    left = [item for item in batch.details if item.outcome == "done" and item.proposal_id not in undone]
    proposals = _taken_back(left)
    if not proposals:
        raise BatchRefused(f"nothing is left to undo of batch {batch_id}")
    return _payload(
        {"roots": batch.payload.roots, "proposals": [proposal.model_dump(mode="json") for proposal in proposals]}
    )


def _taken_back(items: Sequence[Item]) -> list[Proposal]:
    """The last first. A file whose tags were put back goes on with other bytes than it once had: see `follows`."""
    proposals: list[Proposal] = []
    changed: dict[str, str] = {}
    for item in reversed(items):
        common = {"proposal_id": item.proposal_id, "source": item.path, "sha256": item.sha256, "size": item.size}
        common["follows"] = changed.pop(item.path, None)
        if item.action == "move":
            proposals.append(Move(**common, destination=item.source, prune=item.made[::-1]))
            if common["follows"]:
                changed[item.source] = item.proposal_id
        elif item.old is not None:
            proposals.append(TagRestore(**common, old=item.old))
            changed[item.path] = item.proposal_id
    return proposals


# What is known.


def owner(connection: sa.Connection, batch_id: str) -> str | None:
    """The agent that a batch is for; None if there is no such batch."""
    return connection.scalar(sa.select(batches.c.agent_id).where(batches.c.id == batch_id))


def read(connection: sa.Connection, batch_id: str) -> Batch | None:
    """One batch; None if there is none."""
    row = connection.execute(sa.select(batches).where(batches.c.id == batch_id)).one_or_none()
    return None if row is None else _batch(connection, row)


def newest(connection: sa.Connection, limit: int) -> list[Batch]:
    """The last batches, the newest first."""
    rows = connection.execute(sa.select(batches).order_by(batches.c.requested_at.desc(), batches.c.id).limit(limit))
    return [_batch(connection, row) for row in rows]


def _batch(connection: sa.Connection, row: sa.Row[Any]) -> Batch:
    same = (results.c.service == BATCH, results.c.record_id == row.id, results.c.version == row.version)
    result = connection.scalar(sa.select(results.c.result).where(*same))
    shown = ("id", "agent_id", "state", "reason", "requested_at", "finished_at", "undoes")
    return Batch(
        **{name: row._mapping[name] for name in shown},
        payload=BatchPayload.model_validate({"version": row.version, **json.loads(row.request)}),
        details=[] if result is None else _report(json.loads(result)).details,
    )


def _report(document: object) -> BatchReport:
    try:
        return BatchReport.model_validate(document)
    except ValidationError:
        return BatchReport()


# What was done.


def close(connection: sa.Connection, agent_id: str, entry: Entry) -> set[int]:
    """Take the result of a batch. Returns the files that it changed."""
    connection.execute(sa.delete(owed).where(owed.c.service == BATCH, owed.c.record_id == entry.record_id))
    ended = {"state": entry.outcome, "reason": entry.reason, "finished_at": time.time()}
    connection.execute(sa.update(batches).where(batches.c.id == entry.record_id).values(**ended))
    touched: set[int] = set()
    batch = read(connection, entry.record_id)
    roots = [] if batch is None else batch.payload.roots
    for item in _report(entry.result).details:
        if item.outcome == "done":
            touched |= _follow(connection, agent_id, item, roots)
    return touched


def _follow(connection: sa.Connection, agent_id: str, item: Item, roots: Sequence[str]) -> set[int]:
    here, there = (_row(connection, agent_id, path) for path in (item.source, item.path))
    if here is None or here.sha256 != item.sha256_before:
        return set()  # the catalogue speaks of another file; the next scan will see
    now = {
        "sha256": item.sha256,
        "size": item.size,
        "mtime_ns": item.mtime_ns,
        "ctime_ns": 0,
        "path": item.path,
        "root": _root_of(item.path, [here.root], roots),
        "gone": False,
        "seen_at": time.time(),
    }
    touched = {here.id}
    if there is not None and there.id != here.id:
        # A file that was there once, or this very one, seen by a scan before we heard of the move.
        _update(connection, there.id, path=f"moving:{there.id}", gone=True)
        touched.add(there.id)
    _update(connection, here.id, **now)
    if there is not None and there.id != here.id:
        _update(connection, there.id, path=item.source)
    if item.sha256 != item.sha256_before:
        _carry_over(connection, here.id, item)
    return touched


def _root_of(path: str, *choices: Sequence[str]) -> str:
    """The innermost of the first choices that hold the path: where a moved file is looked for from now on."""
    for roots in choices:
        holding = [root for root in roots if path.startswith(root if root.endswith("/") else f"{root}/")]
        if holding:
            return max(holding, key=len)
    return ""


def _row(connection: sa.Connection, agent_id: str, path: str) -> sa.Row[Any] | None:
    mine = (files.c.agent_id == agent_id, files.c.path == path)
    return connection.execute(sa.select(files).where(*mine)).one_or_none()


def _update(connection: sa.Connection, file_id: int, **values: Any) -> None:
    connection.execute(sa.update(files).where(files.c.id == file_id).values(**values))


def _carry_over(connection: sa.Connection, file_id: int, item: Item) -> None:
    """What was heard in the file with the old tags is what is to be heard in it now."""
    for service in OWED_TASKS.keys() & HEARD:
        before, after = version_for(service, item.sha256_before), version_for(service, item.sha256)
        same = (results.c.service == service, results.c.version == before, results.c.outcome.in_(FOUND))
        found = connection.execute(sa.select(results).where(*same).order_by(results.c.token.desc()).limit(1)).first()
        if found is not None:
            # No work was done for it, so no time counts as spent.
            row = {**found._mapping, "record_id": str(file_id), "version": after, "started_at": 0.0, "finished_at": 0.0}
            connection.execute(insert(results).values(row).on_conflict_do_nothing())
