"""What an analysis says, and what it does not pretend to know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipelines.context import InlineContext, policy_of
from pipelines.errors import InputRejected, RecordNotFoundError
from pipelines.music import essentia_windows as ask
from pipelines.music import rhythm
from pipelines.music.aggregate import same_tempo
from pipelines.music.analyze import Analysis, AnalyzePayload, analyze, process_file
from pipelines.music.decode import RATE
from pipelines.music.samples import Sample
from pipelines.music.tonal import tonal
from pipelines.payload import encode_path
from tests.pipelines.conftest import Make
from tests.pipelines.music.test_decode import float_wav, noise

HASH = "0" * 64


def payload(path: Path, size: int | None = None) -> AnalyzePayload:
    return AnalyzePayload(
        version=f"{HASH}:default", path=encode_path(path), size=path.stat().st_size if size is None else size
    )


def slugs(result: Analysis) -> set[str]:
    return {warning.partition(":")[0] for warning in result.warnings}


def test_every_sample_comes_out_with_its_tempo_and_key(samples: list[Sample]) -> None:
    for sample in samples:
        found = analyze(sample.path)
        assert found.bpm is not None
        assert same_tempo(found.bpm, sample.bpm), (sample, found)
        assert (found.key, found.scale) == (sample.key, sample.scale), (sample, found)
        assert found.bpm_confidence is not None
        assert found.bpm_confidence > 2
        assert found.camelot
        assert found.danceability
        assert (found.outcome, found.warnings) == ("done", [])
        assert set(found.versions) == {"schema", "essentia", "ffmpeg"}


async def test_the_task_says_what_the_function_says(samples: list[Sample]) -> None:
    result = await process_file(InlineContext(), payload(samples[0].path))
    assert result == analyze(samples[0].path)
    assert Analysis.model_validate_json(result.model_dump_json()) == result


async def test_a_file_that_is_gone_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with pytest.raises(RecordNotFoundError):
        await process_file(InlineContext(), payload(tmp_path / "gone.mp3", size=1))


def test_time_limits_grow_with_the_file() -> None:
    def seconds(size: int) -> float:
        return policy_of(process_file).timeout(AnalyzePayload(version="", path="/a", size=size))

    assert seconds(0) == 120
    assert seconds(10_000_000) == 720
    assert seconds(10**12) == 12 * 3600


def test_silence_has_no_tempo_no_key_no_loudness(make: Make) -> None:
    found = analyze(make("quiet.flac", "-f", "lavfi", "-i", "anullsrc", "-t", "15"))
    assert (found.outcome, found.bpm, found.key, found.loudness, found.danceability) == ("done", None, None, None, None)
    assert slugs(found) == {"no-tempo", "no-key", "no-loudness", "no-danceability"}
    assert all("silent" in warning for warning in found.warnings if not warning.startswith("no-loudness"))


@pytest.mark.parametrize("seconds", [0.01, 0.5, 2.0])
def test_sound_too_short_for_a_tempo_has_none(tmp_path: Path, seconds: float) -> None:
    found = analyze(float_wav(tmp_path / "short.wav", noise(seconds)))
    assert found.outcome == "done"
    assert found.bpm is None
    assert "no-tempo" in slugs(found)


def test_a_truncated_file_is_partial_with_its_reason(samples: list[Sample], tmp_path: Path) -> None:
    whole = samples[0].path.read_bytes()
    (tmp_path / "half.flac").write_bytes(whole[: len(whole) // 2])
    found = analyze(tmp_path / "half.flac")
    assert (found.outcome, found.reason) == ("partial", "short")
    assert found.bpm is not None


def test_nan_in_a_file_neither_hangs_nor_reaches_json(tmp_path: Path) -> None:
    samples = noise(12)
    samples[::5000] = np.nan
    found = analyze(float_wav(tmp_path / "nan.wav", samples))
    assert "bad-samples" in slugs(found)
    assert "NaN" not in json.dumps(json.loads(found.model_dump_json()), allow_nan=False).replace("were NaN", "")


def test_what_is_not_audio_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(b"nothing of the kind " * 1000)
    with pytest.raises(InputRejected, match="not-audio"):
        analyze(tmp_path / "a.mp3")


def test_windows_are_voted_on_and_silent_ones_are_skipped(samples: list[Sample], make: Make) -> None:
    path = make("gap.flac", "-i", samples[3].path, "-af", "apad=pad_dur=65", "-t", "90")
    found = analyze(path)
    assert len(found.windows) == 1
    assert found.bpm is not None
    assert same_tempo(found.bpm, samples[3].bpm)
    assert found.trailing_silence is not None
    assert found.trailing_silence > 59


# -- facts about essentia that the gates rest on


def test_fact_multifeature_on_silence_says_738_bpm() -> None:
    tracker = ask.standard().RhythmExtractor2013(method="multifeature")
    assert tracker(np.zeros(20 * RATE, dtype=np.float32))[0] == pytest.approx(738.28, abs=0.1)
    assert rhythm.beats(np.zeros(20 * RATE, dtype=np.float32)) is None


def test_fact_extractors_hold_no_state_between_windows(samples: list[Sample]) -> None:
    sound = noise(12).astype(np.float32)

    def heard() -> list[object]:
        found = rhythm.beats(sound)
        assert found is not None
        return [
            *(found.times.tolist(), found.bpm, found.confidence, tonal(sound), rhythm.onset_rate(sound)),
            *(ask.danceability(sound), ask.dynamic_complexity(sound)),
        ]

    first = heard()
    analyze(samples[1].path)
    assert heard() == first


def test_fact_one_nan_hangs_key_extractor() -> None:
    code = """
import numpy as np
from pipelines.music.essentia_windows import standard
key = standard().KeyExtractor(profileType="edma")
sound = np.random.default_rng(1).standard_normal(44100 * 5).astype("float32") * 0.1
key(sound)
print("warm", flush=True)
sound[1000] = np.nan
key(sound)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"warm\n"
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(5)  # an ordinary call takes 20 ms
        finally:
            child.kill()
