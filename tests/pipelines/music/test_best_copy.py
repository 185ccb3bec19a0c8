"""Which copy of a recording is the best one to keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music.duplicates import Copy, best_copy

MP3 = Copy("/b.mp3", codec="mp3", duration=200.0, bit_rate=192_000)
FLAC = Copy("/z.flac", codec="flac", duration=200.0, bit_rate=900_000)


@pytest.mark.parametrize(
    ("better", "worse", "reason"),
    [
        (MP3, replace(FLAC, whole=False), "whole"),
        (FLAC, replace(MP3, duration=400.0, bit_rate=2_000_000), "lossless"),
        (replace(MP3, duration=210.0), replace(MP3, path="/a.mp3", bit_rate=320_000), "longest"),
        (replace(MP3, duration=200.9), replace(MP3, path="/a.mp3", bit_rate=128_000), "bit rate"),
        (replace(MP3, channels=2), replace(MP3, path="/a.mp3", channels=1, bit_rate=320_000), "channels"),
        (replace(MP3, channels=1), replace(MP3, path="/a.mp3"), "channels"),
        (replace(MP3, channels=1, duration=210.0), replace(MP3, channels=2), "longest"),
        (MP3, replace(MP3, path="/c.mp3"), "equal"),
        (
            replace(MP3, duration=None, bit_rate=None),
            replace(MP3, path="/c.mp3", duration=None, bit_rate=None),
            "equal",
        ),
    ],
)
def test_each_rule_decides_where_those_before_it_do_not(better: Copy, worse: Copy, reason: str) -> None:
    assert best_copy([better, worse]) == (0, reason)
    assert best_copy([worse, better]) == (1, reason)


@pytest.mark.parametrize(
    ("codec", "lossless"),
    [("flac", True), ("pcm_s24le", True), ("ALAC", True), ("dsd_lsbf", True), ("mp3", False), ("vorbis", False),
     ("opus", False), ("aac", False), (None, False)],
)  # fmt: skip
def test_which_codecs_are_lossless(codec: str | None, lossless: bool) -> None:
    assert Copy("/a", codec=codec).lossless is lossless


COPIES = st.builds(
    Copy,
    path=st.sampled_from("abcdefgh"),
    whole=st.booleans(),
    codec=st.sampled_from([None, "mp3", "flac"]),
    duration=st.none() | st.floats(0, 5),
    bit_rate=st.none() | st.integers(0, 3),
    channels=st.none() | st.integers(1, 3),
)


@given(st.lists(COPIES, min_size=1, max_size=8, unique_by=lambda copy: copy.path), st.randoms())
def test_the_answer_does_not_depend_on_the_order(copies: list[Copy], shuffle: object) -> None:
    place, reason = best_copy(copies)
    mixed = list(copies)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    again, same = best_copy(mixed)
    assert (mixed[again], same) == (copies[place], reason)
    whole = [copy for copy in copies if copy.whole]
    assert copies[place] in (whole or copies)
