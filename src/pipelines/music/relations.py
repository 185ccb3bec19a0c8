"""What it means that stretches of one print are stretches of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipelines.music.prints import OVERLAP
from pipelines.music.tracing import Span

SAME, TEMPO, PART = "same", "tempo", "part"

STEADY = 0.004
"""Tempo differences up to this are the grid's: the same speed."""

COVERED = 0.75
"""Share of the shorter print that must be found in the longer one for it to be a part of it."""


class Link(NamedTuple):
    """How print `one` and print `other` (numbers) relate. `kind`: the `same` recording (re-encoded, louder, trimmed by
    less than half), the same at another `tempo` (pitch kept), or one is `part` of the other."""

    one: int
    other: int
    kind: str
    tempo: float
    """How fast `one` plays `other`."""
    ber: float
    overlap: int
    """Items that they share."""
    begin: int
    """The first shared item of the longer one."""


def relation(one: int, one_size: int, other: int, other_size: int, spans: Sequence[Span]) -> Link | None:
    """How print `one` (the query of `spans`) relates to `other`; None where they share too little to say."""
    if not spans:
        return None
    mine = covered((span.start, span.end) for span in spans)
    theirs = covered((span.begin, span.finish) for span in spans)
    best = max(spans, key=lambda span: span.weight)
    ber = sum(span.errors for span in spans) / (32 * sum(span.compared for span in spans))
    longer, shorter = max(one_size, other_size), min(one_size, other_size)
    shared = min(mine, theirs)
    begin = min(span.start if one_size >= other_size else span.begin for span in spans)
    tempo = 1.0 if abs(best.tempo - 1) <= STEADY else round(best.tempo, 3)
    if shared >= OVERLAP * longer:
        kind = SAME if tempo == 1.0 else TEMPO
    elif (mine if one_size <= other_size else theirs) >= COVERED * shorter:
        kind = PART
    else:
        return None
    return Link(one, other, kind, tempo, round(ber, 4), shared, begin)


def covered(stretches: Iterable[tuple[int, int]]) -> int:
    """Length of the union of (start, end) stretches."""
    total = reached = 0
    for start, end in sorted(stretches):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
