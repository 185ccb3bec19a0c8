"""Every awkward file ends in a result, a partial, or a refusal with a typed reason: no crash, no hang, no bloat.

One fresh process takes them all through analysis, fingerprint and tags, as a lane's child does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REASONS = {
    "empty",
    "not-a-file",
    "not-audio",
    "corrupt",
    "no-audio-stream",
    "unsupported",
    "too-long",
    "too-slow",
    "decoder-crash",
}

EXPECTED = {
    # file: (analysis, fingerprint, tags), each an outcome, or the reason of a partial or a refusal
    "base.aac": ("done", "done", "done"),
    "base.eac3": ("done", "done", "done"),
    "base.mp3": ("done", "done", "done"),
    "base.opus": ("done", "done", "done"),
    "base.webm": ("done", "done", "unknown-tags"),
    "corrupt200.aac": ("short", "short", "done"),
    "corrupt200.mp3": ("done", "done", "done"),
    "corrupt200.wma": ("done", "done", "done"),
    "cover.m4a": ("done", "done", "done"),
    "empty.flac": ("empty", "empty", "empty"),
    "empty.mp3": ("empty", "empty", "empty"),
    "headless.aac": ("done", "done", "done"),
    "headless.mp3": ("done", "done", "done"),
    "headless.wma": ("not-audio", "not-audio", "not-audio"),
    "hole.m4a": ("short", "short", "done"),
    "hole.ogg": ("short", "short", "done"),
    "id3_lying_size.mp3": ("corrupt", "corrupt", "corrupt"),
    "lo8.wav": ("done", "done", "done"),
    "noext": ("done", "done", "done"),
    "one_sample.wav": ("done", "too-short", "done"),
    "short_0.01.mp3": ("done", "too-short", "done"),
    "short_0.1.mp3": ("done", "too-short", "done"),
    "short_0.5.mp3": ("done", "too-short", "done"),
    "short_0.9.mp3": ("done", "too-short", "done"),
    "short_1.5.mp3": ("done", "too-short", "done"),
    "short_3.mp3": ("done", "done", "done"),
    "silence05.wav": ("done", "too-short", "done"),
    "sr_4e9.wav": ("unsupported", "unsupported", "done"),
    "trunc_300.aac": ("done", "too-short", "unknown-tags"),
    "trunc_300.m4a": ("corrupt", "corrupt", "corrupt"),
    "trunc_300.ogg": ("corrupt", "corrupt", "corrupt"),
    "trunc_300.wv": ("corrupt", "corrupt", "done"),
    "trunc_half.m4a": ("corrupt", "corrupt", "corrupt"),
    "trunc_half.ogg": ("done", "done", "done"),
    "trunc_tail.aac": ("done", "done", "done"),
    "trunc_tail.mp3": ("done", "done", "done"),
    "trunc_tail.wma": ("done", "done", "done"),
    "video.mkv": ("done", "done", "unknown-tags"),
    "video_noaudio.mp4": ("no-audio-stream", "no-audio-stream", "done"),
    "wrongext_mp3.flac": ("done", "done", "done"),
}

TAKE_ALL = """
import json, resource, sys, time
from pathlib import Path
from pipelines.errors import InputRejected
from pipelines.music.analyze import analyze
from pipelines.music.fingerprint import fingerprint
from pipelines.music.metadata import read_metadata

def ask(function, path):
    try:
        return json.loads(function(path).model_dump_json())
    except InputRejected as error:
        return {"outcome": "rejected", "reason": error.reason}

for path in map(Path, sys.argv[1:]):
    begun = time.monotonic()
    row = {f.__name__: ask(f, path) for f in (analyze, fingerprint, read_metadata)}
    row |= {"name": path.name, "seconds": time.monotonic() - begun}
    # Not ru_maxrss: that of a program started by a large process begins with the large one's.
    status = Path("/proc/self/status").read_text("ascii")
    row["peak"] = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    print(json.dumps(row, allow_nan=False), flush=True)
"""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def table(cases: Path) -> list[Row]:
    """One row a file, as the process printed it."""
    files = sorted(p for folder in ("audio", "music") for p in (cases / folder).iterdir() if p.suffix != ".txt")
    argv = [sys.executable, "-c", TAKE_ALL, *map(str, files)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=500)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"died of {done.returncode} at {files[len(rows)]}"
    assert len(rows) == len(files)
    return rows


def ending(answer: Row) -> str:
    return str(answer["reason"] or answer["outcome"])


@pytest.mark.timeout(600)
def test_every_awkward_file_ends_as_expected(table: list[Row]) -> None:
    got = {
        row["name"]: (ending(row["analyze"]), ending(row["fingerprint"]), ending(row["read_metadata"])) for row in table
    }
    assert {name: got[name] for name in EXPECTED if name in got} == EXPECTED


@pytest.mark.timeout(600)
def test_every_refusal_has_a_reason_of_the_vocabulary_and_every_lack_a_warning(table: list[Row]) -> None:
    for row in table:
        for task in ("analyze", "fingerprint", "read_metadata"):
            answer = row[task]
            assert answer["outcome"] in ("done", "partial", "rejected")
            assert answer["outcome"] == "done" or answer["reason"]
            if answer["outcome"] == "rejected":
                assert answer["reason"] in REASONS
        found = row["analyze"]
        if found["outcome"] != "rejected":
            for value, slug in (("bpm", "no-tempo"), ("key", "no-key"), ("loudness", "no-loudness")):
                assert found[value] is not None or any(warning.startswith(slug) for warning in found["warnings"])


@pytest.mark.timeout(600)
def test_real_recordings_are_all_done(table: list[Row]) -> None:
    music = [row for row in table if row["name"] not in EXPECTED]
    assert music
    assert {row["analyze"]["outcome"] for row in music} <= {"done"}
    assert {row["fingerprint"]["outcome"] for row in music} <= {"done", "partial"}


@pytest.mark.timeout(600)
def test_no_file_takes_a_minute_or_400_mb(table: list[Row]) -> None:
    assert max(row["seconds"] for row in table) < 60
    assert max(row["peak"] for row in table) < 400


@pytest.mark.timeout(600)
def test_copies_of_one_recording_agree(table: list[Row]) -> None:
    copies = [row["analyze"] for row in table if row["name"].startswith("base.")]
    assert len({(found["key"], found["scale"]) for found in copies}) == 1
    assert max(found["bpm"] for found in copies) - min(found["bpm"] for found in copies) < 1
    assert max(found["loudness"] for found in copies) - min(found["loudness"] for found in copies) < 0.5
