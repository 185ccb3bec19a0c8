"""Beats of one window: the tracker of many minds, or the quick one. Runs in child processes (imports essentia).

Five detection functions (`onsets`) each give a series of beats (Degara et al. 2012); the series that the others agree
with most wins, and how far they agree is the confidence (Zapata, Davies and Gomez 2014). That is essentia's
RhythmExtractor2013 `multifeature`: the same beats (a test compares), in a third of its time. The quick tracker has one
function and no judges, and so no confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.music import onsets
from pipelines.music.decode import RATE, Samples
from pipelines.music.essentia_windows import standard

TEMPO_SECONDS = 3.0
"""Shorter sound has no tempo: under 0.9 s the tracker answers nothing, under 3 s it guesses from a beat or two."""

TEMPO_RANGE = (40.0, 210.0)
"""BPM that the tracker can mean (its limits are 40 and 208); silence gives 738.28."""

ODD_INTERVAL = 0.1
"""Relative distance from the median beyond which the interval of two beats is a slip and not the tempo."""

LEAST_BEATS = 8
NEAR = 0.035
"""Fewest beats that tell an octave, and seconds around one in which its drum counts."""

ONSET_SECONDS = 1.0
"""Shorter sound has an onset, not a rate."""


@dataclass(frozen=True)
class Beats:
    """`times`: seconds from the window's start, ascending; `bpm`; `confidence` 0 to 5.32 (None: nobody judged).

    `alternation`: bass drum and snare on the weaker ones of every second beat, as a share of the stronger ones'.
    `between`: the same half-way between the beats, as a share of that on them. See `aggregate` for what they tell.
    """

    times: NDArray[np.float64]
    bpm: float
    confidence: float | None
    alternation: float | None
    between: float | None
    stronger: int = 0
    """0 or 1: which of every two beats has more drums, the first or the second."""


@lru_cache(maxsize=1)
def banks() -> onsets.Banks:
    """essentia's own window and filter banks, read out by asking for each bin: about 0.1 s, once a process."""
    one_by_one = np.eye(onsets.BINS, dtype=np.float32)
    erb = standard().ERBBands(
        inputSize=onsets.BINS,
        numberBands=onsets.EMPHASIS_BANDS,
        lowFrequencyBound=80,
        highFrequencyBound=RATE / 2,
        sampleRate=RATE,
        type="magnitude",
    )
    mel = standard().MelBands(
        inputSize=onsets.BINS, numberBands=40, lowFrequencyBound=0, highFrequencyBound=4000, sampleRate=RATE
    )
    return onsets.Banks(
        hann(onsets.FRAME), np.stack([erb(row) for row in one_by_one]), np.stack([mel(row) for row in one_by_one])
    )


@lru_cache(maxsize=4)
def hann(size: int) -> onsets.Array:
    """essentia's Hann window, with its scale."""
    window: onsets.Array = standard().Windowing(size=size, type="hann", zeroPhase=False)(np.ones(size, np.float32))
    return window


@lru_cache(maxsize=1)
def _taps() -> tuple[Any, Any, Any]:
    """Beats from a function with a hop of 1024, from one of 512, and who agrees with whom: 0.1 s to build."""
    slow = standard().TempoTapDegara(sampleRateODF=RATE / 1024, resample="x2")
    fast = standard().TempoTapDegara(sampleRateODF=RATE / 512, resample="none")
    return slow, fast, standard().TempoTapMaxAgreement()


@lru_cache(maxsize=1)
def _counter() -> Any:
    return standard().Onsets(frameRate=onsets.FRAME_RATE)


def beats(window: Samples, *, quick: bool = False) -> Beats | None:
    """Where the beats of one window are. None: too short, or no tempo that can be meant."""
    if window.size < TEMPO_SECONDS * RATE:
        return None
    slow, fast, agree = _taps()
    confidence: float | None = None
    if quick:
        change, pulse = onsets.complex_difference(window, hann(onsets.FRAME))
        times, hop = slow(change), 2 * onsets.HOP
    else:
        found = onsets.detect(window, banks())
        pulse, hop = found.pulse, onsets.HOP
        series = [slow(found.complex), slow(found.energy), slow(found.mel), fast(found.emphasis), fast(found.gain)]
        times, confidence = agree(series)
        confidence = max(0.0, float(confidence))
        if not math.isfinite(confidence):
            return None
    bpm = tempo_of(times)
    low, high = TEMPO_RANGE
    if bpm is None or not low <= bpm <= high:
        return None
    seconds = np.asarray(times, np.float64)
    return Beats(seconds, bpm, confidence, *octave_clues(seconds, pulse, RATE / hop))


def octave_clues(
    times: NDArray[np.float64], pulse: onsets.Array, rate: float
) -> tuple[float | None, float | None, int]:
    """`alternation`, `between` and `stronger` of beats at `times`; `pulse` has `rate` values a second.

    None: too few beats to tell, or no drums.
    """
    if len(times) < LEAST_BEATS:
        return None, None, 0
    near = math.ceil(NEAR * rate)

    def at(moments: NDArray[np.float64]) -> NDArray[np.float64]:
        frames = np.round(moments * rate).astype(int) - 1
        inside = frames[(frames >= 0) & (frames < len(pulse))]
        return np.array([float(pulse[max(0, frame - near) : frame + near + 1].max()) for frame in inside] or [0.0])

    on = at(times)
    first, second = float(on[::2].mean()), float(on[1::2].mean() if len(on) > 1 else 0.0)
    if max(first, second) <= 0:
        return None, None, 0
    between = float(at((times[1:] + times[:-1]) / 2).mean() / on.mean())
    return min(first, second) / max(first, second), between, int(second > first)


def tempo_of(times: NDArray[Any]) -> float | None:
    """Beats a minute of beats at `times` (seconds): from the mean interval, slips left out. None: under three beats."""
    if len(times) < 3:
        return None
    intervals = np.diff(np.asarray(times, np.float64))
    median = float(np.median(intervals))
    regular = intervals[np.abs(intervals - median) <= ODD_INTERVAL * median]
    return 60 / float(regular.mean()) if regular.size and median > 0 else None


def onset_rate(window: Samples) -> float | None:
    """Onsets a second, as essentia's OnsetRate counts them. None: too short."""
    if window.size < ONSET_SECONDS * RATE:
        return None
    found = _counter()(onsets.changes(window, hann(1024)), np.ones(2, np.float32))
    return len(found) * RATE / window.size
