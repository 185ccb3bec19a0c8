"""Key, tuning and brightness of one window, from one pass over its spectra. Runs in child processes (imports essentia).

The chain is essentia's KeyExtractor with the profile `edma` (Faraldo et al. 2016, electronic dance music): frames of
4096 samples, 60 spectral peaks of 25 to 3,500 Hz, whitened, folded to 12 pitch classes, averaged, what is under a
fifth of the strongest left out, and correlated with the profiles of all keys. Run piece by piece, because the whole
tells only the best of the 24 (a test compares that one).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.music.aggregate import KEYS, SCALES
from pipelines.music.decode import RATE, SILENCE, Samples
from pipelines.music.essentia_windows import standard
from pipelines.music.rhythm import hann

FRAME = 4096

BLOCK = 64
"""Frames that are in memory at once."""

KEY_SECONDS = 1.0
"""Shorter sound is a note, not a key."""

LOWEST, HIGHEST = 25.0, 3500.0
"""Hz between which peaks count."""

LEAST_SHARE = 0.2
"""Share of the strongest pitch class under which another is left out."""

PROFILES = (
    (1.00, 0.29, 0.50, 0.40, 0.60, 0.56, 0.32, 0.80, 0.31, 0.45, 0.42, 0.39),
    (1.00, 0.31, 0.44, 0.58, 0.33, 0.49, 0.29, 0.78, 0.43, 0.29, 0.53, 0.32),
)
"""How much of each semitone above the tonic there is, in major and minor (`edma`, Faraldo et al. 2016)."""

TUNED = (220.0, 2000.0)
"""Hz of the peaks that tell the tuning: lower ones are too coarse, higher ones mostly overtones."""


@dataclass(frozen=True)
class Tonal:
    """`strengths`: correlation with each of the 24 keys in the order of `aggregate.KEYS` and `SCALES` (None: no pitch
    at all). `tuning`: sum of the peaks as vectors whose angle is their distance from the nearest semitone. `centroid`:
    mean of the frames' spectral centroids in Hz (None: all silent)."""

    strengths: tuple[float, ...] | None
    tuning: complex
    weight: float
    """Sum of the lengths of `tuning`'s vectors."""
    centroid: float | None


@lru_cache(maxsize=1)
def _chain() -> tuple[Any, Any, Any]:
    peaks = standard().SpectralPeaks(
        orderBy="magnitude",
        magnitudeThreshold=1e-4,
        minFrequency=LOWEST,
        maxFrequency=HIGHEST,
        maxPeaks=60,
        sampleRate=RATE,
    )
    whitening = standard().SpectralWhitening(maxFrequency=HIGHEST, sampleRate=RATE)
    hpcp = standard().HPCP(
        size=12,
        harmonics=4,
        bandPreset=False,
        minFrequency=LOWEST,
        maxFrequency=HIGHEST,
        nonLinear=False,
        normalized="none",
        weightType="cosine",
        windowSize=1,
        sampleRate=RATE,
    )
    return peaks, whitening, hpcp


@lru_cache(maxsize=1)
def _profiles() -> NDArray[np.float64]:
    """One row a key, each of mean 0 and length 1, shape (24, 12): major and minor of A, then of Bb, ..."""
    rows = np.stack([np.roll(profile, shift) for shift in range(12) for profile in PROFILES])
    rows -= rows.mean(1, keepdims=True)
    normed: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return normed


assert len(KEYS) * len(SCALES) == 24


def tonal(window: Samples) -> Tonal | None:
    """Everything of pitch in one window. None: too short."""
    if window.size < KEY_SECONDS * RATE:
        return None
    bins = np.arange(FRAME // 2 + 1, dtype=np.float32) * (RATE / FRAME)
    peaks, whitening, hpcp = _chain()
    chroma, tuning, weight = np.zeros(12), 0j, 0.0
    centroids: list[float] = []
    for spectra in _spectra(window):
        centroids += (spectra @ bins / spectra.sum(1)).tolist()
        for spectrum in spectra:
            frequencies, magnitudes = peaks(spectrum)
            chroma += hpcp(frequencies, whitening(spectrum, frequencies, magnitudes))
            inside = (frequencies > TUNED[0]) & (frequencies < TUNED[1])
            strength = magnitudes[inside]
            tuning += complex(np.sum(strength * np.exp(24j * np.pi * np.log2(frequencies[inside] / 440))))
            weight += float(strength.sum())
    centroid = sum(centroids) / len(centroids) if centroids else None
    return Tonal(strengths_of(chroma), tuning, weight, centroid)


def strengths_of(chroma: NDArray[np.float64]) -> tuple[float, ...] | None:
    """Correlation of 12 pitch classes (A first) with the profile of each key; None where all are equal or nothing."""
    chroma = np.where(chroma < LEAST_SHARE * chroma.max(), 0, chroma)
    chroma = chroma - chroma.mean()
    length = float(np.linalg.norm(chroma))
    return tuple((_profiles() @ chroma / length).tolist()) if length > 0 and np.isfinite(length) else None


def _spectra(window: Samples) -> Iterator[NDArray[np.float32]]:
    """Magnitudes of frames of 4096 samples side by side, the first centred on the start, without the silent ones; in
    blocks of shape (up to 64, 2049)."""
    count = -(-window.size // FRAME) + 1
    whole = np.zeros(count * FRAME, np.float32)
    whole[FRAME // 2 : FRAME // 2 + window.size] = window
    for block in np.array_split(whole.reshape(count, FRAME), -(-count // BLOCK)):
        heard = block[np.sqrt(np.mean(np.square(block), axis=1)) >= SILENCE]
        if len(heard):
            yield np.abs(np.fft.rfft(heard * hann(FRAME))).astype(np.float32, copy=False)
