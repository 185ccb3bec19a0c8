"""Base models of what goes into a task and what comes out, and how paths travel.

File names are bytes on Linux: they travel percent-encoded (RFC 3986 unreserved characters and `/` stay readable),
so that names which are not UTF-8, or hold newlines, survive JSON, Redis and SQLite and find the same file again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Outcome = Literal["done", "partial", "rejected", "skipped"]


def encode_path(path: str | bytes | os.PathLike[str]) -> str:
    """Percent-encode the bytes of a path: `/music/a b.mp3` -> `/music/a%20b.mp3`."""
    return quote_from_bytes(os.fsencode(path), safe="/")


def decode_path(encoded: str) -> Path:
    """The same file again, whatever its bytes. Raises ValueError for a lone surrogate, which nothing encoded holds."""
    return Path(os.fsdecode(unquote_to_bytes(encoded)))


def display_path(encoded: str) -> str:
    """For people: UTF-8 where it is, replacement characters where not, no control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text_path(encoded))


def text_path(encoded: str) -> str:
    """For programs that take text: the name itself, with all of its characters; only where it is not UTF-8 it has
    replacement characters, and no text could find the file."""
    return unquote_to_bytes(encoded.encode("utf-8", "replace")).decode("utf-8", "replace")


def _plain_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ValueError("must be an http:// or https:// address without user, password and query")
    return value.rstrip("/")


PlainAddress = Annotated[str, AfterValidator(_plain_address)]
"""An http(s) address that may be shown: without user, password and query."""


class Payload(BaseModel):
    """What goes into a task. Unknown fields are left out (the engine warns of them): a newer producer may send more."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: str
    """What the result will stand for: for a file its sha256 plus the profile, else a hash of the request."""


class FilePayload(Payload):
    """A task about one file."""

    path: str
    """Percent-encoded absolute path (`encode_path`)."""
    size: int = Field(ge=0)
    """Bytes, as scanned; time-outs scale with it."""
    mtime_ns: int = 0
    """Modification time as scanned, nanoseconds since 1970; 0: not known."""
    root: str = ""
    """Percent-encoded folder below which the file was found: while it is there, a missing file is gone for good."""


class TaskResult(BaseModel):
    """What comes out of a task."""

    outcome: Outcome = "done"
    reason: str | None = None
    """Always given unless the outcome is `done`."""
