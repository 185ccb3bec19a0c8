"""Groups of files that sound the same, kept until a fingerprint changes.

The first comparison takes minutes of processor time for tens of thousands of tracks: the hub has it done in another
process (index.py), a command in its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from agent.hub.derived import PRINTS
from agent.hub.schema import state

REST = 10.0
"""Comparing may take a tenth of the time: it rests for this many times what it took last."""


Read = Callable[[], AbstractContextManager[sa.Connection]]


class Relative(NamedTuple):
    """Two files that have to do with each other and are not one recording. Seconds."""

    kind: str
    """`tempo`: the same at another tempo, pitch kept; `part`: the one lies in the other."""
    file_id: int
    """The shorter one."""
    of: int
    """The longer one."""
    tempo: float
    """How fast the shorter one plays the longer one: 1.04 is 4 % faster."""
    ber: float
    """Bit error rate of the fingerprints, up to 0.30; other recordings start at 0.367."""
    start: float
    end: float
    """Where the shared sound lies in the longer one."""


@dataclass(frozen=True)
class Comparison:
    """What comparing all fingerprints found."""

    labels: Mapping[str, str]
    """File id (as text) -> `d1`, `d2`, ...; files alone are left out."""
    state: str | None
    """Names the fingerprints that were compared."""
    seconds: float
    relatives: Sequence[Relative] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Comparison:
        """From JSON."""
        relatives = [Relative(*row) for row in document["relatives"]]
        return cls(document["labels"], document["state"], document["seconds"], relatives)


class DuplicateGroups:
    """`labels` and `relatives` answer at once; they are as of the last comparison that was taken."""

    def __init__(self, read: Read, folder: Path) -> None:
        self._read = read
        self._folder = folder
        self._comparing = threading.Lock()
        self._compared: str | None = None
        self._rest_until = 0.0
        self.labels: Mapping[str, str] = {}
        self.relatives: Sequence[Relative] = ()

    def due(self, *, at_once: bool = False) -> bool:
        """Whether a fingerprint changed since; during a rest only if `at_once`."""
        if not at_once and time.monotonic() < self._rest_until:
            return False
        with self._read() as connection:
            return _state(connection) != self._compared

    def take(self, comparison: Comparison) -> None:
        """These are the groups now."""
        self.labels, self.relatives, self._compared = comparison.labels, comparison.relatives, comparison.state
        self.rest(comparison.seconds)

    def rest(self, seconds: float) -> None:
        """A comparison took so long, and the next one is not due for a while."""
        self._rest_until = time.monotonic() + REST * seconds

    def compare(self, *, at_once: bool = False) -> None:
        """Bring the labels up to date in this thread, if they are due."""
        with self._comparing:
            if self.due(at_once=at_once):
                from agent.hub.library import compare  # numpy, which a hub does not hold

                self.take(compare(self._read, self._folder))


def _state(connection: sa.Connection) -> str | None:
    return connection.scalar(sa.select(state.c.value).where(state.c.name == PRINTS))
