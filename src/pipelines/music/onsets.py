"""Where sounds begin: the five onset detection functions that a tempo of many minds is made of. numpy alone.

They are those of essentia's BeatTrackerMultiFeature (Zapata, Davies and Gomez 2014), from one short-time Fourier
transform instead of five and without a sine or an arctangent: a phase is used as its unit vector, so that predicting
it is a product. Equal within single precision (a test compares), at a quarter of the time.

All take mono sound at 44.1 kHz, frames of 2048 samples (Hann). `Onsets` says which have a hop of 1024, which of 512.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Spectra = NDArray[np.complex64]

FRAME = 2048
HOP = 512
BINS = FRAME // 2 + 1
FRAME_RATE = 44_100 / HOP
"""Frames a second at the shorter hop: 86.13."""

BLOCK = 128
"""Frames that are worked on at once: they fit the processor's cache."""

LEAST_MEL = 1e-10
"""Amplitude that stands for nothing in a band: -200 dB."""

GAIN_BINS = slice(2, 233)
"""Bins of 40 to 5,000 Hz, where information gain is measured (Hainsworth and Macleod 2003)."""

GAIN_WEIGHTS = np.float32(1) - np.arange(5, dtype=np.float32) * np.float32(0.18)
"""Weights of the five frames on either side, the nearest first."""

BASS_BINS, SNARE_BIN = 6, 68
"""Of those: up to 150 Hz is the bass drum, from 1,500 Hz on the snare."""

EMPHASIS_BANDS = 40
EMPHASIS_SPAN = 17
"""Frames of the moving average that a band must exceed to count (Davies, Plumbley and Eck 2009)."""

EMPHASIS_LAGS = 512
"""Longest period whose strength counts: 512 frames, 6 s."""

EMPHASIS_PEAK = 43.0
"""Frames of the period that the tempo preference (a Rayleigh curve) favours: 120 BPM."""

COMBS = 4
"""Multiples of a period that speak for it."""

EMPHASIS_CUT = 24
"""Bands weaker than the one of this index are left out. essentia means the 24th weakest and sorts an empty copy;
its authors chose their settings with what it does."""


class Banks(NamedTuple):
    """The analysis window, shape (2048,); filter banks, shape (1025, bands): gammatone-like, and Mel to 4 kHz."""

    window: Array
    erb: Array
    mel: Array


@dataclass(frozen=True)
class Onsets:
    """Detection functions, shape (frames,). Hop 1024: complex, energy, mel. Hop 512: gain, emphasis."""

    complex: Array
    energy: Array
    mel: Array
    gain: Array
    emphasis: Array
    pulse: Array
    """Hop 512: how much bass drum and snare begins, each in its own standard deviations."""


