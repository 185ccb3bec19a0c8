"""From shared keys to spans: which stretch of a query is which stretch of which print, at which tempo.

    hits (query position, place on the tape)
      -> votes: a minute of the query at a time, hits whose distance is nearly constant
      -> a line: place = offset + tempo x position, the tempo by which most hits agree
      -> bits: the errors along the line; the stretch of it that fits best
      -> spans: stretches of one print that follow each other on one line

Measured on real tracks (share of 24-bit keys that agree in full; bit error rate along the right line): MP3 at 64 kbit/s
0.86 and 0.01; Opus at 48, louder 0.66 and 0.02; a cut that falls between frames 0.32 and 0.06; heavily compressed 0.41
and 0.05; tempo with kept pitch at 2 % 0.25 and 0.08, at 4 % 0.15 and 0.12, at 8 % 0.08 and 0.17 (0.31 at worst).
Without the right tempo those are 0.33, 0.38 and 0.41: as different as other recordings. Where the pitch moves with the
speed, 1 % is found and 2 % sometimes: chroma moves to other bins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pipelines.music.postings import Found, Items, Numbers
from pipelines.music.prints import DISTINCT, SHORTEST, Match

SEGMENT, HOP = 484, 242
"""Items of the query (60 s, every 30 s) that are looked at together: at 8 % a line leaves its diagonal by 39 items."""

BUCKET = 64
"""Width of a bundle of diagonals; two neighbours are counted together."""

MANY = 12
"""Hits on one single diagonal with which the whole of it is compared at once."""

VOTES = 3
"""Hits on one line without which nothing is compared."""

SPARSE = 4
"""Slots of a table for each hit that is counted in it, at least: one in thirty meets two others by chance."""

CANDIDATES = 4
"""Lines compared for each segment, the most voted first."""

TEMPOS = np.round(np.arange(0.92, 1.0801, 0.005), 3)
"""How fast the query plays the print. DJ players go 8 % either way; a step costs half an item in a segment."""

FASTEST = float(TEMPOS[-1]) - 1
LOOSE = 3
"""Items by which two hits on one line may differ: one to either side of it, and half a one for rounding each."""

FIT = 0.34
"""Bit error rate at which an item neither speaks for a line nor against it: between 0.30 and 0.367."""

CLEAN = 0.15
"""Bit error rate of a line that need not be tried an item to either side."""

ELSEWHERE = (-43, -29, -17, 17, 29, 43)
"""Items (2 to 5 s) by which a line is shifted to see how well the wrong place fits."""

CLEARLY = 0.66
"""Share of the wrong places' bit error rate under which the right one stays: up to 0.62 for copies, 0.67 for pads."""

ON = 0.40
"""The same for going on at either end of a stretch that convinces: a blend hides a track before it is gone."""

DRIFT = 12
"""Items by which one line may miss the next one's beginning and still be the same playing."""


@dataclass(frozen=True)
class Span:
    """Items `start` to `end` of the query are items `begin` to `finish` of print number `track`."""

    track: int
    start: int
    end: int
    begin: int
    finish: int
    errors: int
    """Wrong bits among the compared."""
    compared: int
    """Items that were compared."""

    @property
    def ber(self) -> float:
        """Bit error rate."""
        return self.errors / (32 * self.compared)

    @property
    def weight(self) -> float:
        """Items that speak for it: those compared, less those that the wrong bits spoil at FIT."""
        return self.compared - self.errors / (32 * FIT)

    @property
    def tempo(self) -> float:
        """How fast the query plays the print: 1.04 is 4 % faster."""
        return (self.finish - self.begin) / (self.end - self.start)


