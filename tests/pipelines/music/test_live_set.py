"""A set mixed from real tracks becomes its tracklist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.context import InlineContext, policy_of
from pipelines.errors import InputRejected, NotAnswered
from pipelines.music.fingerprint import Fingerprint, fingerprint
from pipelines.music.live_set import (
    Heard,
    Hearing,
    IndexAway,
    LiveSetPayload,
    SetTrack,
    Tracklist,
    choose,
    gaps,
    merge,
    read_set,
    scan_live_set,
    tracklist_of,
)
from pipelines.music.print_index import PrintIndex
from pipelines.music.prints import PER_SECOND, REACH, decode_items
from pipelines.music.tracklists import Written
from pipelines.payload import encode_path
from tests.pipelines.conftest import Make

BLEND = 8.0
"""Seconds for which one track fades into the next."""

PLAYED = [
    (0, 30.0, 80.0, 1.0),
    (3, 10.0, 75.0, 1.04),
    (1, 40.0, 80.0, 0.96),
    (4, 0.0, 75.0, 1.02),
    (2, 20.0, 70.0, 0.98),
]
"""(track, from second, seconds of it, tempo) in the order of the set."""


def ears(index: PrintIndex) -> InlineContext:
    """A context that hears with an index in this process, as the hub does in another."""

    def prints(question: Mapping[str, Any]) -> dict[str, Any]:
        rows = [
            Heard(
                file_id=span.track,
                start=span.start / PER_SECOND,
                end=span.end / PER_SECOND + REACH,
                begin=span.begin / PER_SECOND,
                finish=span.finish / PER_SECOND + REACH,
                length=index.size(span.track) / PER_SECOND + REACH,
                ber=span.ber,
                artist="The Library",
                title=index.name(span.track),
            )
            for span in index.find(np.array(decode_items(question["raw"]), dtype=np.uint32))
        ]
        return Hearing(heard=rows, indexed=len(index)).model_dump(mode="json")

    return InlineContext("999", {"prints": prints})


@pytest.fixture(scope="session")
def shelf(real_music: list[Path]) -> PrintIndex:
    """The real tracks in an index; those of the set among others."""
    index = PrintIndex()
    for path in real_music[:6]:
        index.admit(path.stem, np.array(decode_items(fingerprint(path).raw), dtype=np.uint32))
    return index


@pytest.fixture(scope="session")
def mix(real_music: list[Path], make: Make) -> tuple[Path, list[tuple[str, float, float]]]:
    """A set of five tracks, blended, at other tempos; and the truth: (title, start, end)."""
    inputs, graph, truth, at = [], [], [], 0.0
    for place, (number, start, length, tempo) in enumerate(PLAYED):
        inputs += ["-ss", str(start), "-t", str(length), "-i", real_music[number]]
        graph.append(f"[{place}:a:0]aformat=sample_rates=44100:channel_layouts=stereo,atempo={tempo}[t{place}]")
        truth.append((real_music[number].stem, at, at + length / tempo))
        at += length / tempo - BLEND
    last = "t0"
    for place in range(1, len(PLAYED)):
        graph.append(f"[{last}][t{place}]acrossfade=d={BLEND}:c1=qsin:c2=qsin[m{place}]")
        last = f"m{place}"
    path = make("set.mp3", *inputs, "-filter_complex", ";".join(graph), "-map", f"[{last}]", "-b:a", "128k")
    return path, truth


def payload(path: Path, **fields: Any) -> LiveSetPayload:
    return LiveSetPayload(version="1", path=encode_path(path), size=path.stat().st_size, **fields)


async def test_the_tracks_of_a_mixed_set_are_found_with_their_times(
    shelf: PrintIndex, mix: tuple[Path, list[tuple[str, float, float]]]
) -> None:
    path, truth = mix
    found = await scan_live_set(ears(shelf), payload(path))
    assert (found.outcome, found.indexed) == ("done", len(shelf))
    assert [track.title for track in found.tracks] == [title for title, _, _ in truth]
    for track, (title, start, end), (_, _, _, tempo) in zip(found.tracks, truth, PLAYED, strict=True):
        assert abs(track.start - start) <= 10, title
        assert abs(track.end - end) <= 10, title
        assert track.tempo == pytest.approx(tempo, abs=0.01)
        assert 0.4 < track.confidence <= 1
        assert track.source == "heard"
    assert found.gaps == []
    assert Tracklist.model_validate_json(found.model_dump_json()) == found


async def test_a_set_of_unknown_music_has_gaps_that_a_written_list_fills(
    shelf: PrintIndex, mix: tuple[Path, list[tuple[str, float, float]]], make: Make, tmp_path: Path
) -> None:
    path, truth = mix
    start, end = truth[1][1] + 15, truth[1][2] - 15
    noise = f"[1:a]atrim=0:{end - start},aformat=sample_rates=44100:channel_layouts=stereo[n]"
    parts = f"[0:a]asplit[a][b];[a]atrim=0:{start}[l];[b]atrim={end},asetpts=PTS-STARTPTS[r]"
    cut = f"{parts};{noise};[l][n][r]concat=n=3:v=0:a=1"
    hidden = make("hidden.mp3", "-i", path, "-f", "lavfi", "-i", "anoisesrc=a=0.1:seed=3", "-filter_complex", cut)
    found = await scan_live_set(ears(shelf), payload(hidden))
    [gap] = found.gaps
    assert abs(gap.start - start) < 10
    assert abs(gap.end - end) < 10
    text = tmp_path / "names.txt"
    lines = ["0:00 Somebody - First", f"{int(start) // 60}:{int(start) % 60:02} Nobody - Unheard Of"]
    text.write_bytes("\n".join(lines).encode("utf-16"))
    found = await scan_live_set(ears(shelf), payload(hidden, tracklist=encode_path(text)))
    assert found.tracklist == encode_path(text)
    said = [(track.artist, track.source) for track in found.tracks]
    assert said[0] == ("The Library", "both")
    assert said.count(("Nobody", "written")) == 1
    assert found.gaps == []


async def test_a_set_of_nothing_known_says_so(make: Make) -> None:
    path = make("noise.mp3", "-f", "lavfi", "-i", "anoisesrc=a=0.1:seed=9", "-t", "60")
    found = await scan_live_set(ears(PrintIndex()), payload(path))
    assert (found.outcome, found.reason, found.tracks) == ("partial", "no-tracks", [])
    assert [(gap.start, round(gap.end)) for gap in found.gaps] == [(0, 60)]


async def test_an_index_that_is_away_is_no_fault_of_the_set(make: Make) -> None:
    def away(_question: Mapping[str, Any]) -> dict[str, Any]:
        raise NotAnswered("the hub does not answer")

    path = make("noise.mp3", "-f", "lavfi", "-i", "anoisesrc=a=0.1:seed=9", "-t", "60")
    for answer, said in ((away, "the hub does not answer"), (lambda _question: {"heard": "all"}, "of this version")):
        with pytest.raises(IndexAway, match=said) as caught:
            await scan_live_set(InlineContext("999", {"prints": answer}), payload(path))
        assert isinstance(caught.value, ConnectionError), "which a circuit counts"
    assert policy_of(scan_live_set).dependency(payload(path)) == "hub:prints"  # type: ignore[misc]
    with pytest.raises(InputRejected, match="bad-tracklist"):
        read_set(path, path.parent)


def heard(
    file_id: int, start: float, end: float, *, ber: float = 0.1, begin: float = 0.0, length: float = 300.0
) -> Heard:
    finish = begin + end - start
    return Heard(
        file_id=file_id, start=start, end=end, begin=begin, finish=finish, length=length, ber=ber, title=str(file_id)
    )


def test_of_two_copies_of_a_track_the_surer_one_stays() -> None:
    tracks = choose([heard(1, 0, 100, ber=0.2), heard(2, 0, 100), heard(3, 90, 200), heard(4, 150, 160)], 600)
    assert [track.file_id for track in tracks] == [2, 3]


def test_another_copy_of_the_set_and_other_sets_give_way_to_tracks() -> None:
    rows = [
        heard(9, 0, 3600, ber=0.0, length=3600),
        heard(8, 300, 1500, ber=0.0, begin=100, length=4000),
        heard(1, 300, 600),
        heard(2, 900, 1100),
    ]
    assert [track.file_id for track in choose(rows, 3600)] == [1, 2]
    assert [track.file_id for track in choose(rows[:2], 3600)] == [8], "better than nothing"


def test_a_blend_reaches_to_the_files_own_ends_where_they_are_near() -> None:
    [track] = choose([heard(1, 100, 390, begin=6, length=300)], 1000)
    assert (track.start, track.end) == (94, 394)
    [track] = choose([heard(1, 100, 200, begin=60, length=300)], 1000)
    assert (track.start, track.end) == (100, 200)


def test_written_and_heard_are_one_list() -> None:
    tracks = [SetTrack(start=100, end=300, title="A", confidence=0.9), SetTrack(start=290, end=500, confidence=0.9)]
    rows = [
        Written(0, "w", "Intro"),
        Written(80, "w", "a!"),
        Written(310, "w", "B"),
        Written(520, "w", "C"),
        Written(None, "w", "D"),
    ]
    merged = merge(tracks, rows, 600)
    assert [(track.start, track.artist, track.title, track.source) for track in merged] == [
        (0, "w", "Intro", "written"), (100, "w", "A", "both"), (290, "w", "B", "both"), (520, "w", "C", "written"),
    ]  # fmt: skip
    assert merged[0].end == 80
    assert merged[-1].end == 600


TIMES = st.floats(0, 1000)
TRACKS = st.lists(st.tuples(TIMES, TIMES).map(sorted), max_size=8)


@given(TRACKS, st.lists(st.none() | TIMES, max_size=8), st.floats(1, 1000))
def test_any_lists_make_an_ordered_one_whose_gaps_no_track_covers(
    rows: list[list[float]], written: list[float | None], duration: float
) -> None:
    tracks = [SetTrack(start=start, end=end, confidence=1) for start, end in rows]
    merged = merge(tracks, [Written(start, None, "x") for start in written], duration)
    assert [track.start for track in merged] == sorted(track.start for track in merged)
    assert len(merged) >= len(tracks)
    for gap in gaps(merged, duration):
        assert not any(track.start < gap.end - 0.1 and gap.start + 0.1 < track.end for track in merged)


def test_the_sets_own_file_is_not_its_track() -> None:
    hearing = Hearing(heard=[heard(7, 0, 300, length=310), heard(1, 300, 500)])
    found = tracklist_of(hearing, [], Fingerprint(duration=900.0), file_id="7")
    assert [track.file_id for track in found.tracks] == [1]
