"""From windows to one answer: tempo and key of a whole piece. Pure arithmetic, no numeric library.

Tempo. Each window votes with the weight confidence x seconds. A candidate is any window's BPM; it collects the votes
within 4 % in full, and those within 4 % of its half or double at half weight (the octave error that beat trackers
make most). The strongest candidate wins, and the answer is the weighted median of what agrees with it: one odd
window (a break, an intro without drums) moves nothing.

Octave rule. Of tempi an octave apart that windows heard, the votes decide. Then the drums do, because a tracker hears
a steady pulse and not how it is counted: bars of popular music alternate bass drum and snare from beat to beat.
- Where every other heard beat has next to neither, they were heard double: the tempo is halved.
- Where all heard beats are alike, so that each has the snare, and there is a drum half-way between them, they were
  heard at half: the tempo is doubled, if that stays under 185.
Whatever else was heard, and the half and the double of the answer, are kept as alternatives with their share.

Key. The correlations of each window with all 24 keys are averaged, weighted by seconds; the largest mean wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

TOLERANCE = 0.04
"""Relative difference under which two tempi are the same; the customary 4 % of tempo evaluation (MIREX)."""

OCTAVE_WEIGHT = 0.5
"""What a vote at half or double the tempo is worth."""

LEAST_WEIGHT = 0.05
"""Confidence that a window without any still votes with, so that music without clear beats gets an answer."""

NO_DRUM = 0.15
"""Share of the stronger beats' drums under which every other beat has none."""

ALL_ALIKE = 0.85
DRUM_BETWEEN = 0.35
"""Shares from which beats are alike, and from which there is a drum between them."""

FASTEST_COUNTED = 185.0
SLOWEST_COUNTED = 40.0
"""BPM to which a tempo is doubled or halved."""

MOST_ALTERNATIVES = 3

TEMPO_RANGE = (40.0, 210.0)
"""BPM of an alternative."""

KEYS = ("A", "Bb", "B", "C", "C#", "D", "Eb", "E", "F", "F#", "G", "Ab")
SCALES = ("major", "minor")

MAJOR_WHEEL = ("B", "F#", "Db", "Ab", "Eb", "Bb", "F", "C", "G", "D", "A", "E")
MINOR_WHEEL = ("Ab", "Eb", "Bb", "F", "C", "G", "D", "A", "E", "B", "F#", "Db")
"""Mixed In Key's wheel from 1 to 12: fifths are neighbours, a relative minor (A) stands beside its major (B)."""

_SAME_NOTE = {"C#": "Db", "D#": "Eb", "Gb": "F#", "G#": "Ab", "A#": "Bb"}


@dataclass(frozen=True)
class TempoVote:
    """One window: BPM, confidence on essentia's scale (0 to 5.32), seconds of sound."""

    bpm: float
    confidence: float
    seconds: float
    alternation: float | None = None
    between: float | None = None
    """What the drums say of the octave: `rhythm.Beats`."""

    @property
    def weight(self) -> float:
        return max(self.confidence, LEAST_WEIGHT) * self.seconds


@dataclass(frozen=True)
class KeyVote:
    """One window: its correlation with each key (A major, A minor, Bb major, ...; at most 1), seconds of sound."""

    strengths: tuple[float, ...]
    seconds: float


class OtherTempo(NamedTuple):
    """`share` of all votes, 0 to 1; 0: nobody heard it, it is the answer's half or double."""

    bpm: float
    share: float


class OtherKey(NamedTuple):
    key: str
    scale: str
    strength: float


@dataclass(frozen=True)
class Tempo:
    """`confidence`: mean of the agreeing windows, 0 to 5.32; `agreement`: their share of all votes, 0 to 1."""

    bpm: float
    confidence: float
    agreement: float
    heard: float
    """The BPM that the windows heard: `bpm` or an octave of it."""
    others: tuple[OtherTempo, ...] = ()


@dataclass(frozen=True)
class Key:
    """`strength`: mean correlation of the windows; `agreement`: seconds whose own best key it is, as a share of all."""

    key: str
    scale: str
    strength: float
    agreement: float
    others: tuple[OtherKey, ...] = ()


def same_tempo(one: float, other: float) -> bool:
    """Within 4 % of each other."""
    return abs(one - other) <= TOLERANCE * other


