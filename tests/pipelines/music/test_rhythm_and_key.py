"""What is computed here instead of by essentia's own composites says what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.music import onsets
from pipelines.music.aggregate import best_key
from pipelines.music.decode import RATE, Decoder, Samples
from pipelines.music.essentia_windows import standard
from pipelines.music.rhythm import banks, beats, hann, onset_rate, tempo_of
from pipelines.music.samples import Sample, render
from pipelines.music.tonal import strengths_of, tonal

RECORDINGS = ("Vibe_Ace", "Lets_Go_Fishin", "ragtime", "Drum-bass", "Hungarian", "waltz", "trumpet", "glacier-bay")


def first_window(path: Path, seconds: float = 40) -> Samples:
    with Decoder(path, seconds) as decoder:
        return next(decoder.windows())


@pytest.fixture(scope="module")
def sounds(cases: Path, samples: list[Sample]) -> dict[str, Samples]:
    """Real recordings, synthesised ones, one that begins silent, noise; 5 to 40 s."""
    found = {
        name: first_window(next(path for path in (cases / "music").glob("*.ogg") if name in path.name))
        for name in RECORDINGS
    }
    found |= {sample.path.name: first_window(sample.path) for sample in samples[:3]}
    found["late"] = np.concatenate([np.zeros(3 * RATE, np.float32), found["Vibe_Ace"][: 10 * RATE]])
    found["noise"] = (np.random.default_rng(5).standard_normal(20 * RATE) * 0.1).astype(np.float32)
    return found


def test_beats_are_those_of_rhythm_extractor_2013(sounds: dict[str, Samples]) -> None:
    theirs = standard().RhythmExtractor2013(method="multifeature")
    same = 0
    for name, sound in sounds.items():
        bpm, times, confidence, _, _ = theirs(sound)
        found = beats(sound)
        assert found is not None, name
        # One function differs in silent frames, to which essentia adds noise: another of the five may then win.
        if len(found.times) == len(times) and np.abs(found.times - times).max() < 0.06:
            same += 1
            assert found.confidence == pytest.approx(confidence, abs=0.4), name
            if confidence > 1:  # below, beats are irregular, and their mean is a matter of taste
                assert found.bpm == pytest.approx(bpm, rel=0.02), name
    assert same >= len(sounds) - 2


def test_detection_functions_are_essentias(sounds: dict[str, Samples]) -> None:
    for name in ("Vibe_Ace", "ragtime", "Hungarian", "noise"):
        sound = sounds[name]
        found = onsets.detect(sound, banks())
        for ours, method in ((found.gain, "infogain"), (found.emphasis, "beat_emphasis")):
            theirs = standard().OnsetDetectionGlobal(method=method, frameSize=2048, hopSize=512)(sound)
            assert len(ours) == len(theirs)
            assert np.abs(ours - theirs).max() < 0.02 * theirs.max(), (name, method)
        frame_by_frame = [[], [], []]
        window, fft, polar = standard().Windowing(size=2048), standard().FFT(size=2048), standard().CartesianToPolar()
        detectors = [standard().OnsetDetection(method=method) for method in ("complex", "rms", "melflux")]
        for frame in standard().FrameGenerator(sound, frameSize=2048, hopSize=1024, startFromZero=True):
            magnitude, phase = polar(fft(window(frame)))
            for values, detector in zip(frame_by_frame, detectors, strict=True):
                values.append(detector(magnitude, phase))
        for ours, theirs in zip((found.complex, found.energy, found.mel), frame_by_frame, strict=True):
            assert len(ours) == len(theirs)
            assert np.abs(ours - theirs).max() < 0.01 * max(theirs), name


def test_the_quick_tracker_goes_by_the_first_function_alone(sounds: dict[str, Samples]) -> None:
    sound = sounds["Vibe_Ace"]
    alone, _ = onsets.complex_difference(sound, hann(onsets.FRAME))
    assert np.allclose(alone, onsets.detect(sound, banks()).complex, rtol=1e-4)
    found = beats(sound, quick=True)
    assert found is not None
    assert found.confidence is None


def test_onsets_are_counted_as_essentia_counts_them(sounds: dict[str, Samples]) -> None:
    for name in ("Vibe_Ace", "ragtime", "Hungarian"):
        assert onset_rate(sounds[name]) == pytest.approx(standard().OnsetRate()(sounds[name])[1], abs=0.05), name


def test_the_best_key_is_key_extractors_with_its_strength(sounds: dict[str, Samples]) -> None:
    theirs = standard().KeyExtractor(profileType="edma", sampleRate=RATE)
    for name, sound in sounds.items():
        key, scale, strength = theirs(sound)
        found = tonal(sound)
        assert found is not None
        assert found.strengths is not None
        best = best_key(found.strengths)
        if name != "late":  # essentia adds noise to silent frames, and lets it have a say
            assert (best.key, best.scale) == (key, scale), name
            assert best.strength == pytest.approx(strength, abs=0.01), name


def test_correlations_are_those_of_essentias_key(rng: np.random.Generator) -> None:
    theirs = standard().Key(profileType="edma", pcpSize=12, usePolyphony=False, useThreeChords=False)
    for _ in range(200):
        chroma = rng.uniform(0.3, 1, 12)
        key, scale, strength, _ = theirs(chroma.astype(np.float32))
        strengths = strengths_of(chroma)
        assert strengths is not None
        best = best_key(strengths)
        assert best.strength == pytest.approx(strength, abs=1e-4)
        assert (best.key, best.scale) == (key, scale)


def test_no_pitch_correlates_with_nothing() -> None:
    assert strengths_of(np.zeros(12)) is None
    assert strengths_of(np.ones(12)) is None


@pytest.mark.parametrize("bpm", [61, 87.5, 120, 128.4, 174])
def test_a_tempo_is_told_to_a_hundredth(bpm: float) -> None:
    found = beats(render(bpm, "A", "minor", round(30 * bpm / 240)).astype(np.float32))
    assert found is not None
    nearest = min((bpm / 2, bpm, bpm * 2), key=lambda octave: abs(octave - found.bpm))
    assert found.bpm == pytest.approx(nearest, rel=0.005)


def test_slips_do_not_move_the_tempo() -> None:
    times = [i * 0.5 for i in range(40)]
    assert tempo_of(np.array([*times[:10], *times[11:20], 9.75, *times[20:]])) == pytest.approx(120)
    assert tempo_of(np.array([1.0, 2.0])) is None


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)