def votes(query_positions: Numbers, hits: Found) -> Iterator[tuple[int, Numbers, Numbers]]:
    """(segment, query positions, places) of hits that may lie on one line, the most first within a segment."""
    query, place = query_positions[hits.which], hits.place
    some = _in_company((place - query) // BUCKET, VOTES, neighbours=True)
    query, place = query[some], place[some]
    if not query.size:
        return
    segment = query // HOP
    # Segments overlap by half: each hit is in two, but for the first half of the first.
    second = np.flatnonzero(segment > 0)
    query, place = np.append(query, query[second]), np.append(place, place[second])
    segment = np.append(segment, segment[second] - 1)
    # Sorted by segment, bundle of diagonals, and position: one position counts once, however often it hits.
    bundle = (segment << 28) + (place - query + (1 << 32)) // BUCKET
    code = (bundle << 9) + query - segment * HOP
    order = np.argsort(code, kind="stable")
    bundle, code, query, place, segment = bundle[order], code[order], query[order], place[order], segment[order]
    news = np.append(True, bundle[1:] != bundle[:-1])
    first = np.flatnonzero(news)
    ends = np.append(first[1:], bundle.size)
    counts = np.add.reduceat(np.append(True, code[1:] != code[:-1]).astype(np.int64), first)
    joined = np.append(bundle[first[1:]] == bundle[first[:-1]] + 1, False)
    both = counts + np.where(joined, np.append(counts[1:], 0), 0)
    ends = np.where(joined, np.append(ends[1:], 0), ends)
    chosen = np.flatnonzero(both >= VOTES)
    taken: dict[int, int] = {}
    for i in chosen[np.argsort(-both[chosen], kind="stable")]:
        here = slice(int(first[i]), int(ends[i]))
        number = int(segment[first[i]])
        if taken.setdefault(number, 0) < CANDIDATES:
            taken[number] += 1
            yield number, query[here], place[here]


def _in_company(numbers: Numbers, least: int, *, neighbours: bool = False) -> Numbers:
    """Where `numbers` are that may occur `least` times (with `neighbours`: together with the next one or the last).

    Nearly all hits are chance and alone: counting them in a table, by their low bits, is a tenth of sorting them. Some
    that share their low bits pass as well; none that counts is left out.
    """
    mask = (1 << int(SPARSE * numbers.size).bit_length()) - 1
    slots = numbers & mask
    counts = np.bincount(slots, minlength=mask + 1)
    together = counts[slots]
    if neighbours:
        together += np.maximum(counts[(slots + 1) & mask], counts[(slots - 1) & mask])
    return np.flatnonzero(together >= least)


class Line(NamedTuple):
    """place = `offset` + `tempo` x (position - `middle`)."""

    tempo: float
    offset: float
    middle: int
    hits: int


def line_through(query: Numbers, place: Numbers, middle: int) -> Line:
    """The line on which most hits lie, give or take one item."""
    base = int(place.min()) - HOP
    offsets = np.rint(place - base - TEMPOS[:, None] * (query - middle)).astype(np.int64)
    low = int(offsets.min()) - 1
    width = int(offsets.max()) - low + 2
    rows = np.arange(TEMPOS.size)[:, None] * width
    grid = np.bincount((rows + offsets - low).ravel(), minlength=TEMPOS.size * width).reshape(TEMPOS.size, width)
    near = 2 * grid
    near[:, 1:] += grid[:, :-1]
    near[:, :-1] += grid[:, 1:]
    best = near.max()
    # Of equally good tempos the one nearest to 1: a short stretch cannot tell them apart.
    rows_of, columns = np.nonzero(near == best)
    pick = int(np.argmin(np.abs(TEMPOS[rows_of] - 1)))
    row, column = int(rows_of[pick]), int(columns[pick])
    count = int(grid[row, max(0, column - 1) : column + 2].sum())
    return Line(float(TEMPOS[row]), float(column + low + base), middle, count)


def may_be_one_line(query: Numbers, place: Numbers) -> bool:
    """False where `line_through` cannot find all of these on one line: two of them are further apart than at any tempo.

    Chance brings threes together that lie within a bundle; this is a tenth of the cost of looking for their line.
    """
    way, turn = np.subtract.outer(query, query), np.subtract.outer(place - query, place - query)
    return bool((np.abs(turn) <= FASTEST * np.abs(way) + LOOSE).all())


def best_stretch(errors: Numbers) -> tuple[int, int]:
    """The stretch whose items speak most for the line (the maximum sum of FIT - error rate); empty: (0, 0)."""
    gains = np.concatenate([[0.0], np.cumsum(FIT * 32 - errors)])
    lowest = np.minimum.accumulate(gains)
    end = int(np.argmax(gains - lowest))
    start = int(np.argmin(gains[: end + 1]))
    return start, end


def diagonals(query_positions: Numbers, hits: Found) -> list[tuple[int, int]]:
    """(distance, a place) of the diagonals on which by far the most hits lie: untouched tempo, as most copies have."""
    distance = hits.place - query_positions[hits.which]
    if distance.size < MANY:
        return []
    some = _in_company(distance, MANY)
    values, first, counts = np.unique(distance[some], return_index=True, return_counts=True)
    most = np.flatnonzero(counts >= MANY)
    most = most[np.argsort(-counts[most], kind="stable")][:CANDIDATES]
    return [(int(values[i]), int(hits.place[some[first[i]]])) for i in most]


def stretch_along(
    items: Items, track: int, print_: Items, line: Line, low: int = 0, high: int | None = None
) -> Span | None:
    """What of `items[low:high]` lies on the line through a print (places counted from its beginning); None: nothing."""
    position = np.arange(low, items.size if high is None else min(high, items.size))
    if line.tempo == 1.0:  # no further than it can reach
        reach = line.offset - line.middle
        position = position[slice(*np.searchsorted(position, (-reach - 1, print_.size - reach + 1)))]
    best: Span | None = None
    for shift in (0.0, -1.0, 1.0):
        if best is not None and best.ber < CLEAN:
            break
        place = np.rint(line.offset + shift + line.tempo * (position - line.middle)).astype(np.int64)
        first, last = np.searchsorted(place, (0, print_.size))
        if last - first < SHORTEST:
            continue
        errors = np.bitwise_count(items[position[first:last]] ^ print_[place[first:last]])
        start, end = best_stretch(errors)
        if end - start < SHORTEST:
            continue
        q, p = position[first + start : first + end], place[first + start : first + end]
        wrong = int(errors[start:end].sum())
        span = Span(track, int(q[0]), int(q[-1]) + 1, int(p[0]), int(p[-1]) + 1, wrong, end - start)
        if best is None or span.weight > best.weight:
            best = span
    return best if best is not None and _convinces(best, items, print_) else None


def _convinces(span: Span, items: Items, print_: Items) -> bool:
    """Whether this is the same sound, and not two that change as little as each other.

    A pad or a drone fits others of its kind nearly as well wherever it is laid; the right place is clearly the best.
    """
    query = items[span.start : span.end]
    if not Match(span.ber, 0, span.compared).same or np.unique(query[:: -(-query.size // 256)]).size < DISTINCT:
        return False
    place = np.rint(np.linspace(span.begin, span.finish - 1, query.size)).astype(np.int64)
    elsewhere = print_.take(place + np.asarray(ELSEWHERE)[:, None], mode="wrap")
    wrong = np.bitwise_count(query ^ elsewhere).mean(axis=1)
    return span.ber < CLEARLY * float(np.median(wrong)) / 32


def chain(spans: Iterable[Span]) -> list[Span]:
    """Join spans of one print that go on along one line; in the order of the query."""
    done: list[Span] = []
    open_: dict[int, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        mine = open_.setdefault(span.track, [])
        for place, before in enumerate(mine):
            expected = before.finish + (span.start - before.end) * span.tempo
            if span.start - before.end <= HOP and abs(expected - span.begin) <= DRIFT:
                mine[place] = _joined(before, span)
                break
        else:
            mine.append(span)
    for mine in open_.values():
        done += mine
    return sorted(done, key=lambda span: (span.start, span.end, span.track))


def drawn_out(span: Span, items: Items, print_: Items) -> Span:
    """The span, longer at either end by as much as still fits."""
    before = _goes_on(items, print_, span.start - 1, span.begin - span.tempo, -1, span.tempo)
    after = _goes_on(items, print_, span.end, float(span.finish), 1, span.tempo)
    begin, finish = round(span.begin - before * span.tempo), round(span.finish + after * span.tempo)
    return replace(
        span, start=span.start - before, end=span.end + after, begin=max(0, begin), finish=min(print_.size, finish)
    )


def _goes_on(items: Items, print_: Items, position: int, place: float, step: int, tempo: float) -> int:
    """Items for which the line goes on from `position`, in steps of 1 or -1."""
    steps = np.arange(HOP)
    positions, places = position + step * steps, np.rint(place + step * tempo * steps).astype(np.int64)
    inside = (positions >= 0) & (positions < items.size) & (places >= 0) & (places < print_.size)
    errors = np.bitwise_count(items[positions[inside]] ^ print_[places[inside]])
    gains = np.concatenate([[0.0], np.cumsum(ON * 32 - errors)])
    return int(np.argmax(gains))


def distinct(spans: Iterable[Span]) -> list[Span]:
    """Without the lesser accounts of what is accounted for: loops fit their own repetitions as well."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: -span.weight):
        taken = (min(span.end, mine.end) - max(span.start, mine.start) for mine in kept if mine.track == span.track)
        if max(taken, default=0) <= 0.5 * (span.end - span.start):
            kept.append(span)
    return sorted(kept, key=lambda span: (span.start, span.end, span.track))


def _joined(before: Span, after: Span) -> Span:
    if after.end <= before.end:
        return before
    fresh = (after.end - max(before.end, after.start)) / (after.end - after.start)
    return Span(
        before.track, before.start, after.end, before.begin, after.finish,
        before.errors + round(after.errors * fresh), before.compared + round(after.compared * fresh),
    )  # fmt: skip
