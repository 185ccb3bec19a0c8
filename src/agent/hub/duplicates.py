"""Groups of files that sound the same, kept until a fingerprint changes.

Comparing takes minutes of processor time for tens of thousands of tracks: the hub has it done in another process
(comparing.py), a command in its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa

from agent.hub.derived import PRINTS
from agent.hub.file_tasks import FINGERPRINT
from agent.hub.schema import files, results, state, tracks

REST = 10.0
"""Comparing may take a tenth of the time: it rests for this many times what it took last."""


@dataclass(frozen=True)
class Print:
    """What comparing needs of one file (`pipelines.music.prints.PrintLike`)."""

    sha256: str
    raw: str
    """Base64 of little-endian uint32; empty where there is no fingerprint."""


Read = Callable[[], AbstractContextManager[sa.Connection]]


@dataclass(frozen=True)
class Comparison:
    """What comparing all fingerprints found."""

    labels: Mapping[str, str]
    """File id (as text) -> `d1`, `d2`, ...; files alone are left out."""
    state: str | None
    """Names the fingerprints that were compared."""
    seconds: float


class DuplicateGroups:
    """`labels` answers at once; they are as of the last comparison that was taken."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._comparing = threading.Lock()
        self._compared: str | None = None
        self._rest_until = 0.0
        self.labels: Mapping[str, str] = {}

    def due(self, *, at_once: bool = False) -> bool:
        """Whether a fingerprint changed since; during a rest only if `at_once`."""
        if not at_once and time.monotonic() < self._rest_until:
            return False
        with self._read() as connection:
            return _state(connection) != self._compared

    def take(self, comparison: Comparison) -> None:
        """These are the groups now."""
        self.labels, self._compared = comparison.labels, comparison.state
        self.rest(comparison.seconds)

    def rest(self, seconds: float) -> None:
        """A comparison took so long, and the next one is not due for a while."""
        self._rest_until = time.monotonic() + REST * seconds

    def compare(self, *, at_once: bool = False) -> None:
        """Bring the labels up to date in this thread, if they are due."""
        with self._comparing:
            if self.due(at_once=at_once):
                self.take(compare(self._read))


def compare(read: Read) -> Comparison:
    """Compare all fingerprints. The catalogue is held open for the time of reading them only."""
    started = time.monotonic()
    with read() as connection:
        named, prints = _state(connection), _prints(connection)
    labels = label(prints)
    return Comparison(labels, named, time.monotonic() - started)


def label(prints: Mapping[str, Print]) -> dict[str, str]:
    """Name the groups `d1`, `d2`, ... in the order of their first file."""
    from pipelines.music.fingerprint import duplicate_groups

    groups = sorted(sorted(group, key=int) for group in duplicate_groups(prints))
    groups.sort(key=lambda group: int(group[0]))
    return {file_id: f"d{number}" for number, group in enumerate(groups, 1) for file_id in group}


def _state(connection: sa.Connection) -> str | None:
    return connection.scalar(sa.select(state.c.value).where(state.c.name == PRINTS))


def _prints(connection: sa.Connection) -> dict[str, Print]:
    query = (
        sa.select(tracks.c.file_id, files.c.sha256, results.c.result)
        .join(files, files.c.id == tracks.c.file_id)
        .join(
            results,
            sa.and_(
                results.c.service == FINGERPRINT,
                results.c.record_id == tracks.c.print_record,
                results.c.version == tracks.c.print_version,
            ),
        )
        .order_by(tracks.c.file_id)
    )
    return {str(row.file_id): Print(row.sha256, _sane(json.loads(row.result))) for row in connection.execute(query)}


def _sane(result: Mapping[str, object]) -> str:
    """The raw fingerprint, or nothing where an agent sent something else."""
    from pipelines.music.prints import decode_items

    raw = result.get("raw")
    try:
        return raw if isinstance(raw, str) and decode_items(raw) else ""
    except ValueError:
        return ""
