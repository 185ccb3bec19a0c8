"""The beat grid: where every beat of a piece is, in as few numbers as its tempo allows. Pure arithmetic.

A marker is a beat and the tempo from there on; a piece of steady tempo has one, a set one for each track, rubato many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pipelines.music.aggregate import same_tempo

CLOSE = 0.035
"""Seconds that a beat may lie off the grid; beats are heard to 0.012 s, and counted right within 0.07 s (MIREX)."""

LOCAL_BEATS = 8
"""Intervals over which a local tempo is measured: two bars, so that the hearing's 0.012 s are 0.3 % at 120 BPM."""

STEADY_WITHIN = 0.02
STEADY_SHARE = 0.85
"""Steady: so large a share of the local tempi lies so close to their median."""


@dataclass(frozen=True)
class Marker:
    """`beats` beats from `at` (seconds) on, `bpm` a minute: beat n is at `at + n * 60 / bpm`."""

    at: float
    bpm: float
    beats: int


def at_octave(times: Sequence[float], bpm: float, tempo: float, stronger: int = 0) -> list[float]:
    """Beats heard at `bpm`, counted at `tempo`: every second one where they were heard double (from the first on, or
    the second where `stronger` is 1), the beats between where they were heard at half; else as they are."""
    if same_tempo(bpm, tempo * 2):
        return list(times[stronger::2])
    if same_tempo(bpm * 2, tempo):
        between = [(one + next_) / 2 for one, next_ in pairwise(times)]
        return sorted([*times, *between])
    return list(times)


def fit_grid(times: Sequence[float]) -> list[Marker]:
    """Markers such that the beats at `times` (ascending seconds) lie within 0.035 s; a single stray beat is dropped."""
    markers: list[Marker] = []
    line: _Line | None = None
    for index, time in enumerate(times):
        if line is None or line.takes(time):
            line = line or _Line(time)
            line.add(time)
        elif index + 1 < len(times) and line.beats > 2 and line.takes(times[index + 1]):
            continue  # one stray among beats that go on
        else:
            markers += line.marker()
            line = _Line(time)
            line.add(time)
    return markers + (line.marker() if line else [])


class _Line:
    """Least squares of time over beat number, growing beat by beat."""

    def __init__(self, start: float) -> None:
        self.start, self.beats, self.last = start, 0, 0
        self._n = self._nn = self._t = self._nt = 0.0
        self.period = 0.0
        self.offset = 0.0

    def takes(self, time: float) -> bool:
        if self.beats < 2:
            return True
        number = self._number(time)
        return number > self.last and abs(self.offset + number * self.period - (time - self.start)) <= CLOSE

    def _number(self, time: float) -> int:
        return round((time - self.start - self.offset) / self.period)

    def add(self, time: float) -> None:
        number = self.beats if self.beats < 2 else self._number(time)
        seconds = time - self.start
        self._n, self._nn = self._n + number, self._nn + number * number
        self._t, self._nt = self._t + seconds, self._nt + number * seconds
        self.beats, self.last = self.beats + 1, number
        if self.beats > 1:
            self.period = (self.beats * self._nt - self._n * self._t) / (self.beats * self._nn - self._n**2)
            self.offset = (self._t - self.period * self._n) / self.beats

    def marker(self) -> list[Marker]:
        """One marker; none for a lone beat."""
        if self.beats < 2 or self.period <= 0:
            return []
        return [Marker(max(0.0, self.start + self.offset), 60 / self.period, self.last + 1)]


def is_steady(windows: Iterable[Sequence[float]]) -> bool | None:
    """Whether the tempo stays the same, from the beats of each window (seconds); None under eight beats in a row."""
    local = [
        60 * LOCAL_BEATS / (times[i + LOCAL_BEATS] - times[i])
        for times in windows
        for i in range(len(times) - LOCAL_BEATS)
        if times[i + LOCAL_BEATS] > times[i]
    ]
    if not local:
        return None
    middle = median(local)
    close = sum(abs(tempo - middle) <= STEADY_WITHIN * middle for tempo in local)
    return close >= STEADY_SHARE * len(local)
