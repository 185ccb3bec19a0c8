"""Other fingerprint engines beside our own, behind one Protocol, and trusted only as far as they answer.

An engine that acknowledges what it does not store looks healthy for years (11,180 failures under a green health check,
19 stored of 11,411 reported). So `ingest_checked` asks for what was just stored, by a piece of the same sound.

    the engine is away, busy, broken, or does not find what it took    EngineDown: retried, and the circuit counts it
    the engine says that this file is at fault                        InputRejected: never retried
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from pipelines.music.prints import PER_SECOND, decode_items

PIECE = 20.0
"""Seconds of a file by which it is asked for."""


class EngineDown(ConnectionError):
    """The engine does not do its work; says what it answered. No fault of the file."""


class NotStored(EngineDown):
    """The engine acknowledged a file and does not find it."""


class EngineMatch(NamedTuple):
    """One item that an engine hears; `score` by its own measure, `offset` in seconds into the item (None: not said)."""

    item: str
    score: float
    offset: float | None


class FingerprintEngine(Protocol):
    """What stores sounds under a name and finds them again. Each call is bounded; EngineDown is an outage."""

    @property
    def name(self) -> str:
        """As operators know it."""

    async def health(self) -> int:
        """How many items it holds. Raises EngineDown."""

    async def ingest(self, item: str, path: Path) -> int:
        """Store the sound of a file under a name (again: in place of what was there); how many hashes it made.

        Raises EngineDown, InputRejected.
        """

    async def query(self, path: Path, start: float = 0.0, seconds: float | None = None) -> list[EngineMatch]:
        """What is heard in `seconds` of a file from `start` on, the surest first. Raises EngineDown, InputRejected."""

    async def close(self) -> None:
        """Let go of connections."""


async def ingest_checked(engine: FingerprintEngine, item: str, path: Path, duration: float | None = None) -> int:
    """Store a file and read it back by a piece out of its middle (by all of it where `duration` is not known).

    Returns the hashes that were made. Raises NotStored, EngineDown, InputRejected.
    """
    hashes = await engine.ingest(item, path)
    if hashes <= 0:
        raise NotStored(f"{engine.name} acknowledged {item} with no hash at all")
    piece = None if duration is None else min(PIECE, duration)
    start = 0.0 if duration is None or piece is None else (duration - piece) / 2
    found = await engine.query(path, start, piece)
    if item not in (match.item for match in found):
        raise NotStored(f"{engine.name} acknowledged {item} and does not find it: look at its log and its disk")
    return hashes


class ChromaprintEngine:
    """Our own fingerprints and index behind the same Protocol, in memory, for scripts. Imports numpy."""

    name = "chromaprint"

    def __init__(self) -> None:
        from pipelines.music.print_index import PrintIndex

        self.index = PrintIndex()
        self._held: dict[str, str] = {}
        """Item -> its name in the index, which takes a name only once."""

    async def health(self) -> int:
        """Never down: it is here."""
        return len(self.index)

    async def ingest(self, item: str, path: Path) -> int:
        """Items of the fingerprint."""
        items = await self._items(path)
        if not items:
            return 0
        import numpy as np

        self.index.retire([self._held.get(item, "")])
        name = self._held[item] = f"{self.index.admitted} {item}"
        self.index.admit(name, np.array(items, dtype=np.uint32))
        return len(items)

    async def query(self, path: Path, start: float = 0.0, seconds: float | None = None) -> list[EngineMatch]:
        """`score`: 1 - bit error rate."""
        import numpy as np

        items = await self._items(path)
        first = round(start * PER_SECOND)
        last = len(items) if seconds is None else first + round(seconds * PER_SECOND)
        spans = self.index.find(np.array(items[first:last], dtype=np.uint32))
        names = [self.index.name(span.track).partition(" ")[2] for span in spans]
        found = [
            EngineMatch(name, 1 - span.ber, span.begin / PER_SECOND) for name, span in zip(names, spans, strict=True)
        ]
        return sorted(found, key=lambda match: -match.score)

    async def _items(self, path: Path) -> list[int]:
        import asyncio

        from pipelines.music.fingerprint import fingerprint

        return list(decode_items((await asyncio.to_thread(fingerprint, path)).raw))

    async def close(self) -> None:
        """Nothing is held."""
