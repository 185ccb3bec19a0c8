"""What essentia says about one window of sound. Only child processes import this: essentia never releases the GIL,
and 150 MB of it belong in no event loop.

Its algorithms are built once a process and reused. Windows must be finite and in -1..1: one NaN hangs the key for
ever. Tempo and key have modules of their own (`rhythm`, `tonal`), on the algorithms of this one.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from typing import Any

import numpy as np

from pipelines.errors import ToolMissing
from pipelines.music.decode import RATE, SILENCE, Samples

DANCE_SECONDS = 10.0
"""Detrended fluctuation analysis looks at spans up to 8.8 s (Streich and Herrera 2005)."""

DANCE_RANGE = (0.0, 4.0)
"""Danceability is normally 0 to 3; degenerate sound gives infinity."""

DYNAMICS_SECONDS = 2.0
"""Loudness is compared over spans of 0.2 s; a handful of them says nothing."""


@lru_cache(maxsize=1)
def standard() -> Any:
    """essentia.standard, silenced before it is imported. Raises ToolMissing."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import essentia

        essentia.log.infoActive = False
        essentia.log.warningActive = False
        import essentia.standard
    except ImportError as error:
        raise ToolMissing(f"essentia is not here ({error}): pip install 'phaze-agent[music]'") from error
    return essentia.standard


@lru_cache(maxsize=1)
def _dance() -> Any:
    return standard().Danceability(sampleRate=RATE)


@lru_cache(maxsize=1)
def _dynamics() -> Any:
    return standard().DynamicComplexity(sampleRate=RATE, frameSize=0.2)


def essentia_version() -> str:
    """As the wheel names itself, such as `2.1-beta6-dev`."""
    import essentia

    return str(essentia.__version__)


def is_silent(window: Samples) -> bool:
    """True if the window's RMS is under -60 dBFS."""
    return window.size == 0 or float(np.linalg.norm(window)) < SILENCE * math.sqrt(window.size)


def danceability(window: Samples) -> float | None:
    """Danceability (Streich and Herrera 2005), about 0 to 3. None: too short, or nonsense."""
    if window.size < DANCE_SECONDS * RATE:
        return None
    value = float(_dance()(window)[0])
    low, high = DANCE_RANGE
    return value if low < value < high else None


def dynamic_complexity(window: Samples) -> float | None:
    """How far the loudness of 0.2 s strays from the window's, on average, in dB (Streich 2006). None: too short."""
    if window.size < DYNAMICS_SECONDS * RATE:
        return None
    value = float(_dynamics()(window)[0])
    return value if np.isfinite(value) else None
