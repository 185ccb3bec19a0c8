"""Which files of a library are one recording. The hub asks, so there is no numeric library here.

Candidates come from an inverted index of keys, and only they are compared: the cost grows with the number of
likenesses, not with the square of the library.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations, groupby
from typing import Protocol

from pipelines.music.prints import compare, decode_items, is_telling

INDEX_BITS, SAMPLE = 24, 4
"""Keys are the top 24 bits of items; of these every fourth is indexed, chosen by its own value so that copies choose
alike. Copies of real tracks shared over half of their sampled keys, whatever was done to them."""

CROWD = 50
"""A key that more prints share says nothing, and would make the search quadratic."""


class PrintLike(Protocol):
    """What grouping needs to know of one file: `Fingerprint` has it, and so may a row of a catalogue."""

    @property
    def sha256(self) -> str:
        """Of the file's bytes; empty if not known."""

    @property
    def raw(self) -> str:
        """The fingerprint as `prints.encode_items` writes it; may be empty."""


def duplicate_groups(prints: Mapping[str, PrintLike]) -> list[list[str]]:
    """Names of files that hold the same bytes or the same recording, in groups of two and more.

    Groups and names are sorted, so that the answer does not depend on the order of `prints`.
    """
    leader = {name: name for name in prints}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    first: dict[str, str] = {}
    for name in sorted(prints):
        leader[name] = first.setdefault(prints[name].sha256 or name, name)
    items = {name: decode_items(prints[name].raw) for name in first.values()}
    for one, other in _candidates({name: found for name, found in items.items() if is_telling(found)}):
        if find(one) != find(other) and compare(items[one], items[other]).same:
            leader[find(other)] = find(one)
    groups: dict[str, list[str]] = {}
    for name in sorted(prints):
        groups.setdefault(find(name), []).append(name)
    return sorted(group for group in groups.values() if len(group) > 1)


def _candidates(items: Mapping[str, array[int]]) -> Iterator[tuple[str, str]]:
    """Pairs that share 3 keys and 2 % of the keys of the one with fewer; the likeliest first."""
    names = list(items)
    postings: list[int] = []
    sizes: list[int] = []
    for number, name in enumerate(names):
        keys = {item >> (32 - INDEX_BITS) for item in items[name]}
        sampled = [key for key in keys if key % SAMPLE == 0]
        sizes.append(len(sampled))
        postings += [key << 32 | number for key in sampled]
    postings.sort()
    shared: Counter[tuple[int, int]] = Counter()
    for _, group in groupby(postings, key=lambda posting: posting >> 32):
        together = [posting & 0xFFFFFFFF for posting in group]
        if 1 < len(together) <= CROWD:
            shared.update(combinations(together, 2))
    for (one, other), n in shared.most_common():
        if n >= max(3, 0.02 * min(sizes[one], sizes[other])):
            yield names[one], names[other]
