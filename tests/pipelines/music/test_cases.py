"""Every awkward file ends in a result, a partial, or a refusal with a typed reason: no crash, no hang, no bloat.

One fresh process takes them all through analysis, fingerprint and tags, as a lane's child does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.errors import ToolMissing
from tests.pipelines.music import taking
from tests.pipelines.music.taking import Row, ending, faults, files_of, mutagen_data, take

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
    "trunc_half.ogg": ("short", "short", "done"),
    "trunc_tail.aac": ("done", "done", "done"),
    "trunc_tail.mp3": ("done", "done", "done"),
    "trunc_tail.wma": ("done", "done", "done"),
    "video.mkv": ("done", "done", "unknown-tags"),
    "video_noaudio.mp4": ("no-audio-stream", "no-audio-stream", "done"),
    "wrongext_mp3.flac": ("done", "done", "done"),
}


@pytest.fixture(scope="module")
def rows(cases: Path) -> list[Row]:
    """One row a file of the shared cases."""
    return list(take(path for folder in ("audio", "music") for path in files_of(cases / folder)))


@pytest.fixture(scope="module")
def mutagens() -> list[Row]:
    """One row a file of mutagen's tests; skipped where PyPI is not reached (failed where CI is set)."""
    try:
        return list(take(files_of(mutagen_data())))
    except (RuntimeError, ToolMissing) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.mark.timeout(600)
def test_every_awkward_file_ends_as_expected(rows: list[Row]) -> None:
    got = {
        row["name"]: (ending(row["analyze"]), ending(row["fingerprint"]), ending(row["read_metadata"])) for row in rows
    }
    assert {name: got[name] for name in EXPECTED if name in got} == EXPECTED


@pytest.mark.timeout(600)
def test_every_refusal_has_a_reason_of_the_vocabulary_and_every_lack_a_warning(rows: list[Row]) -> None:
    for row in rows:
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
def test_real_recordings_are_all_done(rows: list[Row]) -> None:
    music = [row for row in rows if row["name"] not in EXPECTED]
    assert music
    assert {row["analyze"]["outcome"] for row in music} <= {"done"}
    assert {row["fingerprint"]["outcome"] for row in music} <= {"done", "partial"}


@pytest.mark.timeout(600)
def test_no_file_crashes_hangs_or_takes_a_minute_or_400_mb(rows: list[Row]) -> None:
    assert list(faults(rows)) == []


@pytest.mark.cases
@pytest.mark.timeout(900)
def test_no_file_of_mutagens_tests_crashes_hangs_or_takes_a_minute_or_400_mb(mutagens: list[Row]) -> None:
    assert len(mutagens) > 80
    assert list(faults(mutagens)) == []
    assert {row["analyze"]["reason"] for row in mutagens if row["analyze"]["outcome"] == "rejected"} <= REASONS


def test_a_crash_and_a_hang_cost_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill = "import os, signal; from pathlib import Path; import sys, time\n"
    kill += "for line in sys.stdin.buffer:\n"
    kill += "    name = Path(bytes.fromhex(line.decode()).decode()).name\n"
    kill += "    name == 'crash' and os.kill(os.getpid(), signal.SIGSEGV)\n"
    kill += "    name == 'hang' and time.sleep(60)\n"
    kill += '    done = \'{"outcome": "done", "reason": null, "seconds": 0}\'\n'
    kill += "    print('{' + ', '.join(f'\"{t}\": {done}' for t in ('analyze', 'fingerprint', 'read_metadata'))\n"
    kill += '          + \', "seconds": 0, "peak": 1}\', flush=True)\n'
    monkeypatch.setattr(taking, "TAKE", kill)
    monkeypatch.setattr(taking, "HUNG", 1.0)
    found = list(take([tmp_path / name for name in ("a", "crash", "b", "hang", "c")]))
    assert [row["analyze"]["outcome"] for row in found] == ["done", "crashed", "done", "hung", "done"]
    assert len(list(faults(found))) == 6


@pytest.mark.timeout(600)
def test_copies_of_one_recording_agree(rows: list[Row]) -> None:
    copies = [row["analyze"] for row in rows if row["name"].startswith("base.")]
    assert len({(found["key"], found["scale"]) for found in copies}) == 1
    assert max(found["bpm"] for found in copies) - min(found["bpm"] for found in copies) < 1
    assert max(found["loudness"] for found in copies) - min(found["loudness"] for found in copies) < 0.5
