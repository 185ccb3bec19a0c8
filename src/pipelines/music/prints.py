"""Comparing Chromaprints without a numeric library: the hub does it, and it holds none.

A raw fingerprint is a list of 32-bit items, 8.07 a second; two recordings are compared by the bit error rate (BER) of
their items over the best alignment. A whole overlap is one XOR of two big integers and one bit count.

Measured on 57 tracks: copies (re-encoded at 96 kbit/s, trimmed, 6 dB louder) stay under 0.30, and the closest two
different tracks are at 0.367. Aligning and comparing one pair takes about 1 ms.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

SAME = 0.30
"""BER under which two prints are of one recording; different ones start at 0.367."""

KEY_BITS = 20
"""Top bits of an item by which prints find each other: items of copies often agree there in full, and 2^20 buckets
keep chance meetings of thousands of tracks few."""

SHORTEST = 40
"""Items (5 s) that must overlap; over less, chance reaches low error rates."""

OVERLAP = 0.5
"""Share of the shorter print that must overlap, or an intro shared by two tracks would join them."""

CROWD = 50
"""Keys that more prints share say nothing (silence, a test tone), and would make the search quadratic."""

OFFSETS = 3
"""Alignments tried for each pair, the most voted first."""


class PrintLike(Protocol):
    """What grouping needs to know of one file: `Fingerprint` has it, and so has a row of a catalogue."""

    @property
    def sha256(self) -> str: ...
    @property
    def raw(self) -> str: ...


class Match(NamedTuple):
    """`ber` over `overlap` items, where item i of the first lies on item i - `offset` of the second."""

    ber: float
    offset: int
    overlap: int


def encode_items(items: Iterable[int]) -> str:
    """Base64 of the items as little-endian uint32."""
    words = array("I", items)
    if sys.byteorder == "big":
        words.byteswap()
    return base64.b64encode(words.tobytes()).decode("ascii")


def decode_items(raw: str) -> array[int]:
    """The items again. ValueError if `raw` is not base64 of whole items."""
    words = array("I", base64.b64decode(raw, validate=True))
    if sys.byteorder == "big":
        words.byteswap()
    return words


def bit_error_rate(one: Sequence[int], other: Sequence[int], offset: int = 0) -> Match:
    """BER where item i of `one` lies on item i - offset of `other`; 1.0 if nothing overlaps."""
    start, end = max(0, offset), min(len(one), len(other) + offset)
    if end <= start:
        return Match(1.0, offset, 0)
    left = array("I", one[start:end]).tobytes()
    right = array("I", other[start - offset : end - offset]).tobytes()
    wrong = (int.from_bytes(left, "little") ^ int.from_bytes(right, "little")).bit_count()
    return Match(wrong / (32 * (end - start)), offset, end - start)


def positions(items: Sequence[int]) -> dict[int, list[int]]:
    """Key -> where it stands. Repeats of one key in a row (a held note, silence) are taken once."""
    found: dict[int, list[int]] = {}
    last = -1
    for place, item in enumerate(items):
        key = item >> (32 - KEY_BITS)
        if key != last:
            found.setdefault(key, []).append(place)
            last = key
    return found


def compare(one: Sequence[int], other: Sequence[int]) -> Match:
    """The best alignment of two prints; BER 1.0 if they have nothing in common, or are too short to say."""
    return _best(one, other, positions(one), positions(other))


def _best(
    one: Sequence[int], other: Sequence[int], places: dict[int, list[int]], others: dict[int, list[int]]
) -> Match:
    votes: Counter[int] = Counter()
    for key in places.keys() & others.keys():
        left, right = places[key], others[key]
        if len(left) * len(right) <= 400:  # a loop repeats; its key says little about where
            votes.update(i - j for i in left for j in right)
    # Frames of a copy cut elsewhere fall between ours, so that votes spread over neighbours.
    around = Counter({offset: votes[offset - 1] + 2 * n + votes[offset + 1] for offset, n in votes.items()})
    least = max(SHORTEST, int(OVERLAP * min(len(one), len(other))))
    tried = (bit_error_rate(one, other, offset) for offset, _ in around.most_common(OFFSETS))
    return min((match for match in tried if match.overlap >= least), default=Match(1.0, 0, 0))


def duplicate_groups(prints: Mapping[str, PrintLike]) -> list[list[str]]:
    """Names of files that hold the same bytes or the same recording, in groups of two and more.

    Groups and names are sorted. Candidates come from an inverted index of keys, so that the cost grows with the
    number of likenesses and not with its square: 57 tracks take under a second, thousands a minute.
    """
    leader = {name: name for name in prints}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    first: dict[str, str] = {}
    for name, found in prints.items():
        leader[find(name)] = find(first.setdefault(found.sha256, name))
    items = {name: decode_items(prints[name].raw) for name in first.values()}
    places = {name: positions(found) for name, found in items.items() if len(found) >= SHORTEST}
    for one, other in _candidates(places):
        if find(one) != find(other) and _best(items[one], items[other], places[one], places[other]).ber < SAME:
            leader[find(one)] = find(other)
    groups: dict[str, list[str]] = {}
    for name in prints:
        groups.setdefault(find(name), []).append(name)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _candidates(places: Mapping[str, dict[int, list[int]]]) -> list[tuple[str, str]]:
    """Pairs that share at least 2 % of the keys of the one with fewer, and three of them; the likeliest first."""
    index: dict[int, list[str]] = {}
    for name, keys in places.items():
        for key in keys:
            index.setdefault(key, []).append(name)
    shared: Counter[tuple[str, str]] = Counter()
    for names in index.values():
        if 1 < len(names) <= CROWD:
            shared.update((one, other) for i, one in enumerate(names) for other in names[i + 1 :])
    return [
        (one, other)
        for (one, other), n in shared.most_common()
        if n >= max(3, 0.02 * min(len(places[one]), len(places[other])))
    ]
