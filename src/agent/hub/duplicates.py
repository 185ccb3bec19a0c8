"""Groups of files that sound the same, kept until a fingerprint changes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa

from agent.hub.derived import PRINTS
from agent.hub.schema import files, results, state, tracks

REST = 10.0
"""Comparing may take a tenth of the time: it rests for this many times what it took last."""


@dataclass(frozen=True)
class Print:
    """What comparing needs of one file (`pipelines.music.prints.PrintLike`)."""

    sha256: str
    raw: str
    """Base64 of little-endian uint32; empty where there is no fingerprint."""


class DuplicateGroups:
    """`labels` answers at once; `compare` does the work, which takes minutes for tens of thousands of tracks."""

    def __init__(self, read: Callable[[], AbstractContextManager[sa.Connection]]) -> None:
        self._read = read
        self._comparing = threading.Lock()
        self._compared: str | None = None
        self._rest_until = 0.0
        self.labels: Mapping[str, str] = {}
        """File id (as text) -> `d1`, `d2`, ...; as of the last `compare`."""

    def compare(self, *, at_once: bool = False) -> None:
        """Bring the labels up to date if a fingerprint changed; during its rest only if `at_once`."""
        with self._comparing:
            if not at_once and time.monotonic() < self._rest_until:
                return
            with self._read() as connection:
                now = connection.scalar(sa.select(state.c.value).where(state.c.name == PRINTS))
                if now == self._compared:
                    return
                prints = _prints(connection)
            started = time.monotonic()
            self.labels = label(prints)
            self._compared = now
            self._rest_until = time.monotonic() + REST * (time.monotonic() - started)


def label(prints: Mapping[str, Print]) -> dict[str, str]:
    """Name the groups `d1`, `d2`, ... in the order of their first file."""
    from pipelines.music.fingerprint import duplicate_groups

    groups = sorted(sorted(group, key=int) for group in duplicate_groups(prints))
    groups.sort(key=lambda group: int(group[0]))
    return {file_id: f"d{number}" for number, group in enumerate(groups, 1) for file_id in group}


def _prints(connection: sa.Connection) -> dict[str, Print]:
    query = (
        sa.select(tracks.c.file_id, files.c.sha256, results.c.result)
        .join(files, files.c.id == tracks.c.file_id)
        .join(
            results,
            sa.and_(
                results.c.service == "fingerprint_file",
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
