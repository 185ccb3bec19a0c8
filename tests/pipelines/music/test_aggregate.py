"""From windows to one answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music.aggregate import KeyVote, TempoVote, camelot, combine_key, combine_tempo, same_tempo

votes = st.builds(TempoVote, st.floats(40, 208), st.floats(0, 5.32), st.floats(3, 60))


def test_one_odd_window_moves_nothing() -> None:
    found = combine_tempo([TempoVote(128, 3.5, 60)] * 5 + [TempoVote(93, 1.0, 60)])
    assert found is not None
    assert found.bpm == 128
    assert found.agreement > 0.9


def test_octave_errors_speak_for_the_tempo_that_most_agree_on() -> None:
    found = combine_tempo([TempoVote(170, 2, 60), TempoVote(85, 2, 60), TempoVote(85.4, 2, 60), TempoVote(120, 3, 60)])
    assert found is not None
    assert same_tempo(found.bpm, 85)


def test_windows_without_confidence_still_give_an_answer() -> None:
    found = combine_tempo([TempoVote(100, 0, 60)])
    assert found is not None
    assert (found.bpm, found.confidence) == (100, 0)


@given(st.lists(votes, min_size=1, max_size=30))
def test_the_tempo_is_one_that_a_window_heard(heard: list[TempoVote]) -> None:
    found = combine_tempo(heard)
    assert found is not None
    assert found.bpm in [vote.bpm for vote in heard]
    assert 0 <= found.agreement <= 1.0001
    assert 0 <= found.confidence <= 5.33


def test_nothing_heard_is_no_answer() -> None:
    assert combine_tempo([]) is None
    assert combine_key([]) is None


def test_the_key_with_the_most_strength_over_time_wins() -> None:
    found = combine_key(
        [KeyVote("A", "minor", 0.9, 60), KeyVote("C", "major", 0.8, 60), KeyVote("C", "major", 0.7, 60)]
    )
    assert found is not None
    assert (found.key, found.scale) == ("C", "major")
    assert found.strength == pytest.approx(0.75)
    assert found.agreement == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("key", "scale", "code"),
    [
        ("A", "minor", "8A"),
        ("C", "major", "8B"),
        ("Ab", "minor", "1A"),
        ("B", "major", "1B"),
        ("C#", "minor", "12A"),
        ("E", "major", "12B"),
        ("F#", "minor", "11A"),
        ("Eb", "minor", "2A"),
    ],
)
def test_camelot_codes_are_those_of_the_wheel(key: str, scale: str, code: str) -> None:
    assert camelot(key, scale) == code


def test_every_key_of_essentia_has_its_own_code() -> None:
    keys = ["A", "Bb", "B", "C", "C#", "D", "Eb", "E", "F", "F#", "G", "Ab"]
    assert len({camelot(key, scale) for key in keys for scale in ("major", "minor")}) == 24
