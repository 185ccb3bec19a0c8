"""What a run says of itself at its end."""

from __future__ import annotations

import time
from pathlib import Path

from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, FINGERPRINT, METADATA
from agent.hub.scans import Wish
from agent.settings import load_settings
from agent.summary import Summary
from tests.hub.deliveries import AGENT, TOKEN, closing, result, scan, seen


def test_only_sound_that_was_analysed_is_counted() -> None:
    names = ["whole", "its copy", "corrupt", "cut off", "copy of that", "waits", "no sound in it"]
    contents = ["whole", "whole", "corrupt", "cut off", "cut off", "waits", "odd"]
    short = {"outcome": "partial", "reason": "short", "duration": 750.0, "decoded_duration": 30.0}
    rejected = {"outcome": "rejected", "reason": "corrupt: it breaks off"}
    with Catalogue(load_settings().data_dir) as catalogue:
        catalogue.register_agent(AGENT, TOKEN)
        scan(catalogue, "/m", [seen(f"/m/{name}", content) for name, content in zip(names, contents, strict=True)])
        entries = [
            *(result(METADATA, n, content, duration=750.0) for n, content in enumerate(contents, 1)),
            result(FINGERPRINT, 3, "corrupt", duration=750.0),
            result(ANALYSIS, 1, "whole", duration=60.0, decoded_duration=60.0),
            result(ANALYSIS, 3, "corrupt", **rejected),
            result(ANALYSIS, 4, "cut off", **short),
            result(ANALYSIS, 7, "odd", outcome="partial", reason="short", duration=750.0),
        ]
        assert catalogue.record(AGENT, entries) == [None] * len(entries)
    summary = Summary.of(load_settings(), [Path("/m")], since=time.time(), status={})
    assert [track.duration for track in summary.tracks].count(750.0) == 5
    assert summary.audio_seconds == 60.0 + 60.0 + 30.0 + 30.0
    assert summary.as_json()["audio_seconds"] == 180.0
    assert "3.0 minutes of audio" in "\n".join(summary.lines(2))


def test_every_track_that_the_table_shows_in_red_has_one_line_below_it() -> None:
    ends = {"whole": "done", "cut off": "partial", "corrupt": "rejected"}
    with Catalogue(load_settings().data_dir) as catalogue:
        catalogue.register_agent(AGENT, TOKEN)
        scan(catalogue, "/m", [seen(f"/m/{name}", name) for name in ends])
        entries = [
            result(service, number, name, outcome=end, reason=None if end == "done" else "why")
            for number, (name, end) in enumerate(ends.items(), 1)
            for service in (METADATA, FINGERPRINT, ANALYSIS)
        ]
        entries[-1] = result(ANALYSIS, 3, "corrupt", outcome="partial", reason="why")
        assert catalogue.record(AGENT, entries) == [None] * len(entries)
    summary = Summary.of(load_settings(), [Path("/m")], since=time.time(), status={})
    lines = summary.lines(2)
    assert "  /m/cut off: tags, fingerprint, analysis partial: why" in lines[lines.index("in part: 1 path") :]
    assert [sum(f"/m/{name}:" in line for line in lines) for name in ends] == [0, 1, 1]
    assert summary.as_json()["partial"] == 2


def test_what_was_passed_over_is_told_by_kind() -> None:
    with Catalogue(load_settings().data_dir) as catalogue:
        catalogue.register_agent(AGENT, TOKEN)
        for root, kinds in (("/a", {".jpg": 1200, ".mp4": 2}), ("/b", {"": 1, ".mp4": 1, "\x1b": 1})):
            [asked] = catalogue.request_scans(AGENT, [Wish(root=root)])
            assert asked is not None
            closed = closing(asked, other=sum(kinds.values()), other_suffixes=kinds, links=2)
            assert catalogue.record(AGENT, [closed]) == [None]
    summary = Summary.of(load_settings(), [], since=0, status={})
    kinds_said = "1,200 .jpg, 3 .mp4, 1 without a usual suffix, 1 \N{REPLACEMENT CHARACTER}"
    assert f"passed over: 1,205 other files ({kinds_said}), 4 links" in summary.lines(2)
    assert summary.as_json()["other_suffixes"] == {".jpg": 1200, ".mp4": 3, "": 1, "\x1b": 1}
