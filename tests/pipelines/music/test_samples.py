"""The synthesised set is what it says."""

from __future__ import annotations

from pathlib import Path

from pipelines.music.metadata import read_metadata
from pipelines.music.samples import ARTIST, Sample, write_samples


def test_the_set_is_small_varied_and_tagged(samples: list[Sample]) -> None:
    assert 6 <= len(samples) <= 8
    assert {sample.path.suffix for sample in samples} == {".flac", ".mp3", ".ogg"}
    assert {sample.scale for sample in samples} == {"major", "minor"}
    assert sum(sample.path.stat().st_size for sample in samples) < 8_000_000
    for sample in samples:
        tags = read_metadata(sample.path)
        assert (tags.artist, tags.title) == (ARTIST, sample.title)
        assert tags.duration is not None
        assert 20 <= tags.duration <= 40


def test_one_pair_is_the_same_recording(samples: list[Sample]) -> None:
    copies = [sample for sample in samples if sample.duplicate_of]
    assert [copy.duplicate_of for copy in copies] == [samples[3].path]


def test_writing_again_writes_the_same_bytes(samples: list[Sample], tmp_path: Path) -> None:
    for first, again in zip(samples, write_samples(tmp_path / "again"), strict=True):
        assert first.path.read_bytes() == again.path.read_bytes()
