"""Whoever runs a function hears how far it is."""

from __future__ import annotations

import threading
from pathlib import Path

from pipelines.context import InlineContext
from pipelines.music.analyze import AnalyzePayload, process_file
from pipelines.music.samples import render
from pipelines.payload import encode_path
from pipelines.saying import listening, say, set_listener
from tests.pipelines.music.test_decode import float_wav


def test_nobody_need_listen() -> None:
    say(0.5, "half")


def test_a_listener_hears_what_is_said_inside_and_nothing_after() -> None:
    heard: list[tuple[float, str]] = []
    with listening(lambda fraction, note: heard.append((fraction, note))):
        say(0.5, "half")
        say(7)
    say(0.9)
    assert heard == [(0.5, "half"), (1.0, "")]


def test_a_whole_process_can_have_one_listener() -> None:
    heard: list[float] = []
    set_listener(lambda fraction, note: heard.append(fraction))
    try:
        thread = threading.Thread(target=say, args=(0.3,))
        thread.start()
        thread.join()
    finally:
        set_listener(None)
    assert heard == [0.3]


async def test_an_analysis_says_how_far_it_is_after_each_window(tmp_path: Path) -> None:
    path = float_wav(tmp_path / "three.wav", render(120, "A", "minor", 65))
    heard: list[tuple[float, str]] = []
    context = InlineContext(on_progress=lambda fraction, note: heard.append((round(fraction, 2), note)))
    payload = AnalyzePayload(version="0:fast", path=encode_path(path), size=path.stat().st_size)
    await process_file(context, payload)
    assert [note for _, note in heard] == ["1:00 of 2:11", "2:00 of 2:11", "2:11 of 2:11", "3 windows"]
    assert [fraction for fraction, _ in heard] == [0.46, 0.91, 1.0, 1.0]
