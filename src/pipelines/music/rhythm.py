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

ONSET_SECONDS = 1.0
"""Shorter sound has an onset, not a rate."""


@dataclass(frozen=True)
class Beats:
    """`times`: seconds from the window's start, ascending; `bpm`; `confidence` 0 to 5.32 (None: nobody judged)."""

    times: NDArray[np.float64]
    bpm: float
    confidence: float | None


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
        times = slow(onsets.complex_difference(window, hann(onsets.FRAME)))
    else:
        found = onsets.detect(window, banks())
        series = [slow(found.complex), slow(found.energy), slow(found.mel), fast(found.emphasis), fast(found.gain)]
        times, confidence = agree(series)
        confidence = max(0.0, float(confidence))
        if not math.isfinite(confidence):
            return None
    bpm = tempo_of(times)
    low, high = TEMPO_RANGE
    return Beats(np.asarray(times, np.float64), bpm, confidence) if bpm is not None and low <= bpm <= high else None


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
