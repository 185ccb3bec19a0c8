"""From windows to one answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music.aggregate import (
    KEYS,
    SCALES,
    KeyVote,
    TempoVote,
    camelot,
    combine_key,
    combine_tempo,
    same_tempo,
)

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
    assert found.heard in [vote.bpm for vote in heard]
    assert 0 <= found.agreement <= 1.0001
    assert 0 <= found.confidence <= 5.33


def test_nothing_heard_is_no_answer() -> None:
    assert combine_tempo([]) is None
    assert combine_key([]) is None


def vote(seconds: float, **strengths: float) -> KeyVote:
    """A window that hears nothing but these keys: `C_major=0.9`."""
    names = [f"{key}_{scale}" for key in KEYS for scale in SCALES]
    return KeyVote(tuple(strengths.get(name, 0.0) for name in names), seconds)


def test_the_key_with_the_most_strength_over_time_wins_and_the_next_ones_are_kept() -> None:
    found = combine_key([vote(60, A_minor=0.9, C_major=0.1), vote(60, C_major=0.8, A_minor=0.2), vote(60, C_major=0.7)])
    assert found is not None
    assert (found.key, found.scale) == ("C", "major")
    assert found.strength == pytest.approx(1.6 / 3)
    assert found.agreement == pytest.approx(2 / 3)
    assert found.others[0][:2] == ("A", "minor")
    assert found.others[0].strength == pytest.approx(1.1 / 3)


def test_what_correlates_with_no_key_has_none() -> None:
    assert combine_key([KeyVote((-0.1,) * 24, 60)]) is None


def test_other_tempi_that_were_heard_are_kept_with_their_share() -> None:
    found = combine_tempo([TempoVote(128, 3, 60)] * 3 + [TempoVote(96, 3, 60)])
    assert found is not None
    assert [(other.bpm, other.share) for other in found.others] == [(96, pytest.approx(0.25)), (64, 0.0)]


@pytest.mark.parametrize(("bpm", "octaves"), [(128, [64]), (90, [45, 180]), (60, [120]), (200, [100])])
def test_the_octaves_of_the_answer_are_always_kept_where_they_can_be_meant(bpm: float, octaves: list[float]) -> None:
    found = combine_tempo([TempoVote(bpm, 3, 60)])
    assert found is not None
    assert [other.bpm for other in found.others] == octaves


def test_an_octave_that_more_windows_heard_is_the_answer_and_the_other_is_kept() -> None:
    found = combine_tempo([TempoVote(85, 2, 60)] * 3 + [TempoVote(170, 2, 60)] * 2)
    assert found is not None
    assert found.bpm == 85
    assert found.others[0] == (170, pytest.approx(0.4))


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


@pytest.mark.parametrize(
    ("heard", "alternation", "between", "bpm"),
    [
        (128, 0.08, 0.03, 64),  # hats alone on every other beat
        (128, 0.45, 0.06, 128),  # bass drum, snare, bass drum, snare
        (86, 0.96, 0.45, 172),  # a snare on every one, a bass drum between
        (86, 0.46, 0.45, 86),
        (86, 0.96, 0.05, 86),
        (120, 0.96, 0.9, 120),  # four on the floor with an offbeat: 240 is no tempo
        (70, 0.05, 0.0, 70),  # 35 is none
        (100, None, None, 100),
    ],
)
def test_drums_tell_how_a_pulse_is_counted_and_the_heard_one_is_kept(
    heard: float, alternation: float | None, between: float | None, bpm: float
) -> None:
    found = combine_tempo([TempoVote(heard, 3, 60, alternation, between)] * 2)
    assert found is not None
    assert (found.bpm, found.heard) == (bpm, heard)
    if bpm != heard:
        assert found.others[0] == (heard, 1.0)
