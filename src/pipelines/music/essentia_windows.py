"""What essentia says about one window of sound. Only child processes import this: essentia never releases the GIL,
and 150 MB of it belong in no event loop.

The extractors are built once a process and reused (multifeature takes 0.2 s to construct). Windows must be finite
and in -1..1: one NaN hangs KeyExtractor for ever.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from typing import Any

import numpy as np

from pipelines.errors import ToolMissing
from pipelines.music.aggregate import KeyVote, TempoVote
from pipelines.music.decode import RATE, SILENCE, Samples

TEMPO_SECONDS = 3.0
"""Shorter sound has no tempo: under 0.9 s the extractor answers 0 BPM, under 3 s it guesses from a beat or two."""

KEY_SECONDS = 1.0
"""Shorter sound is a note, not a key."""

DANCE_SECONDS = 10.0
"""Detrended fluctuation analysis looks at spans up to 8.8 s (Streich and Herrera 2005)."""

TEMPO_RANGE = (40.0, 210.0)
"""BPM that multifeature can mean (its limits are 40 and 208); silence gives 738.28."""

DANCE_RANGE = (0.0, 4.0)
"""Danceability is normally 0 to 3; degenerate sound gives infinity."""


@lru_cache(maxsize=1)
def _extractors() -> dict[str, Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import essentia

        essentia.log.infoActive = False
        essentia.log.warningActive = False
        import essentia.standard as standard
    except ImportError as error:
        raise ToolMissing(f"essentia is not here ({error}): pip install 'phaze-agent[music]'") from error
    return {
        "tempo": standard.RhythmExtractor2013(method="multifeature"),
        "key": standard.KeyExtractor(profileType="edma", sampleRate=RATE),
        "dance": standard.Danceability(sampleRate=RATE),
    }


def warm_up() -> None:
    """Load essentia and build the extractors (about 1.3 s), or raise ToolMissing."""
    _extractors()


def essentia_version() -> str:
    """As the wheel names itself, such as `2.1-beta6-dev`."""
    import essentia

    return str(essentia.__version__)


def is_silent(window: Samples) -> bool:
    """True if the window's RMS is under -60 dBFS."""
    return window.size == 0 or float(np.sqrt(np.mean(np.square(window, dtype=np.float64)))) < SILENCE


def tempo(window: Samples) -> TempoVote | None:
    """RhythmExtractor2013, multifeature (Zapata, Davies and Gomez 2014). None: too short, or nonsense."""
    if window.size < TEMPO_SECONDS * RATE:
        return None
    bpm, _, confidence, _, _ = _extractors()["tempo"](window)
    low, high = TEMPO_RANGE
    if not low <= float(bpm) <= high or not math.isfinite(confidence):
        return None
    return TempoVote(float(bpm), max(0.0, float(confidence)), window.size / RATE)


def key(window: Samples) -> KeyVote | None:
    """KeyExtractor with the profile edma (Faraldo et al. 2016, electronic dance music). None: too short, nonsense."""
    if window.size < KEY_SECONDS * RATE:
        return None
    tonic, scale, strength = _extractors()["key"](window)
    if not math.isfinite(strength) or strength <= 0.0:
        return None
    return KeyVote(str(tonic), str(scale), float(strength), window.size / RATE)


def danceability(window: Samples) -> float | None:
    """Danceability (Streich and Herrera 2005), about 0 to 3. None: too short, or nonsense."""
    if window.size < DANCE_SECONDS * RATE:
        return None
    value = float(_extractors()["dance"](window)[0])
    low, high = DANCE_RANGE
    return value if low < value < high else None
