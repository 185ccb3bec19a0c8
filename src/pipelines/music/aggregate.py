"""From windows to one answer: tempo and key of a whole piece. Pure arithmetic, no numeric library.

Tempo. Each window votes with the weight confidence x seconds. A candidate is any window's BPM; it collects the votes
within 4 % in full, and those within 4 % of its half or double at half weight (the octave error that beat trackers
make most). The strongest candidate wins, and the answer is the weighted median of what agrees with it: one odd
window (a break, an intro without drums) moves nothing.

Key. Strengths are summed per (key, scale), weighted by seconds; the largest sum wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 0.04
"""Relative difference under which two tempi are the same; the customary 4 % of tempo evaluation (MIREX)."""

OCTAVE_WEIGHT = 0.5
"""What a vote at half or double the tempo is worth."""

LEAST_WEIGHT = 0.05
"""Confidence that a window without any still votes with, so that music without clear beats gets an answer."""

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

    @property
    def weight(self) -> float:
        return max(self.confidence, LEAST_WEIGHT) * self.seconds


@dataclass(frozen=True)
class KeyVote:
    """One window: tonic (`A`, `Bb`, ...), `major` or `minor`, strength (a correlation, at most 1), seconds."""

    key: str
    scale: str
    strength: float
    seconds: float


@dataclass(frozen=True)
class Tempo:
    """`confidence`: mean of the agreeing windows, 0 to 5.32; `agreement`: their share of all votes, 0 to 1."""

    bpm: float
    confidence: float
    agreement: float


@dataclass(frozen=True)
class Key:
    """`strength`: mean of the agreeing windows; `agreement`: the seconds that agree, as a share of all."""

    key: str
    scale: str
    strength: float
    agreement: float


def same_tempo(one: float, other: float) -> bool:
    """Within 4 % of each other."""
    return abs(one - other) <= TOLERANCE * other


def combine_tempo(votes: Sequence[TempoVote]) -> Tempo | None:
    """The tempo of the piece (rule: module docstring); None without votes."""
    if not votes:
        return None

    def support(bpm: float) -> float:
        full = sum(vote.weight for vote in votes if same_tempo(vote.bpm, bpm))
        octaves = sum(vote.weight for vote in votes if same_tempo(vote.bpm * 2, bpm) or same_tempo(vote.bpm / 2, bpm))
        return full + OCTAVE_WEIGHT * octaves

    best = max(votes, key=lambda vote: (support(vote.bpm), vote.weight)).bpm
    agreeing = sorted((vote for vote in votes if same_tempo(vote.bpm, best)), key=lambda vote: vote.bpm)
    total = sum(vote.weight for vote in agreeing)
    seconds = sum(vote.seconds for vote in agreeing)
    passed = 0.0
    median = agreeing[-1].bpm
    for vote in agreeing:
        passed += vote.weight
        if passed >= total / 2:
            median = vote.bpm
            break
    return Tempo(
        bpm=median,
        confidence=sum(vote.confidence * vote.seconds for vote in agreeing) / seconds,
        agreement=total / sum(vote.weight for vote in votes),
    )


def combine_key(votes: Sequence[KeyVote]) -> Key | None:
    """The key of the piece (rule: module docstring); None without votes."""
    sums: dict[tuple[str, str], float] = {}
    for vote in votes:
        name = (vote.key, vote.scale)
        sums[name] = sums.get(name, 0.0) + vote.strength * vote.seconds
    if not sums:
        return None
    best = max(sums, key=lambda name: sums[name])
    seconds = sum(vote.seconds for vote in votes if (vote.key, vote.scale) == best)
    return Key(*best, sums[best] / seconds, seconds / sum(vote.seconds for vote in votes))


def camelot(key: str, scale: str) -> str:
    """`("A", "minor")` -> `8A`: the code by which DJs find keys that mix."""
    wheel, side = (MINOR_WHEEL, "A") if scale == "minor" else (MAJOR_WHEEL, "B")
    return f"{wheel.index(_SAME_NOTE.get(key, key)) + 1}{side}"
