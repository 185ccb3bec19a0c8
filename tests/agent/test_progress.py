"""Progress tells what the hub said, in bars, lines or events."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from rich.console import Console

from agent.display import duration_text, plural
from agent.progress import JsonView, PlainView, Rates, TerminalView, current_lines, headline

LANE = {"total": 10, "done": 4, "partial": 1, "rejected": 1, "queued": 3, "active": 1, "retrying": 0}


def status(**fields: Any) -> dict[str, Any]:
    return {"scans": {"open": 0}, "lanes": {"analyze": LANE}, "active": [], "retrying": [], "idle": False, **fields}


def test_the_plain_view_writes_a_line_only_when_something_changed() -> None:
    out = io.StringIO()
    view = PlainView(out)
    view.update(status())
    view.update(status())
    assert out.getvalue() == "working, 0:00: analyze 6/10\n"


def test_the_json_view_writes_one_event_a_change() -> None:
    out = io.StringIO()
    view = JsonView(out)
    view.note("hello")
    view.update(status())
    view.update(status())
    note, progress = map(json.loads, out.getvalue().splitlines())
    assert note == {"event": "note", "text": "hello"}
    assert progress["lanes"]["analyze"]["done"] == 4


def test_the_terminal_view_shows_lanes_and_files_and_no_file_name_styles_it() -> None:
    out = io.StringIO()
    view = TerminalView(Console(file=out, force_terminal=True, width=120, legacy_windows=False))
    row = {"task": "process_file", "path": "/m/[bold]x.mp3", "since": time.time() - 65, "attempts": 2}
    view.update(status(active=[row]))
    view.note("worker-io [red]ended[/red]")
    view.close()
    for text in ("analyze", "6/10", "1:05 process_file  [bold]x.mp3 (attempt 2)", "worker-io [red]ended[/red]"):
        assert text in out.getvalue()


def test_the_longest_running_file_comes_first() -> None:
    now = time.time()
    rows = [
        {"task": "process_file", "path": "/m/short.mp3", "since": now - 5, "attempts": 1},
        {"task": "process_file", "path": "/m/long.mp3", "since": now - 125, "attempts": 3},
    ]
    assert current_lines(status(active=rows)) == [
        "  2:05 process_file  long.mp3 (attempt 3)",
        "  0:05 process_file  short.mp3",
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"queue": "unreachable"}, "waiting for the queue server"),
        ({"scans": {"open": 1}}, "scanning"),
        ({"idle": True}, "done"),
        ({}, "working"),
    ],
)
def test_the_headline_says_what_goes_on(fields: dict[str, Any], said: str) -> None:
    assert headline(status(**fields), 61).startswith(f"{said}, 1:01")


def test_a_rate_is_measured_over_the_last_half_minute() -> None:
    rates = Rates()
    assert rates.add("x", 0, now=0.0) is None
    assert rates.add("x", 10, now=10.0) == pytest.approx(1.0)
    assert rates.add("x", 40, now=35.0) == pytest.approx(30 / 25), "the first look has left the window"
    assert rates.add("x", 40, now=70.0) is None, "nothing finished within the window"


def test_numbers_read_well() -> None:
    assert [duration_text(s) for s in (None, 0, 59.6, 187, 3723)] == ["", "0:00", "1:00", "3:07", "1:02:03"]
    assert (plural(1, "file"), plural(1200, "file")) == ("1 file", "1,200 files")