def combine_tempo(votes: Sequence[TempoVote]) -> Tempo | None:
    """The tempo of the piece (rule: module docstring); None without votes."""
    if not votes:
        return None

    def support(vote: TempoVote) -> tuple[float, float]:
        full = sum(other.weight for other in votes if same_tempo(other.bpm, vote.bpm))
        octaves = sum(
            other.weight
            for other in votes
            if same_tempo(other.bpm * 2, vote.bpm) or same_tempo(other.bpm / 2, vote.bpm)
        )
        return full + OCTAVE_WEIGHT * octaves, vote.weight

    best = max(votes, key=support).bpm
    agreeing = [vote for vote in votes if same_tempo(vote.bpm, best)]
    total = sum(vote.weight for vote in votes)
    heard = _median(agreeing)
    bpm = heard * octave_by_drums(heard, agreeing)
    return Tempo(
        bpm=bpm,
        heard=heard,
        confidence=sum(vote.confidence * vote.seconds for vote in agreeing) / sum(vote.seconds for vote in agreeing),
        agreement=sum(vote.weight for vote in agreeing) / total,
        others=_others(bpm, [vote for vote in votes if bpm != heard or vote not in agreeing], total),
    )


def octave_by_drums(bpm: float, votes: Sequence[TempoVote]) -> float:
    """0.5, 1 or 2: what to multiply a tempo with, by the drums of the windows that heard it (module docstring)."""
    told = [(vote, vote.alternation, vote.between) for vote in votes]
    known = [(vote.weight, first, second) for vote, first, second in told if first is not None and second is not None]
    if not known:
        return 1.0
    total = sum(weight for weight, _, _ in known)
    alternation = sum(weight * first for weight, first, _ in known) / total
    between = sum(weight * second for weight, _, second in known) / total
    if alternation < NO_DRUM and bpm / 2 >= SLOWEST_COUNTED:
        return 0.5
    if alternation >= ALL_ALIKE and between >= DRUM_BETWEEN and bpm * 2 <= FASTEST_COUNTED:
        return 2.0
    return 1.0


def _median(votes: Sequence[TempoVote]) -> float:
    """The BPM with half of the weight below it."""
    ordered = sorted(votes, key=lambda vote: vote.bpm)
    half, passed = sum(vote.weight for vote in ordered) / 2, 0.0
    for vote in ordered:
        passed += vote.weight
        if passed >= half:
            return vote.bpm
    return ordered[-1].bpm


def _others(bpm: float, votes: Sequence[TempoVote], total: float) -> tuple[OtherTempo, ...]:
    """What else was heard, the strongest first, then the half and the double that nobody heard."""
    heard = []
    left = list(votes)
    while left:
        centre = max(left, key=lambda vote: sum(one.weight for one in left if same_tempo(one.bpm, vote.bpm))).bpm
        group = [vote for vote in left if same_tempo(vote.bpm, centre)]
        left = [vote for vote in left if vote not in group]
        heard.append(OtherTempo(_median(group), sum(vote.weight for vote in group) / total))
    heard = sorted(heard, key=lambda other: -other.share)[:MOST_ALTERNATIVES]
    low, high = TEMPO_RANGE
    for octave in (bpm / 2, bpm * 2):
        if low <= octave <= high and not any(same_tempo(other.bpm, octave) for other in heard):
            heard.append(OtherTempo(octave, 0.0))
    return tuple(heard)


def best_key(strengths: Sequence[float]) -> OtherKey:
    """The key of the largest of 24 correlations."""
    index = max(range(len(strengths)), key=strengths.__getitem__)
    return OtherKey(KEYS[index // 2], SCALES[index % 2], strengths[index])


def combine_key(votes: Sequence[KeyVote]) -> Key | None:
    """The key of the piece (rule: module docstring); None without votes, or where nothing correlates."""
    seconds = sum(vote.seconds for vote in votes)
    if not votes or seconds <= 0:
        return None
    means = [sum(vote.strengths[i] * vote.seconds for vote in votes) / seconds for i in range(24)]
    ranked = sorted(range(24), key=lambda i: -means[i])
    found = [OtherKey(KEYS[i // 2], SCALES[i % 2], means[i]) for i in ranked]
    best = found[0]
    if best.strength <= 0:
        return None
    agreeing = sum(vote.seconds for vote in votes if best_key(vote.strengths)[:2] == best[:2])
    return Key(*best, agreeing / seconds, tuple(found[1 : 1 + MOST_ALTERNATIVES]))


def camelot(key: str, scale: str) -> str:
    """`("A", "minor")` -> `8A`: the code by which DJs find keys that mix."""
    wheel, side = (MINOR_WHEEL, "A") if scale == "minor" else (MAJOR_WHEEL, "B")
    return f"{wheel.index(_SAME_NOTE.get(key, key)) + 1}{side}"
