"""The index over a library's prints: which prints, or parts of prints, does this sound occur in?

    index = PrintIndex(folder)                    # or in memory only
    index.admit("some name", items)               # -> how it relates to what was there
    index.find(items)                             # -> [Span, ...]: a clip, a track, a whole set
    index.checkpoint()                            # now and then: a restart begins there

Numpy, no queue, no catalogue. Measured (make bench-prints): see benchmarks/RESULTS-PRINTS.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from pipelines.music import print_store
from pipelines.music.postings import Batch, Found, Items, Numbers, sample
from pipelines.music.print_store import Damaged, Saved
from pipelines.music.prints import is_telling
from pipelines.music.relations import Link, relation
from pipelines.music.tracing import (
    HOP,
    MANY,
    SEGMENT,
    VOTES,
    Line,
    Span,
    chain,
    diagonals,
    distinct,
    drawn_out,
    line_through,
    may_be_one_line,
    stretch_along,
    votes,
)

BLOCK = 100 * HOP
"""Items of a query that are looked up at once (50 minutes): bounds the memory that a set of twelve hours takes."""

MOST = 1 << 32
"""Items of all prints together: a place on the tape is a uint32. Two million tracks of four minutes."""

WHOLE = 0.9
"""Share of a query that one stretch of a print covers when there is nothing more to look for in that print."""

GROWTH = 1 / 16
"""Share of new prints after which a checkpoint is due: bounds both what a restart reads again and what is in memory."""

FEWEST = 500
"""New prints below which none is due."""

WASTE = 0.2
"""Share of prints of files that are gone, after which a checkpoint leaves them out."""


class PrintIndex:
    """Names and their prints. One thread at a time; one process at a time that writes to `folder`."""

    def __init__(self, folder: Path | None = None, *, read_only: bool = False) -> None:
        """Continue from the last checkpoint in `folder`; what is damaged there is deleted, and `damage` says why."""
        self._folder = folder
        self._read_only = read_only
        self.damage: str | None = None
        self._clear()
        if folder is None:
            return
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            saved = print_store.load(folder, verify=not read_only)
        except Damaged as error:
            self.damage, saved = str(error), None
            if not read_only:
                print_store.sweep(folder)
        if saved is not None:
            self._take(saved)

    def _clear(self) -> None:
        self._saved: Saved | None = None
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._bounds: Numbers = np.zeros(1024, dtype=np.int64)
        self._new: list[Items] = []
        self._batches: list[Batch] = []
        self._dead: set[int] = set()
        self._links: list[Link] = []

    def _take(self, saved: Saved) -> None:
        """Begin with a checkpoint; nothing else is held."""
        links = [Link(*link) for link in saved.links]
        self._clear()
        self._saved, self._links = saved, links
        self._names = list(saved.names)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._bounds = np.append(saved.bounds, np.zeros(1024, dtype=np.int64))

    # What it holds.

    def __len__(self) -> int:
        return len(self._names) - len(self._dead)

    @property
    def admitted(self) -> int:
        """How many were ever taken in; what was retired counts."""
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return self._numbers.get(name, -1) >= 0 and self._numbers[name] not in self._dead

    def __iter__(self) -> Iterator[str]:
        return (name for number, name in enumerate(self._names) if number not in self._dead)

    def name(self, track: int) -> str:
        """The name of a span's print."""
        return self._names[track]

    def items(self, track: int) -> Items:
        """A print, shape (n,)."""
        begin, end = int(self._bounds[track]), int(self._bounds[track + 1])
        before = 0 if self._saved is None else len(self._saved.names)
        if track < before:
            assert self._saved is not None
            return np.asarray(self._saved.tape[begin:end])
        return self._new[track - before]

    def size(self, track: int) -> int:
        """Items of a print."""
        return int(self._bounds[track + 1] - self._bounds[track])

    @property
    def links(self) -> list[Link]:
        """How the prints relate to each other, as far as both are there."""
        return [link for link in self._links if link.one not in self._dead and link.other not in self._dead]

    # What comes in.

    def admit(self, name: str, items: Items) -> list[Link]:
        """Add a print and tell how it relates to those before it. A known name is left as it is: nothing new.

        A print too short or too monotonous to tell apart is known by name and never found.
        """
        if name in self._numbers:
            self._dead.discard(self._numbers[name])
            return []
        items = np.ascontiguousarray(items, dtype=np.uint32)
        if not is_telling(items.tolist()):
            items = items[:0]
        spans = self.find(items)
        number = self.add(name, items)
        by_track: dict[int, list[Span]] = {}
        for span in spans:
            by_track.setdefault(span.track, []).append(span)
        found = [relation(number, items.size, track, self.size(track), own) for track, own in by_track.items()]
        links = [link for link in found if link is not None]
        self._links += links
        return links

    def add(self, name: str, items: Items) -> int:
        """Add a new print without looking for its relations; its number."""
        number = len(self._names)
        if number + 2 > self._bounds.size:
            self._bounds = np.append(self._bounds, np.zeros_like(self._bounds))
        begin = int(self._bounds[number])
        if begin + items.size > MOST:
            raise OverflowError(f"the index is full with {number:,} prints; split the library over several hubs")
        self._bounds[number + 1] = begin + items.size
        self._names.append(name)
        self._numbers[name] = number
        self._new.append(items)
        where, keys = sample(items)
        batch = Batch(keys, (where + begin).astype(np.uint32))
        # As in a binary counter, equals are merged: few batches to ask, and each posting is sorted a few times only.
        while self._batches and self._batches[-1].keys.size <= batch.keys.size:
            batch = self._batches.pop() + batch
        self._batches.append(batch)
        return number

    def retire(self, names: Iterable[str]) -> None:
        """These are not found any more; admitted again, they are."""
        self._dead |= {self._numbers[name] for name in names if name in self._numbers}

    # What is asked.

    def find(self, items: Items) -> list[Span]:
        """Every stretch of `items` that is a stretch of some print, at 92 to 108 % of its tempo, in order."""
        items = np.ascontiguousarray(items, dtype=np.uint32)
        found: list[Span] = []
        for start in range(0, max(items.size, 1), BLOCK):  # each segment that begins in the block lies within
            block = items[start : start + BLOCK + HOP]
            found += [replace(span, start=span.start + start, end=span.end + start) for span in self._find(block)]
        return [drawn_out(span, items, self.items(span.track)) for span in distinct(chain(found))]

    def _find(self, items: Items) -> list[Span]:
        positions, keys = sample(items)
        hits = self._look(keys)
        starts = self._bounds[: len(self._names)]
        found = self._straight(items, positions, hits)
        hits = self._without_the_whole(found, hits, items.size)
        settled = {
            (segment, span.track)
            for span in found
            for segment in range(-(-span.start // HOP), (span.end - HOP - 1) // HOP + 1)
        }
        for segment, query, place in votes(positions, hits):
            likely = int(np.searchsorted(starts, place[place.size // 2], "right")) - 1
            if (segment, likely) in settled:
                continue
            owners = np.searchsorted(starts, place, "right") - 1
            several = owners.min() != owners.max()
            for track in np.unique(owners).tolist() if several else owners[:1].tolist():
                mine = owners == track
                if np.count_nonzero(mine) < VOTES or track in self._dead or (segment, track) in settled:
                    continue
                here, there = query[mine], place[mine] - starts[track]
                if here.size == VOTES and not may_be_one_line(here, there):
                    continue
                line = line_through(here, there, segment * HOP + HOP)
                if line.hits < VOTES:
                    continue
                low = segment * HOP
                span = stretch_along(items, track, self.items(track), line, low, low + SEGMENT)
                if span is not None:
                    settled.add((segment, track))
                    found.append(span)
        return found

    def _straight(self, items: Items, positions: Numbers, hits: Found) -> list[Span]:
        """What most copies need: one print along one diagonal, compared at once."""
        found: list[Span] = []
        whole: set[int] = set()
        for distance, place in diagonals(positions, hits):
            track = int(np.searchsorted(self._bounds[: len(self._names)], place, "right")) - 1
            if track not in self._dead and track not in whole:
                line = Line(1.0, float(distance - self._bounds[track]), 0, MANY)
                if (span := stretch_along(items, track, self.items(track), line)) is not None:
                    found.append(span)
                    if span.end - span.start >= WHOLE * items.size:
                        whole.add(track)  # what lies beside its diagonal is the same sound, an item off
        return distinct(found)

    def _without_the_whole(self, found: Sequence[Span], hits: Found, size: int) -> Found:
        """The hits without those on prints that cover the whole query: there is no more to say of them."""
        left = np.ones(hits.place.size, dtype=bool)
        for span in found:
            if span.end - span.start >= WHOLE * size:
                begin, end = self._bounds[span.track : span.track + 2]
                left &= (hits.place < begin) | (hits.place >= end)
        return hits if left.all() else Found(hits.which[left], hits.place[left])

    def _look(self, keys: Items) -> Found:
        parts = [batch.look(keys) for batch in self._batches]
        if self._saved is not None:
            parts.append(self._saved.base.look(keys))
        if not parts:
            return Found(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        return Found(np.concatenate([part.which for part in parts]), np.concatenate([part.place for part in parts]))

    # The disk.

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough is new to be written."""
        return len(self._new) >= max(FEWEST, GROWTH * (len(self._names) - len(self._new)))

    def checkpoint(self) -> None:
        """Write everything; a killed writer leaves the last checkpoint. Raises OSError, and then nothing changed."""
        assert self._folder is not None, "an index in memory has no checkpoints"
        assert not self._read_only, "an index that is open for reading writes nothing"
        if len(self._dead) > WASTE * len(self._names):
            self._compact()
        elif self._new:
            self._take(print_store.save(self._folder, self._saved, self._names, self._new, self._links))

    def _compact(self) -> None:
        assert self._folder is not None
        live = [number for number in range(len(self._names)) if number not in self._dead]
        moved = {number: place for place, number in enumerate(live)}
        links = [link._replace(one=moved[link.one], other=moved[link.other]) for link in self.links]
        names = [self._names[number] for number in live]
        self._take(print_store.save(self._folder, None, names, _Prints(self, live), links))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()


class _Prints(Sequence[Items]):
    """Some prints of an index, read one at a time."""

    def __init__(self, index: PrintIndex, numbers: list[int]) -> None:
        self._index, self._wanted = index, numbers

    def __len__(self) -> int:
        return len(self._wanted)

    def __getitem__(self, place: int) -> Items:  # type: ignore[override]  # no slices are asked for
        return self._index.items(self._wanted[place])