def detect(sound: Array, banks: Banks) -> Onsets:
    """All functions of `sound`, shape (n,) with n >= 2048."""
    long_frames = -(-(sound.size - FRAME) // (2 * HOP)) + 1
    short_frames = -(-(sound.size - FRAME) // HOP) + 1
    frames = _frames(sound, 2 * long_frames, FRAME, HOP)
    spectra, units = np.zeros((4, BINS), np.complex64), _first_units(4, BINS)
    parts: list[tuple[Array, ...]] = []
    for start in range(0, len(frames), BLOCK):  # an even number, so that every other frame stays every other frame
        fresh = np.fft.rfft(frames[start : start + BLOCK] * banks.window).astype(np.complex64, copy=False)
        spectra = np.concatenate([spectra[-4:], fresh])
        size = np.abs(spectra)
        unit = np.divide(spectra, size, out=np.ones_like(spectra), where=size > 0)
        unit[:4] = units
        units = unit[-4:]
        parts.append(_block(spectra, size, unit, banks))
    change, energy, mel, low, bands = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Onsets(
        complex=change,
        energy=_rise(energy),
        mel=_rise(20 * np.log10(np.maximum(mel, LEAST_MEL))).sum(1),
        gain=_information_gain(low[:short_frames]),
        emphasis=_beat_emphasis(bands[:short_frames].T),
        pulse=_pulse(low[:short_frames, :BASS_BINS].sum(1), low[:short_frames, SNARE_BIN:].sum(1)),
    )


def complex_difference(sound: Array, window: Array) -> tuple[Array, Array]:
    """The first function alone, at a hop of 1024, which the quick tracker goes by; and the pulse, at that hop too."""
    _, change, bass, snare = _changes(sound, window, 2 * HOP)
    return change, _pulse(bass, snare)


def changes(sound: Array, window: Array) -> Array:
    """High-frequency content and complex difference, frames of 1024 samples at a hop of 512: what single onsets are
    counted in (Brossier, Bello and Plumbley 2004). `window`: shape (1024,). Shape (2, frames)."""
    return np.stack(_changes(sound, window, HOP)[:2])


def _changes(sound: Array, window: Array, hop: int) -> tuple[Array, Array, Array, Array]:
    """Content, complex difference, and the magnitudes of bass and snare (for frames of 2048 samples)."""
    count = -(-(sound.size - window.size) // hop) + 1
    frames = _frames(sound, count, window.size, hop)
    bins = np.arange(window.size // 2 + 1, dtype=np.float32)
    size, unit = np.zeros((1, bins.size), np.float32), _first_units(2, bins.size)
    found = np.empty((4, count), np.float32)
    for start in range(0, count, BLOCK):
        spectra = np.fft.rfft(frames[start : start + BLOCK] * window).astype(np.complex64, copy=False)
        size = np.concatenate([size[-1:], np.abs(spectra)])
        fresh = np.divide(spectra, size[1:], out=np.ones_like(spectra), where=size[1:] > 0)
        unit = np.concatenate([unit[-2:], fresh])
        expected = np.square(unit[1:-1]) * np.conj(unit[:-2])
        found[0, start : start + BLOCK] = size[1:] @ bins
        found[1, start : start + BLOCK] = np.abs(size[:-1] - spectra * np.conj(expected)).sum(1)
        low = size[1:, GAIN_BINS]
        found[2, start : start + BLOCK] = low[:, :BASS_BINS].sum(1)
        found[3, start : start + BLOCK] = low[:, SNARE_BIN:].sum(1)
    return found[0], found[1], found[2], found[3]


def _frames(sound: Array, count: int, size: int, hop: int) -> Array:
    """`count` frames, the last ones filled up with silence; shape (count, size), a view."""
    whole = np.zeros((count - 1) * hop + size, np.float32)
    whole[: sound.size] = sound[: whole.size]
    return np.lib.stride_tricks.sliding_window_view(whole, size)[::hop]


def _first_units(count: int, bins: int) -> Spectra:
    """The unit vectors of what came before the sound: phase 0 for frames centred on time 0, half a frame from ours."""
    alternating = np.where(np.arange(bins) % 2, -1, 1).astype(np.complex64)
    return np.broadcast_to(alternating, (count, bins))


def _block(spectra: Spectra, size: Array, unit: Spectra, banks: Banks) -> tuple[Array, ...]:
    """What the frames after the first four say; those four are their past."""
    now, before = spectra[4:], size[3:-1]
    # essentia adds the phase of two frames ago here where prediction would subtract it, and chose its settings so.
    emphasis = before - now * np.conj(unit[3:-1] ** 2 * unit[2:-2])
    past, present = slice(2, -2, 2), slice(4, None, 2)
    change = np.abs(size[past] - spectra[present] * np.conj(unit[past] ** 2 * np.conj(unit[:-4:2]))).sum(1)
    power = np.square(size[present])
    return (
        change.astype(np.float32, copy=False),
        (np.sqrt(power.sum(1)) / BINS).astype(np.float32, copy=False),
        power @ banks.mel,
        size[4:, GAIN_BINS].copy(),
        (np.square(emphasis.real) + np.square(emphasis.imag)) @ banks.erb,
    )


def _pulse(bass: Array, snare: Array) -> Array:
    """What begins in either, in standard deviations of it."""
    rises = [_rise(bass), _rise(snare)]
    pulse: Array = sum((rise / (rise.std() or 1) for rise in rises), start=np.zeros(len(bass), np.float32))
    return pulse


def _rise(values: Array) -> Array:
    """What is more than in the frame before, along the first axis; 0 in the first frame."""
    rise: Array = np.maximum(np.diff(values, axis=0, prepend=values[:1]), 0)
    return rise


def _information_gain(low: Array) -> Array:
    """Sum over the bins of log2(after / before) where it is positive; `low`: shape (frames, bins)."""
    padded = np.concatenate([np.zeros((10, low.shape[1]), np.float32), low])
    gain = np.empty(len(low), np.float32)
    for start in range(0, len(low), BLOCK):
        count = min(BLOCK, len(low) - start)
        before, after = (
            sum(padded[start + first + i : start + first + i + count] * weight for i, weight in enumerate(weights))
            for first, weights in ((0, GAIN_WEIGHTS[::-1]), (6, GAIN_WEIGHTS))
        )
        before[before == 0] = 1
        after[after == 0] = np.finfo(np.float32).eps
        gain[start : start + count] = np.maximum(np.log2(after / before), 0).sum(1)
    return gain


def _beat_emphasis(bands: Array) -> Array:
    """Changes in 40 bands, each weighted by how regular they are; `bands`: shape (40, frames)."""
    spread = bands.std(1, keepdims=True)
    bands = (bands / np.where(spread > 0, spread, 1)).astype(np.float32)
    frames = bands.shape[1]
    padded = np.concatenate([bands, np.repeat(bands[:, -1:], EMPHASIS_SPAN - 1, 1)], 1)
    sums = np.concatenate([np.zeros((len(bands), 1)), np.cumsum(padded, 1, dtype=np.float64)], 1)
    mean = (sums[:, EMPHASIS_SPAN:] - sums[:, :-EMPHASIS_SPAN]) / EMPHASIS_SPAN
    above: Array = np.maximum(bands - mean, 0).astype(np.float32)
    filled = np.concatenate([above, padded[:, frames:]], 1)  # as essentia does, which forgets to take it off again
    weights = _regularity(_autocorrelation(filled, filled.shape[1]))
    weights[weights < weights[EMPHASIS_CUT]] = 0
    emphasis: Array = (weights @ above).astype(np.float32)
    return emphasis


def _autocorrelation(bands: Array, frames: int) -> NDArray[np.float64]:
    """Unbiased, at lags 0 to 511; 0 where the sound is shorter."""
    length = 1 << (2 * frames - 1).bit_length()
    lags = min(EMPHASIS_LAGS, frames)
    found = np.zeros((len(bands), EMPHASIS_LAGS))
    power = np.square(np.abs(np.fft.rfft(bands, length)))
    found[:, :lags] = np.fft.irfft(power, length)[:, :lags] / (frames - np.arange(lags))
    return found


def _regularity(correlation: NDArray[np.float64]) -> NDArray[np.float64]:
    """The strength of each band's best period, as a share of the best band's."""
    lag = np.arange(1, EMPHASIS_LAGS + 1)
    preference = lag / EMPHASIS_PEAK**2 * np.exp(-0.5 * np.square(lag / EMPHASIS_PEAK))
    periods = np.arange(COMBS - 1, (EMPHASIS_LAGS - COMBS + 1) // COMBS - 1)
    strength = np.zeros((len(correlation), len(periods)))
    for comb in range(1, COMBS + 1):
        for offset in range(1 - comb, comb):
            strength += correlation[:, periods * comb + offset] / (2 * comb - 1)
    best = (strength * preference[periods]).max(1)
    top = best.max()
    share: NDArray[np.float64] = best / top if top > 0 else best
    return share
