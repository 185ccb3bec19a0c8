"""Entries as agents deliver them."""

from __future__ import annotations

import hashlib
from typing import Any

from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import version_for
from agent.phoenix.outbox import Entry

AGENT = "local"
TOKEN = "a-token"


def sha(name: str) -> str:
    """A content hash that differs by name."""
    return hashlib.sha256(name.encode()).hexdigest()


def seen(path: str, content: str | None = None, size: int = 1000) -> dict[str, Any]:
    """One file of a scan part; its content is its path unless said otherwise."""
    return {"path": path, "size": size, "mtime_ns": 1, "sha256": sha(content or path)}


def part(scan: str, files: list[dict[str, Any]], *, number: int = 0, token: int = 1) -> Entry:
    """One part of a scan."""
    return Entry(
        service="scan_directory",
        record_id=scan,
        version=scan,
        token=token,
        part=number,
        outcome="done",
        result={"files": files, "errors": []},
    )


def closing(scan: str, *, outcome: Any = "done", token: int = 1, **report: Any) -> Entry:
    """The end of a scan."""
    return Entry(
        service="scan_directory",
        record_id=scan,
        version=scan,
        token=token,
        outcome=outcome,
        reason=None if outcome == "done" else "errors",
        result=report,
    )


def result(service: str, record_id: int | str, content: str, *, token: int = 1, **fields: Any) -> Entry:
    """A result of a file task for a file with that content; fields of `Entry` are taken as such, others as result."""
    own = {name: fields.pop(name) for name in list(fields) if name in Entry.model_fields}
    return Entry(
        **{
            "service": service,
            "record_id": str(record_id),
            "version": own.get("version") or version_for(service, sha(content)),
            "token": token,
            "outcome": "done",
            "result": fields,
            **own,
        }
    )


def scan(catalogue: Catalogue, root: str, found: list[dict[str, Any]], *, agent: str = AGENT, **end: Any) -> str:
    """Request, report and close one scan; its id."""
    [scan_id] = catalogue.request_scans(agent, [root])
    parts = [part(scan_id, found[start : start + 500]) for start in range(0, len(found), 500)]
    for entry in [*parts, closing(scan_id, **{"files": len(found), **end})]:
        assert catalogue.record(agent, [entry]) == [None]
    return scan_id


def unread(*paths: str, count: int | None = None) -> dict[str, Any]:
    """What a scan's end says when these could not be read (`count`: how many there were in all)."""
    errors = [{"path": path, "reason": "permission-denied"} for path in paths]
    return {"outcome": "partial", "errors": errors, "error_count": len(errors) if count is None else count}


def owed(catalogue: Catalogue) -> set[tuple[str, str]]:
    """(service, record id) of all that is owed."""
    return set(catalogue.owed_versions(1_000_000))
