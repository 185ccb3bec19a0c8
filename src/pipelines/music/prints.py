"""Chromaprints as they travel, and comparing a pair of them without a numeric library.

A raw fingerprint is a list of 32-bit items, 8.08 a second; two recordings are compared by the bit error rate (BER) of
their items over the best alignment. A whole overlap is one XOR of two big integers and one bit count. A whole library
is searched by `print_index`.

Copies (Opus at 48 kbit/s, mono MP3 at 64, trimmed, 9 dB louder) of real tracks measured 0.00 to 0.03, rough ones stay
under 0.30, and different recordings start at 0.367. Aligning and comparing one pair of tracks takes about 1 ms.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

PER_SECOND = 11_025 / 1365
"""Items a second: Chromaprint (algorithm 1) steps by a third of its frame of 4096 samples at 11,025 Hz."""

REACH = 2.6
"""Seconds of sound that one item stands for, from its place on: 15 s of sound have 100 items, not 121."""

SAME = 0.30
"""BER under which two prints are of one recording; different ones start at 0.367."""

SAME_IF_BRIEF = 0.20
"""The same for overlaps under `BRIEF` items, where different quiet tracks were seen at 0.25."""

SHORTEST, BRIEF = 40, 120
"""Items (5 s and 15 s) that must overlap to say anything, and to say it with full confidence."""

OVERLAP = 0.5
"""Share of the longer print that must overlap; less is an excerpt of a recording, not a copy of it."""

DISTINCT = 20
"""Different items that a print needs: silence and test tones repeat a few, and are like all others of their kind."""

KEY_BITS = 20
"""Top bits of an item by which alignments are voted: items of copies often agree there in full."""

OFFSETS = 3
"""Alignments tried for each pair, the most voted first."""


class Match(NamedTuple):
    """`ber` over `overlap` items, where item i of the first lies on item i - `offset` of the second."""

    ber: float
    offset: int
    overlap: int

    @property
    def same(self) -> bool:
        """True if this is one recording."""
        return self.ber < (SAME if self.overlap >= BRIEF else SAME_IF_BRIEF)


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


def is_telling(items: Sequence[int]) -> bool:
    """False for prints too short or too monotonous to be told apart from others."""
    return len(items) >= SHORTEST and len(set(items)) >= DISTINCT


def compare(one: Sequence[int], other: Sequence[int]) -> Match:
    """The best alignment of two prints; BER 1.0 if they have nothing in common, or are too short to say."""
    places, others = positions(one), positions(other)
    votes: Counter[int] = Counter()
    for key in places.keys() & others.keys():
        left, right = places[key], others[key]
        if len(left) * len(right) <= 400:  # a loop repeats; its key says little about where
            votes.update(i - j for i in left for j in right)
    # Frames of a copy cut elsewhere fall between ours, so that votes spread over neighbours.
    around = Counter({offset: votes[offset - 1] + 2 * n + votes[offset + 1] for offset, n in votes.items()})
    least = max(SHORTEST, int(OVERLAP * max(len(one), len(other))))
    tried = (bit_error_rate(one, other, offset) for offset, _ in around.most_common(OFFSETS))
    return min((match for match in tried if match.overlap >= least), default=Match(1.0, 0, 0))
