"""The grid says where the beats are, in as few markers as the tempo allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music.grid import CLOSE, Marker, at_octave, fit_grid, is_steady


def written(markers: list[Marker]) -> list[float]:
    return [marker.at + n * 60 / marker.bpm for marker in markers for n in range(marker.beats)]


def steady(bpm: float, seconds: float, start: float = 0.3) -> list[float]:
    """Beats as they are heard: to 11.6 ms."""
    return [round((start + i * 60 / bpm) / 0.0116) * 0.0116 for i in range(int(seconds * bpm / 60))]


@pytest.mark.parametrize("bpm", [60, 92.3, 128, 174.9])
def test_a_steady_piece_has_one_marker_with_its_tempo(bpm: float) -> None:
    (marker,) = fit_grid(steady(bpm, 300))
    assert marker.bpm == pytest.approx(bpm, rel=1e-4)
    assert marker.at == pytest.approx(0.3, abs=0.01)
    assert marker.beats == int(300 * bpm / 60)


def test_missing_and_stray_beats_do_not_break_it() -> None:
    times = steady(120, 120)
    del times[50:58], times[100]
    markers = fit_grid(sorted([*times, times[20] + 0.2, times[150] + 0.13]))
    assert len(markers) == 1
    assert markers[0].bpm == pytest.approx(120, rel=1e-3)
    assert markers[0].beats == 240


def test_each_tempo_of_a_set_has_its_marker() -> None:
    markers = fit_grid([*steady(120, 60), *steady(126, 60, 60.4), *steady(140, 60, 120.2)])
    assert [round(marker.bpm) for marker in markers if marker.beats > 20] == [120, 126, 140]


@given(st.lists(st.floats(0.28, 1.5), min_size=2, max_size=120))
def test_beats_lie_on_the_grid_or_are_single_strays(intervals: list[float]) -> None:
    times, now = [], 0.0
    for interval in intervals:
        now += interval
        times.append(now)
    grid = written(fit_grid(times))
    off = [time for time in times if min((abs(time - beat) for beat in grid), default=9) > 3 * CLOSE]
    assert len(off) <= len(times) / 2
    assert grid == sorted(grid) or len(grid) < 2 * len(times) + 2


def test_few_beats_have_no_grid_and_no_steadiness() -> None:
    assert fit_grid([]) == []
    assert fit_grid([1.0]) == []
    assert is_steady([[0.0, 0.5, 1.0]]) is None


def test_steady_and_variable() -> None:
    assert is_steady([steady(120, 60), steady(120.8, 60)]) is True
    assert is_steady([steady(120, 60), steady(126, 60)]) is False
    faster = [0.0]
    while faster[-1] < 60:
        faster.append(faster[-1] + 60 / (100 + faster[-1]))
    assert is_steady([faster]) is False


def test_beats_are_counted_in_the_pieces_octave() -> None:
    times = [0.0, 0.5, 1.0, 1.5]
    assert at_octave(times, 120, 60) == [0.0, 1.0]
    assert at_octave(times, 120, 60, 1) == [0.5, 1.5]
    assert at_octave(times, 120, 120.4) == times
    assert at_octave(times, 120, 240) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5]
    assert at_octave(times, 120, 90) == times
