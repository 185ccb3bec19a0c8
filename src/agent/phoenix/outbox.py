"""The outbox: results wait in Redis until the control plane has acknowledged them.

Writing an entry belongs to settling a job; delivering it is the relay's. Nothing else reports a result.
Key: `phoenix:outbox:<queue name>`, a stream with one field, `entry`, the JSON of an `Entry`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from pipelines.payload import Outcome

ENTRY_FIELD = b"entry"

ENDED_ITS_PROCESS = "it ended its process"
"""Begins the reason for which a job is set aside whose worker died too often. Whether the job was at fault or whoever
killed the workers, nobody knows."""


class Usage(BaseModel):
    """What one call to a model came to, and who paid for it."""

    model_config = ConfigDict(extra="ignore")

    user: str
    """The user's name in keys (`keys.user_name`); empty where no user is named."""
    model: str = ""
    prompt_tokens: int
    completion_tokens: int


class Entry(BaseModel):
    """One result, or one part of a result too large for one piece, on its way to the catalogue."""

    model_config = ConfigDict(extra="ignore")

    service: str
    """The task's name."""
    record_id: str
    version: str
    token: int
    """Fencing token of the run: the catalogue refuses a lower one for the same record and version."""
    part: int | None = None
    """0, 1, 2 ... for parts, in order; None for the result itself, which comes last. Usage is counted apart."""
    usage: Usage | None = None
    """What a run has spent, in its call number `part`; then the entry is no result, and `result` is empty."""
    outcome: Outcome
    reason: str | None = None
    result: dict[str, Any]
    """The result model as JSON."""
    worker: str = ""
    attempts: int = 1
    started_at: float = 0.0
    """Unix time in seconds."""
    finished_at: float = 0.0


MAX_NAME = 1024
"""Characters of a service, a record id or a version that the catalogue keeps."""

MAX_ENTRY = 15 * 2**20
"""Bytes of one entry: the hub takes no request body of more than 16 MiB. Larger results go in parts."""


def is_name(value: str) -> bool:
    """Whether the catalogue can keep it as a service, a record id or a version."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return 0 < len(value) <= MAX_NAME and "\0" not in value


def outbox_key(queue: str) -> str:
    """`phoenix:outbox:<queue name>`: what the relay of that queue's workers still has to deliver, oldest first."""
    return f"phoenix:outbox:{queue}"


def refused_key(queue: str) -> str:
    """`phoenix:outbox-refused:<queue name>`: entries that the control plane would not take, with its reason."""
    return f"phoenix:outbox-refused:{queue}"


def relay_key(queue: str) -> str:
    """`phoenix:relay:<queue name>`: which worker's relay delivers that queue's outbox; it ends by itself."""
    return f"phoenix:relay:{queue}"
