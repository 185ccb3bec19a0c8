"""The table, the JSON and the CSV say the same, whatever is in a tag."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from agent import tracks
from agent.hub.tracks import Track

PLAIN = Track(
    id=1,
    path="/m/a.mp3",
    artist="Nobody",
    title="Something",
    duration=187.4,
    bpm=124.04,
    bpm_confidence=3.6,
    key="A",
    scale="minor",
    camelot="8A",
    loudness=-9.26,
    danceability=1.234,
    duplicates="d1",
    problems=[],
    pending=[],
)
BARE = Track(2, "/m/b", None, "b", *[None] * 9, problems=[], pending=["process_file"])  # type: ignore[arg-type]


def table_text(*found: Track, capsys: pytest.CaptureFixture[str]) -> str:
    tracks.print_table(found)
    return capsys.readouterr().out


def test_the_table_rounds_as_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    text = table_text(PLAIN, capsys=capsys)
    for cell in ("Nobody", "Something", "3:07", "124.0", "3.6", "A minor", "8A", "-9.3", "1.23", "d1"):
        assert cell in text


def test_unknown_is_empty_and_what_is_awaited_is_said_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert "None" not in table_text(BARE, capsys=capsys)
    assert tracks.problem_lines([PLAIN, BARE], 10) == ["  /m/b: waiting for analysis"]
    assert tracks.problem_lines([BARE] * 3, 1)[1:] == ["  ... and 2 more (--json has all)"]


@pytest.mark.parametrize("width", [80, 90, 100, 120, 200])
def test_no_number_is_cut_on_any_terminal(width: int) -> None:
    out = io.StringIO()
    long = replace(
        PLAIN, artist="Kevin MacLeod and his orchestra of many", title="Dance of the Sugar Plum Fairy, again " * 3
    )
    Console(file=out, width=width).print(tracks.table_of([long, BARE], width))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3, "one line a track"
    assert all(len(line) <= width for line in lines)
    cells = ["3:07", "124.0", "A minor", "8A", "-9.3", "d1", *(["3.6", "1.23"] if width >= 100 else [])]
    for cell in cells:
        assert f" {cell} " in f"{lines[1]} "


def test_a_problem_is_told_once_for_all_tasks_that_share_it() -> None:
    reason = {"outcome": "rejected", "reason": "empty: 0 bytes"}
    track = replace(
        PLAIN, problems=[{"service": "process_file", **reason}, {"service": "extract_file_metadata", **reason}]
    )
    assert tracks.problem_text(track) == "analysis, tags rejected: empty: 0 bytes"


def test_tags_cannot_style_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert "[red]x[/red]" in table_text(replace(PLAIN, title="[red]x[/red]"), capsys=capsys)


def test_csv_and_json_carry_everything_and_csv_runs_no_formula() -> None:
    odd = replace(PLAIN, title='=HYPERLINK("x")', artist='a,"b"\n')
    (row,) = csv.DictReader(io.StringIO(tracks.as_csv_text([odd])))
    assert row["title"] == '\'=HYPERLINK("x")'
    assert row["artist"] == 'a,"b"\n'
    assert row["loudness"] == "-9.26"
    assert json.loads(tracks.as_json_text([odd]))[0]["title"] == '=HYPERLINK("x")'
