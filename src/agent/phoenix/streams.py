"""What stands in a service's stream: an entry's fields, what they mean, and why some are refused.

An entry of `phoenix:<service>:input` has the fields

    record_id   which record: 1 to 1024 characters of UTF-8. One record has one job at a time.
    user_id     for whom, and at whose cost: the same.
    data        optional: a JSON object, what the service shall know.
    version     optional: what the result will stand for, 1 to 200 visible ASCII characters without quotes or
                backslashes. Without it: a hash of user and data. A version that is done does not run again.
    any other   one more item of data, as text; what `data` says of the same name counts.

Nothing else is asked of a producer: `XADD phoenix:router:input * record_id r1 user_id u1 url https://...` will do.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.phoenix.outbox import MAX_NAME, is_name

if TYPE_CHECKING:
    from saq.job import Job

    from agent.phoenix.runs import Run

NAMES = ("record_id", "user_id", "data", "version")
VERSION = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
META = ("stream", "entry")
"""What a job's `meta` says of the entry of which it was made."""

STREAM_IN_TEXT = b'"stream": "phoenix:'
"""How the same looks in a stored job that nobody can decode."""


class BadEntry(Exception):
    """No job can be made of an entry; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """What an entry asks for."""

    record_id: str
    user_id: str
    data: dict[str, Any]
    version: str


def decoded(fields: Sequence[bytes]) -> StreamEntry:
    """An entry from its fields and values, in turn, as the server tells them. Raises BadEntry."""
    said: dict[str, str] = {}
    for field, value in zip(fields[::2], fields[1::2], strict=True):
        try:
            named, text = field.decode("utf-8"), value.decode("utf-8")
        except UnicodeDecodeError:
            raise BadEntry(f"its field {field.decode('utf-8', 'replace')[:100]} is not UTF-8") from None
        if named in said:
            raise BadEntry(f"its field {named[:100]} stands there twice")
        said[named] = text
    for name in ("record_id", "user_id"):
        if not is_name(said.get(name, "")):
            raise BadEntry(f"{name} must be there, with 1 to {MAX_NAME} characters of text")
    flat = {name: text for name, text in said.items() if name not in NAMES}
    data = flat | _object(said.get("data", "{}"))
    version = said.get("version") or version_of(said["user_id"], data)
    if not VERSION.fullmatch(version):
        raise BadEntry("version must be 1 to 200 visible ASCII characters without quotes or backslashes")
    return StreamEntry(said["record_id"], said["user_id"], data, version)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise BadEntry(f"data is not JSON (RFC 8259): {error}") from None
    if not isinstance(found, dict):
        raise BadEntry(f"data must be a JSON object, not a {type(found).__name__}")
    return found


def version_of(user_id: str, data: Mapping[str, Any], pages: str = "") -> str:
    """SHA-256 of what a stage is given: equal for equal data, whatever its order."""
    text = json.dumps([user_id, data, pages], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fields_of_job(job: Job) -> dict[str, str]:
    """The fields of an entry that asks for the same as a job that was made of one."""
    arguments = job.kwargs or {}
    record_id = job.key.partition(":")[2]
    return {
        "record_id": record_id,
        "user_id": str(arguments.get("user_id", "")),
        "data": json.dumps(arguments.get("data", {})),
        "version": str(arguments.get("version", "")),
    }


def as_text(fields: Sequence[bytes]) -> dict[str, str]:
    """Fields as JSON can hold them, whatever bytes they are; `as_fields` gives them back to the letter."""
    text = [part.decode("utf-8", "surrogateescape") for part in fields]
    return dict(zip(text[::2], text[1::2], strict=True))


def as_fields(said: Mapping[str, str]) -> list[bytes]:
    """Fields and values in turn, for XADD."""
    return [part.encode("utf-8", "surrogateescape") for pair in said.items() for part in pair]


def came_from_stream(run: Run) -> bool:
    """Whether a run's job was made of a stream's entry."""
    if run.job is None:
        return STREAM_IN_TEXT in run.text
    meta = run.job.meta
    return bool(meta) and isinstance(meta, dict) and all(isinstance(meta.get(name), str) for name in META)


def progress_message(
    service: str, record_id: str, state: str, *, progress: float | None = None, note: str = "", at: float | None = None
) -> str:
    """What is published of a record: JSON. `state` is queued, running, or how its run ended; `at` Unix seconds."""
    when = round(time.time() if at is None else at, 3)
    said: dict[str, Any] = {"service": service, "record_id": record_id, "state": state, "at": when}
    if progress is not None:
        said["progress"] = progress
    if note:
        said["note"] = note
    return json.dumps(said)
