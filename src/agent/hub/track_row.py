"""One track for people, out of one file's results: cleaned of whatever a tag or a file name may carry."""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from agent.hub.file_tasks import ANALYSIS, FINGERPRINT, FOUND, METADATA
from pipelines.payload import display_path

MAX_TEXT = 500
"""Characters of a tag that are shown; tags can be books."""

SHAPE = "1"
"""Changes whenever `track_row` would answer differently for the same results."""


def printable(value: object) -> str | None:
    """Text without control, format and surrogate characters; None for what is not text or is blank."""
    if not isinstance(value, str):
        return None
    text = "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in value)
    return " ".join(text.split())[:MAX_TEXT] or None


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def track_row(file_id: int, path: str, results: Mapping[str, sa.Row[Any]]) -> dict[str, Any]:
    """The columns of `schema.tracks`. `results`: service -> the row that settles it, where there is one."""
    said = {service: _document(row.result) for service, row in results.items()}
    analysis, tags, print_ = (said.get(service, {}) for service in (ANALYSIS, METADATA, FINGERPRINT))
    shown = display_path(path)
    artist, album = printable(tags.get("artist")), printable(tags.get("album"))
    title = printable(tags.get("title")) or posixpath.basename(shown) or shown
    problems = [
        {"service": service, "outcome": row.outcome, "reason": printable(row.reason) or row.outcome}
        for service, row in results.items()
        if row.outcome != "done"
    ]
    print_row = results.get(FINGERPRINT)
    if print_row is not None and print_row.outcome not in FOUND:
        print_row = None
    durations = (number(source.get("duration")) for source in (analysis, tags, print_))
    return {
        "file_id": file_id,
        "path": shown,
        "artist": artist,
        "title": title,
        "duration": next((seconds for seconds in durations if seconds is not None), None),
        **{name: number(analysis.get(name)) for name in ("bpm", "bpm_confidence", "loudness", "danceability")},
        **{name: printable(analysis.get(name)) for name in ("key", "scale", "camelot")},
        "metadata_outcome": _outcome(results, METADATA),
        "fingerprint_outcome": _outcome(results, FINGERPRINT),
        "analysis_outcome": _outcome(results, ANALYSIS),
        "print_record": None if print_row is None else print_row.record_id,
        "print_version": None if print_row is None else print_row.version,
        "problems": json.dumps(problems),
        "has_problem": bool(problems),
        "search": " ".join(filter(None, (artist, title, album, shown))).casefold(),
    }


def _outcome(results: Mapping[str, sa.Row[Any]], service: str) -> str | None:
    row = results.get(service)
    return None if row is None else str(row.outcome)


def _document(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
