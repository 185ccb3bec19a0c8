"""Whether a file is all there, where ffmpeg takes a part of it for a shorter file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipelines.music.analyze import analyze
from pipelines.music.cut_off import LARGEST_PAGE, times_announced
from pipelines.music.fingerprint import fingerprint
from tests.pipelines.conftest import Make

NOISE = ("-f", "lavfi", "-i", "anoisesrc=a=0.1:seed=1:d=20")

CONTAINERS = {
    "a.wav": (),
    "a.w64": (),
    "a.caf": (),
    "a.ogg": ("-c:a", "libvorbis"),
    "a.opus": ("-c:a", "libopus"),
    "a.oga": ("-c:a", "flac"),
}


def half(path: Path, folder: Path) -> Path:
    whole = path.read_bytes()
    (folder / path.name).write_bytes(whole[: len(whole) // 2])
    return folder / path.name


@pytest.mark.parametrize("name", CONTAINERS)
def test_half_a_file_is_partial_and_a_whole_one_is_not(make: Make, tmp_path: Path, name: str) -> None:
    path = make(name, *NOISE, *CONTAINERS[name])
    assert fingerprint(path).outcome == "done"
    assert times_announced(path) == 1
    found = fingerprint(half(path, tmp_path))
    assert (found.outcome, found.reason) == ("partial", "short")
    assert found.items > 0


def test_the_analysis_of_half_a_wav_says_how_long_it_would_be(make: Make, tmp_path: Path) -> None:
    found = analyze(half(make("b.wav", *NOISE), tmp_path), "fast")
    assert (found.outcome, found.reason, found.partial) == ("partial", "short", True)
    assert found.duration == found.declared_duration == pytest.approx(20, abs=0.1)
    assert found.decoded_duration == pytest.approx(10, abs=0.1)


def test_the_analysis_of_half_an_ogg_says_that_it_is_cut_off(make: Make, tmp_path: Path) -> None:
    found = analyze(half(make("b.ogg", *NOISE), tmp_path), "fast")
    assert (found.outcome, found.reason) == ("partial", "short")
    assert any("cut off" in warning for warning in found.warnings if warning.startswith("short: "))


def test_an_ogg_file_is_cut_off_at_every_byte_but_where_a_page_ends(make: Make, tmp_path: Path) -> None:
    whole = make("c.opus", "-f", "lavfi", "-i", "sine=d=2", "-c:a", "libopus", "-page_duration", "500000").read_bytes()
    starts = [at for at in range(1, len(whole)) if whole.startswith(b"OggS\0", at)]
    last, cut = starts[-1], tmp_path / "cut.opus"
    for end in range(last - 40, len(whole) + 1):
        cut.write_bytes(whole[:end])
        assert times_announced(cut) == (1 if end in (last, len(whole)) else math.inf), end
    cut.write_bytes(whole + b"TAG" + bytes(125))
    assert times_announced(cut) == 1, "a tag that another program put there"
    cut.write_bytes(b"OggS" + bytes(3 * LARGEST_PAGE))
    assert times_announced(cut) == 1, "no page anywhere near its end"


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_out_of_a_pipe_does_not_say_how_long_it_is(make: Make, tmp_path: Path, size: int) -> None:
    data = bytearray(make("pipe.wav", *NOISE).read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = size.to_bytes(4, "little")
    (tmp_path / "pipe.wav").write_bytes(data)
    assert fingerprint(tmp_path / "pipe.wav").outcome == "done"


@pytest.mark.parametrize("head", [b"RIFF\0\0\0\0WAVE", b"caff\0\1\0\0", b"riff\x2e\x91\xcf\x11" + bytes(32)])
def test_headers_that_lead_nowhere_are_not_followed_for_ever(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "odd"
    for following in (b"", b"da", b"junk", b"\0" * 200_000, b"\xff" * 4096):
        path.write_bytes(head + following)
        assert times_announced(path) >= 1
