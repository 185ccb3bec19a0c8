"""Documents and the lanes of a running `phaze up --documents`: handed in by their stream, shown from the catalogue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent.documents.reading import Document, is_address
from agent.errors import WrongUse
from agent.operator.hub import Hub
from agent.operator.server import run, server
from agent.phoenix import keys
from pipelines.documents.facts import Facts
from pipelines.payload import display_path, encode_path

if TYPE_CHECKING:
    from agent.settings import Settings

LOCAL = "local"
"""For whom documents are handed in, unless it is said."""

BATCH = 100
"""Entries that are written, or results that are asked for, at a time."""

MOST_NAMED = 20
"""Users, in a message."""


def entry_of(source: str, user: str) -> dict[str, str]:
    """What the stream is asked for: an address, or a file, whose content is its version. Raises OSError.

    One document for two users is two records: each is recorded, and shown, for its own.
    """
    if is_address(source):
        place = urlsplit(source)
        named, asked = place.hostname or "address", {"url": source}
        identity = place._replace(query="", fragment="", netloc=named).geturl()
    else:
        path = Path(source).absolute()
        identity, named = encode_path(path), display_path(encode_path(path.name))
        with path.open("rb") as file:
            asked = {"path": identity, "version": hashlib.file_digest(file, "sha256").hexdigest()}
    identity = identity if user == LOCAL else f"{user}\0{identity}"
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
    return {"record_id": f"{named[:200]}-{digest[:16]}", "user_id": user, **asked}


def send(settings: Settings, sources: Sequence[str], user: str) -> list[str]:
    """Ask for them; what could not be opened, with the reason. Raises UserError."""
    unread: list[str] = []

    def entries() -> Iterator[dict[str, str]]:
        for source in sources:
            try:
                yield entry_of(source, user)
            except OSError as error:
                unread.append(f"{source}: it cannot be opened: {error.strerror or error}")

    async def write() -> None:
        async with server(settings) as client:
            for some in _in_batches(entries()):
                async with client.pipeline(transaction=False) as pipe:
                    for entry in some:
                        fields: Any = entry
                        pipe.xadd(keys.stream_key("router"), fields)
                    await pipe.execute()

    if not 1 <= len(user) <= 1024:
        raise WrongUse("--user must be 1 to 1024 characters")
    run(write())
    return unread


def _in_batches(entries: Iterable[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    some: list[dict[str, str]] = []
    for entry in entries:
        some.append(entry)
        if len(some) == BATCH:
            yield some
            some = []
    if some:
        yield some


def recorded(settings: Settings, user: str | None = None) -> list[Document]:
    """The catalogue's documents of one user, as their last versions were recorded; what is rejected is of anybody.

    Raises UserError: also where no user is named and there are several, whose results are not to be in one table.
    """
    hub = Hub(settings)
    try:
        routed, parsed = (_last(hub, task) for task in ("router", "parser"))
    finally:
        hub.close()
    found = [_document(row, parsed.get(record)) for record, row in sorted(routed.items())]
    users = sorted({document.user for document in found if document.user is not None})
    if user is None and len(users) > 1:
        named = ", ".join(users[:MOST_NAMED]) + (", ..." if len(users) > MOST_NAMED else "")
        raise WrongUse(
            f"there are documents of {len(users)} users, who are not shown in one table; give --user ({named})"
        )
    return [document for document in found if user is None or document.user in (user, None)]


def _last(hub: Hub, task: str) -> dict[str, dict[str, Any]]:
    """record id -> the result that was recorded last."""
    found: dict[str, dict[str, Any]] = {}
    offset, more = 0, True
    while more:
        rows = hub.get(f"/api/results?task={task}&limit={BATCH}&offset={offset}")["results"]
        for row in rows:
            known = found.get(row["record_id"])
            if known is None or known["finished_at"] <= row["finished_at"]:
                found[row["record_id"]] = row
        offset, more = offset + len(rows), len(rows) == BATCH
    return found


def _document(row: dict[str, Any], parsed: dict[str, Any] | None) -> Document:
    data = row["result"].get("data") or {}
    document = Document(data.get("document") or row["record_id"], row["outcome"], row["reason"] or "")
    if row["outcome"] == "rejected":
        return document
    document.user, document.pages = data.get("user", LOCAL), data.get("pages", 0)
    if parsed is None or parsed["finished_at"] < row["finished_at"]:
        document.outcome, document.reason = "failed", "its pages are not parsed yet"
    elif parsed["outcome"] == "rejected":
        document.outcome, document.reason = "rejected", parsed["reason"] or ""
    else:
        if parsed["outcome"] == "partial":
            said = parsed["result"]["data"].get("warnings") or [parsed["reason"]]
            document.outcome, document.reason = "partial", "; ".join(filter(None, [document.reason, *said]))
        document.facts = Facts.model_validate_json(json.dumps(parsed["result"]["data"]["facts"]))
    return document
