"""The index of all fingerprints, kept in line with the catalogue: what is new is added, what is gone is not found.

The catalogue is the truth; the index's folder (`prints` beside it) only spares a restart the work. One process writes
there, the hub's (index_process.py); a command reads it, and brings it up to date in its own memory.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from agent.hub.derived import PRINTS
from agent.hub.duplicates import Comparison, Read, Relative
from agent.hub.file_tasks import FINGERPRINT
from agent.hub.schema import files, results, state, tracks
from pipelines.music.duplicates import joined
from pipelines.music.postings import Items
from pipelines.music.print_index import PrintIndex
from pipelines.music.prints import PER_SECOND, REACH, decode_items
from pipelines.music.relations import SAME

BATCH = 50
"""Prints read from the catalogue at once."""

LOCK = "lock"
LOCK_WAIT = 10.0
"""Seconds for another writer to end; a killed hub's is about to."""


class Library:
    """`sync` until it says that nothing is left; then `comparison`, and `find` at any time."""

    def __init__(self, read: Read, folder: Path, *, read_only: bool) -> None:
        self._read = read
        self.index = PrintIndex(folder, read_only=read_only)
        self._read_only = read_only
        self._state: str | None = None
        self._todo: list[tuple[str, str, str]] = []
        self._files: dict[str, list[int]] = {}
        self._by_hash: dict[str, list[int]] = {}

    def sync(self, seconds: float = float("inf")) -> bool:
        """Work for about so long; True if there is more to do. Raises CatalogueUnavailable, OSError."""
        until = time.monotonic() + seconds
        if not self._todo:
            self._list()
        while self._todo and time.monotonic() < until:
            batch, self._todo = self._todo[:BATCH], self._todo[BATCH:]
            for name, items in self._prints(batch):
                self.index.admit(name, items)
            if not self._read_only and self.index.checkpoint_due:
                self.index.checkpoint()
        return bool(self._todo)

    @property
    def waiting(self) -> int:
        """Prints that are not in the index yet."""
        return len(self._todo)

    def _list(self) -> None:
        """Which prints there are now: one for each content, the newest result where there are several."""
        newest: dict[str, tuple[int, str]] = {}
        self._files, self._by_hash = {}, {}
        with self._read() as connection:
            self._state = connection.scalar(sa.select(state.c.value).where(state.c.name == PRINTS))
            rows = connection.execute(_LISTING).all()
        for row in rows:
            newest[row.print_version] = max((row.token, row.print_record), newest.get(row.print_version, (-1, "")))
        names = {version: f"{version}#{token}" for version, (token, _) in newest.items()}
        for row in rows:
            self._files.setdefault(names[row.print_version], []).append(row.file_id)
            self._by_hash.setdefault(row.sha256, []).append(row.file_id)
        self.index.retire(set(self.index) - self._files.keys())
        self._todo = [(name, newest[version][1], version) for version, name in names.items() if name not in self.index]

    def _prints(self, batch: list[tuple[str, str, str]]) -> Iterator[tuple[str, Items]]:
        with self._read() as connection:
            found = [
                connection.scalar(
                    sa.select(results.c.result).where(
                        results.c.service == FINGERPRINT, results.c.record_id == record, results.c.version == version
                    )
                )
                for _, record, version in batch
            ]
        for (name, _, _), text in zip(batch, found, strict=True):
            if text is not None:  # replaced meanwhile: the next listing knows its new name
                yield name, items_of(json.loads(text))

    # What it says.

    def comparison(self, seconds: float) -> Comparison:
        """The groups of files that are one recording, and what else prints have to do with each other."""
        shown = {name: [str(file_id) for file_id in sorted(ids)] for name, ids in self._files.items()}
        pairs = [(str(ids[0]), str(other)) for ids in self._by_hash.values() for other in ids[1:]]
        related = []
        for link in self.index.links:
            one, other = (shown.get(self.index.name(track)) for track in (link.one, link.other))
            if not one or not other:
                continue
            if link.kind == SAME:
                pairs.append((one[0], other[0]))
                continue
            sizes = self.index.size(link.one), self.index.size(link.other)
            whole, part = (one, other) if sizes[0] >= sizes[1] else (other, one)
            tempo = link.tempo if part is one else round(1 / link.tempo, 3)
            related.append(
                Relative(
                    link.kind,
                    int(part[0]),
                    int(whole[0]),
                    tempo,
                    link.ber,
                    round(link.begin / PER_SECOND, 1),
                    round((link.begin + link.overlap) / PER_SECOND + REACH, 1),
                )
            )
        groups = sorted(sorted(map(int, group)) for group in joined(pairs))
        labels = {str(file_id): f"d{number}" for number, group in enumerate(groups, 1) for file_id in group}
        return Comparison(labels, self._state, seconds, _once(related, labels))

    def file_of(self, sha256: str) -> str:
        """The id of a file with this content; empty if there is none."""
        return str(min(self._by_hash.get(sha256, [0])) or "")

    def find(self, items: Items) -> list[dict[str, Any]]:
        """Where files of the library occur in this sound (`pipelines.music.live_set.Heard`, as JSON), in order."""
        if not self._files and not self._todo:
            self._list()
        found = []
        for span in self.index.find(items):
            ids = self._files.get(self.index.name(span.track))
            if ids:
                found.append(
                    {
                        "file_id": min(ids),
                        "start": round(span.start / PER_SECOND, 2),
                        "end": round(span.end / PER_SECOND + REACH, 2),
                        "begin": round(span.begin / PER_SECOND, 2),
                        "finish": round(span.finish / PER_SECOND + REACH, 2),
                        "length": round(self.index.size(span.track) / PER_SECOND + REACH, 2),
                        "ber": round(span.ber, 4),
                    }
                )
        return found


def _once(related: Iterable[Relative], labels: Mapping[str, str]) -> list[Relative]:
    """One of all that say the same about two recordings, the surest: each may be there in several files."""
    found: dict[tuple[str, str, str], Relative] = {}
    for pair in related:
        ends = [labels.get(str(file_id), str(file_id)) for file_id in (pair.file_id, pair.of)]
        key = (pair.kind, ends[0], ends[1])
        if ends[0] != ends[1] and (key not in found or pair.ber < found[key].ber):
            found[key] = pair
    return list(found.values())


def items_of(result: Mapping[str, object]) -> Items:
    """The raw fingerprint, or nothing where an agent sent something else."""
    raw = result.get("raw")
    try:
        return np.array(decode_items(raw), dtype=np.uint32) if isinstance(raw, str) else np.empty(0, dtype=np.uint32)
    except ValueError:
        return np.empty(0, dtype=np.uint32)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder against other writers. Raises OSError where one does not end."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LOCK_WAIT
    with (folder / LOCK).open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError(f"{folder} is written by another process; end the other hub") from None
                time.sleep(0.05)
        yield


def compare(read: Read, folder: Path) -> Comparison:
    """Everything compared in this process, without writing anything."""
    started = time.monotonic()
    library = Library(read, folder, read_only=True)
    while library.sync():
        pass
    return library.comparison(time.monotonic() - started)


_LISTING = (
    sa.select(tracks.c.file_id, files.c.sha256, tracks.c.print_record, tracks.c.print_version, results.c.token)
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
