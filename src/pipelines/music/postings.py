"""Where each key of a library's prints stands: the inverted index under `print_index`, in numpy.

All prints of a library lie one after the other on one tape of items, so a posting is one uint32: a place on the tape.
`Base` is the whole tape at the last checkpoint, two files that are mapped and not read; `Batch` is what was added
since, sorted in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.uint32]
Places = NDArray[np.uint32]
Numbers = NDArray[np.int64]

KEY_BITS = 24
"""Top bits of an item that make its key: few enough that copies agree in full, enough to keep lists short."""

CROWD = 1000
"""Places of one key beyond which it says nothing: silence, a held note, a test tone."""

CHUNK = 1 << 21
"""Items that are sorted at once while a base is built: bounds memory."""

_KEYS = 1 << KEY_BITS
_HASH = np.uint32(2654435761)  # Knuth's multiplicative hash, 2^32 / golden ratio


class Found(NamedTuple):
    """Postings that were found: `which` of the keys asked for stands at `place` on the tape. Same shape (n,)."""

    which: Numbers
    place: Numbers


class Lookup(Protocol):
    """What a part of the index does."""

    def look(self, keys: Items) -> Found:
        """All places of all keys, crowded ones left out."""


def sample(items: Items, breaks: Sequence[int] | Numbers = (0,)) -> tuple[Numbers, Items]:
    """(positions, keys) that stand for a print: half of all keys, chosen by their value, so that copies choose alike.

    Repeats of a key in a row are taken once. `breaks`: positions where a new print begins.
    """
    keys = items >> np.uint32(32 - KEY_BITS)
    fresh = np.empty(keys.size, dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
    begins = np.asarray(breaks, dtype=np.int64)
    fresh[begins[begins < keys.size]] = True
    fresh &= (keys * _HASH) < np.uint32(1 << 31)
    where = np.flatnonzero(fresh)
    return where, keys[where]


class Batch:
    """Postings in memory, sorted by key: 8 bytes each."""

    def __init__(self, keys: Items, places: Places) -> None:
        order = np.argsort(keys, kind="stable")
        self.keys, self.places = keys[order], places[order]

    def look(self, keys: Items) -> Found:
        low = np.searchsorted(self.keys, keys, "left")
        return _expand(self.places, low, np.searchsorted(self.keys, keys, "right") - low)

    def __add__(self, other: Batch) -> Batch:
        return Batch(np.concatenate([self.keys, other.keys]), np.concatenate([self.places, other.places]))


def mapped(path: Path, count: int) -> Items:
    """The uint32 of a file, mapped; a plain array, because numpy's own class for it costs 20 us a look."""
    return np.asarray(np.memmap(path, dtype="<u4", mode="r", shape=(count,)))


class Base:
    """Postings in two mapped files: 4 bytes each, and 67 MB that say where each key's begin."""

    def __init__(self, heads: Path, places: Path) -> None:
        """Raises ValueError or OSError where the files are not what `build` wrote."""
        self._heads = mapped(heads, _KEYS + 1)
        count = int(self._heads[-1])
        if places.stat().st_size != 4 * max(count, 1):
            raise ValueError(f"{places} does not hold {count} places")
        self._places = mapped(places, max(count, 1))

    def look(self, keys: Items) -> Found:
        low = self._heads[keys].astype(np.int64)
        return _expand(self._places, low, self._heads[keys + np.uint32(1)] - low)


def build(tape: Path, bounds: Numbers, heads: Path, places: Path) -> None:
    """Write the two files of a Base for prints n = `bounds[n]` to `bounds[n + 1]` of a tape; 250 MB of memory."""
    counts = np.zeros(_KEYS + 1, dtype=np.uint32)  # of each key; shifted by one, sums become heads
    for keys, _ in _chunks(tape, bounds):
        unique, n = np.unique(keys, return_counts=True)
        counts[unique + np.uint32(1)] += n.astype(np.uint32)
    cursor = np.cumsum(counts, dtype=np.uint32, out=counts)
    total = int(cursor[-1])
    cursor.astype("<u4", copy=False).tofile(heads)
    with places.open("wb") as file:  # a full disk is an error here, and the end of the process in a mapped file
        os.posix_fallocate(file.fileno(), 0, 4 * max(total, 1))
    out = np.memmap(places, dtype="<u4", mode="r+", shape=(max(total, 1),))
    for keys, where in _chunks(tape, bounds):
        order = np.argsort(keys, kind="stable")
        unique, first, n = np.unique(keys[order], return_index=True, return_counts=True)
        rank = np.arange(keys.size) - np.repeat(first, n)
        out[np.repeat(cursor[unique], n) + rank] = where[order]
        cursor[unique] += n.astype(np.uint32)
    out.flush()


def _chunks(tape: Path, bounds: Numbers) -> Iterator[tuple[Items, Numbers]]:
    """(keys, places) of whole prints at a time."""
    first, count = 0, bounds.size - 1
    while first < count:
        begin = int(bounds[first])
        last = max(first + 1, int(np.searchsorted(bounds, begin + CHUNK, "right")) - 1)
        # Read, not mapped: pages of a mapped tape would pile up in memory.
        items = np.fromfile(tape, dtype="<u4", offset=4 * begin, count=int(bounds[last]) - begin)
        where, keys = sample(items, bounds[first:last] - begin)
        yield keys, where + begin
        first = last


def _expand(places: Places, low: Numbers, counts: Numbers) -> Found:
    counts = np.where(counts > CROWD, 0, counts)
    which = np.repeat(np.arange(counts.size), counts)
    inside = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return Found(which, places[np.repeat(low, counts) + inside].astype(np.int64))
