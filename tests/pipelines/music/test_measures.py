"""Each measured thing against sound whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from pipelines.errors import ToolMissing
from pipelines.music.analyze import Analysis, AnalyzePayload, analyze
from pipelines.music.decode import RATE
from pipelines.music.limits import analyze_seconds
from pipelines.music.profiles import PROFILES, SCHEMA, profile_name, profile_of
from pipelines.music.samples import NOTES, render
from tests.pipelines.conftest import Make
from tests.pipelines.music.test_decode import float_wav, noise


def tone(seconds: float, hertz: float, level: float = 0.3) -> np.ndarray:
    return level * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)


@pytest.mark.parametrize("level", [-20.0, -6.0, -1.0])
def test_loudness_peak_and_replaygain_of_a_calibrated_sine(make: Make, level: float) -> None:
    # ITU-R BS.1770-4: 997 Hz at 0 dBFS in both channels reads 0 LUFS; ReplayGain 2.0 brings it to -18.
    amplitude = 10 ** (level / 20)
    expression = f"aevalsrc={amplitude}*sin(2*PI*997*t)|{amplitude}*sin(2*PI*997*t):d=12:s=48000"
    found = analyze(make(f"cal{level}.wav", "-f", "lavfi", "-i", expression, "-c:a", "pcm_f32le"), "fast")
    assert found.loudness == pytest.approx(level, abs=0.15)
    assert found.sample_peak == pytest.approx(level, abs=0.1)
    assert found.replaygain == pytest.approx(-18 - level, abs=0.15)


def test_the_peak_is_the_louder_channels(make: Make) -> None:
    expression = "aevalsrc=0.5*sin(2*PI*440*t)|0.05*sin(2*PI*440*t):d=5:s=44100"
    found = analyze(make("left.wav", "-f", "lavfi", "-i", expression, "-c:a", "pcm_f32le"), "fast")
    assert found.sample_peak == pytest.approx(20 * np.log10(0.5), abs=0.1)


@pytest.mark.parametrize("a4", [432.0, 440.0, 446.0])
def test_tuning_is_that_of_the_instruments(tmp_path: Path, a4: float) -> None:
    chord = sum(tone(6, a4 * 2 ** (semitones / 12), 0.15) for semitones in (0, 4, 7, 12))
    assert analyze(float_wav(tmp_path / "a.wav", chord)).tuning == pytest.approx(a4, abs=0.7)


def test_noise_has_no_tuning_and_the_centroid_of_white_noise(tmp_path: Path) -> None:
    found = analyze(float_wav(tmp_path / "n.wav", noise(8)))
    assert found.spectral_centroid == pytest.approx(RATE / 4, rel=0.03)


def test_the_centroid_of_a_sine_is_its_frequency(tmp_path: Path) -> None:
    assert analyze(float_wav(tmp_path / "s.wav", tone(5, 2000))).spectral_centroid == pytest.approx(2000, rel=0.03)


@pytest.mark.parametrize("rate", [2.0, 4.0])
def test_onsets_are_counted(tmp_path: Path, rate: float) -> None:
    seconds = 20
    sound = np.zeros(seconds * RATE)
    for i in range(int(seconds * rate)):
        start = int(i / rate * RATE)
        ping = tone(0.15, 900) * np.exp(-30 * np.arange(int(0.15 * RATE)) / RATE)
        sound[start : start + ping.size] += ping[: sound.size - start]
    assert analyze(float_wav(tmp_path / "o.wav", sound)).onset_rate == pytest.approx(rate, rel=0.06)


def test_dynamic_complexity_is_the_mean_distance_from_the_mean_loudness(tmp_path: Path) -> None:
    even = analyze(float_wav(tmp_path / "even.wav", noise(20))).dynamic_complexity
    steps = noise(20) * np.where(np.arange(20 * RATE) // RATE % 2, 1.0, 0.1)  # 20 dB apart, each for half of the time
    uneven = analyze(float_wav(tmp_path / "steps.wav", steps)).dynamic_complexity
    assert even == pytest.approx(0, abs=0.3)
    assert uneven == pytest.approx(10, abs=2.5)


def test_a_beat_is_more_danceable_than_noise(tmp_path: Path) -> None:
    groove = analyze(float_wav(tmp_path / "groove.wav", render(124, "A", "minor", 12)))
    hiss = analyze(float_wav(tmp_path / "hiss.wav", noise(20)))
    assert groove.danceability is not None
    assert hiss.danceability is None or groove.danceability > hiss.danceability


@pytest.mark.parametrize("profile", ["fast", "default"])
def test_the_grid_lies_on_the_beats(tmp_path: Path, profile: str) -> None:
    found = analyze(float_wav(tmp_path / "grid.wav", render(122.5, "C", "major", 34)), profile)  # type: ignore[arg-type]
    assert found.tempo == "steady"
    assert found.bpm == pytest.approx(122.5, rel=0.002)
    heard = found.beats()
    true = np.arange(34 * 4) * 60 / 122.5
    assert len(heard) == pytest.approx(len(true), abs=6)
    distances = [min(abs(true - time)) for time in heard if time < true[-1]]
    assert np.quantile(distances, 0.95) < 0.035


@pytest.mark.parametrize("bpm", [64.0, 172.0])
def test_a_tempo_heard_an_octave_off_is_counted_right_with_its_grid(tmp_path: Path, bpm: float) -> None:
    bars = round(30 * bpm / 240)
    found = analyze(float_wav(tmp_path / "octave.wav", render(bpm, "A", "minor", bars)))
    assert found.bpm == pytest.approx(bpm, rel=0.01)
    true = np.arange(bars * 4) * 60 / bpm
    heard = [time for time in found.beats() if time < true[-1]]
    assert len(heard) == pytest.approx(len(true), abs=4)
    assert np.quantile([min(abs(true - time)) for time in heard], 0.8) < 0.04  # its first beats it finds late
    assert any(abs(other.bpm / bpm - octave) < 0.02 for other in found.bpm_alternatives for octave in (0.5, 2))


def test_a_set_of_two_tempi_and_keys_has_a_curve_and_is_variable(tmp_path: Path) -> None:
    two = np.concatenate([render(100, "A", "minor", 25)[: 60 * RATE], render(132, "F", "major", 33)[: 60 * RATE]])
    found = analyze(float_wav(tmp_path / "two.wav", two))
    assert found.tempo == "variable"
    assert [(round(view.bpm or 0), view.key, view.scale) for view in found.windows] == [
        (100, "A", "minor"),
        (132, "F", "major"),
    ]
    assert [view.start for view in found.windows] == [0, 60]
    assert {round(marker.bpm) for marker in found.grid if marker.beats > 50} == {100, 132}
    others = {round(other.bpm): other.share for other in found.bpm_alternatives}
    assert max(others.values()) == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("scale", ["major", "minor"])
@pytest.mark.parametrize("key", NOTES)
def test_every_key_is_heard(tmp_path: Path, key: str, scale: str) -> None:
    found = analyze(float_wav(tmp_path / "key.wav", render(110, key, scale, 8)), "fast")
    assert (found.key, found.scale) == (key, scale)
    assert len(found.key_alternatives) == 3
    assert (found.key_strength or 0) >= found.key_alternatives[0].strength


def test_a_truncated_file_lasts_what_it_declares_and_is_partial(make: Make, tmp_path: Path) -> None:
    whole = make("whole.flac", "-f", "lavfi", "-i", "anoisesrc=d=20:a=0.1").read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    found = analyze(tmp_path / "cut.flac")
    assert found.partial
    assert found.duration == pytest.approx(20, abs=0.1)
    assert found.decoded_duration == pytest.approx(10, abs=1)
    assert not analyze(make("whole.flac", "-f", "lavfi", "-i", "anoisesrc=d=20:a=0.1"), "fast").partial


# -- profiles


def test_the_fast_profile_leaves_out_what_costs_and_says_so(tmp_path: Path) -> None:
    path = float_wav(tmp_path / "p.wav", render(120, "A", "minor", 10))
    fast, default = analyze(path, "fast"), analyze(path)
    assert (fast.profile, default.profile) == ("fast", "default")
    assert fast.bpm == pytest.approx(default.bpm, rel=0.01)
    assert (fast.bpm_confidence, fast.onset_rate) == (None, None)
    assert (fast.key, fast.loudness) == (default.key, default.loudness)


def test_the_full_profile_without_models_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_MODELS_DIR", str(tmp_path / "none"))
    with pytest.raises(ToolMissing, match="phaze models install"):
        analyze(float_wav(tmp_path / "p.wav", noise(2)), "full")


def test_a_version_names_its_profile() -> None:
    for profile in PROFILES:
        assert profile_of(f"{'0' * 64}:{profile_name(profile)}") == profile
        assert profile_of(f"{'0' * 64}+{profile}") == profile
        assert AnalyzePayload(version=f"0:{profile}-{SCHEMA}", path="/a", size=1).profile == profile
    assert profile_of("0" * 64) == "default"
    with pytest.raises(ValidationError, match="is not a profile; the profiles are fast, default, full"):
        AnalyzePayload(version="0:slow-2", path="/a", size=1)


def test_models_have_more_time() -> None:
    payload = AnalyzePayload(version="0:full-2", path="/a", size=5_000_000)
    assert analyze_seconds(payload, models=True) == 4 * analyze_seconds(payload)


def test_the_result_survives_json() -> None:
    found = Analysis(bpm=120.0)
    assert Analysis.model_validate_json(found.model_dump_json()) == found
