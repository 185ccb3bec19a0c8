"""What a file is: its hash and its Chromaprint."""

from __future__ import annotations

import base64
import hashlib
import signal
import subprocess
import sys
import wave
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.context import InlineContext, policy_of
from pipelines.errors import InputChanged, InputRejected
from pipelines.music.analyze import analyze
from pipelines.music.ffmpeg import ffmpeg_path
from pipelines.music.fingerprint import Fingerprint, FingerprintPayload, fingerprint, fingerprint_file
from pipelines.music.prints import compare, decode_items, encode_items
from pipelines.music.samples import Sample
from pipelines.payload import encode_path
from tests.pipelines.conftest import Make, ends


def payload(path: Path, digest: str | None = None) -> FingerprintPayload:
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if digest is None else digest
    return FingerprintPayload(version=f"{digest}:default", path=encode_path(path), size=path.stat().st_size)


def decompress(packed: bytes) -> list[int]:
    """Chromaprint's compressed form: XOR of neighbours, as distances between set bits, in 3 bits and 5 bits more."""
    count = int.from_bytes(packed[1:4], "big")
    bits = int.from_bytes(packed[4:], "little")
    steps: list[int] = []
    position = items = 0
    while items < count:
        step = bits >> position & 7
        position += 3
        steps.append(step)
        items += step == 0
    position = (position + 7) // 8 * 8
    for index, step in enumerate(steps):
        if step == 7:
            steps[index] += bits >> position & 31
            position += 5
    found: list[int] = []
    value = bit = 0
    for step in steps:
        if step:
            bit += step
            value |= 1 << (bit - 1)
        else:
            found.append(value ^ (found[-1] if found else 0))
            value = bit = 0
    return found


def test_fact_raw_items_are_little_endian_here_and_equal_the_packed_form(samples: list[Sample]) -> None:
    argv = [ffmpeg_path(), "-nostdin", "-v", "error", "-i", samples[0].path, "-map", "0:a:0", "-f", "chromaprint"]
    packed = subprocess.run([*argv, "-fp_format", "compressed", "pipe:1"], capture_output=True, check=True).stdout
    assert list(decode_items(fingerprint(samples[0].path).raw)) == decompress(packed)


def test_fact_the_whole_file_is_printed_and_not_its_first_two_minutes(make: Make) -> None:
    found = fingerprint(make("long.flac", "-f", "lavfi", "-i", "anoisesrc=a=0.1:seed=1", "-t", "300"))
    assert found.duration == pytest.approx(300, abs=0.1)
    assert found.items == pytest.approx(8.08 * 300, rel=0.01)


def test_items_travel_as_little_endian_uint32() -> None:
    assert base64.b64decode(encode_items([1, 0x80000000])) == b"\1\0\0\0\0\0\0\x80"
    assert decode_items(encode_items([7, 8])) == array("I", [7, 8])


async def test_the_result_names_the_bytes_it_stands_for(samples: list[Sample]) -> None:
    result = await fingerprint_file(InlineContext(), payload(samples[0].path))
    assert result.sha256 == hashlib.sha256(samples[0].path.read_bytes()).hexdigest()
    assert (result.outcome, result.warnings) == ("done", [])
    assert result.items == len(decode_items(result.raw)) > 100
    assert Fingerprint.model_validate_json(result.model_dump_json()) == result


async def test_a_file_that_changed_since_the_scan_gives_no_result_whatever_its_size(samples: list[Sample]) -> None:
    with pytest.raises(InputChanged):
        await fingerprint_file(InlineContext(), payload(samples[0].path, digest="f" * 64))


async def test_a_version_that_is_no_hash_is_taken_as_it_is(samples: list[Sample]) -> None:
    assert (await fingerprint_file(InlineContext(), payload(samples[0].path, digest="7"))).outcome == "done"


def test_sound_too_short_to_print_keeps_its_hash(make: Make) -> None:
    found = fingerprint(make("blip.wav", "-f", "lavfi", "-i", "sine=duration=0.5"))
    assert (found.outcome, found.reason, found.items) == ("partial", "too-short", 0)
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("layout", "channels"), [("2.1", 3), ("quad", 4), ("5.1", 6), ("7.1", 8), ("hexadecagonal", 16)]
)
def test_sound_of_many_channels_has_the_print_of_its_stereo_sound(
    make: Make, samples: list[Sample], layout: str, channels: int
) -> None:
    """The same in every channel, so that a downmix changes nothing but the loudness."""
    path = samples[0].path
    each = "|".join(f"c{number}=c0" for number in range(channels))
    wide = fingerprint(make(f"{channels}.wav", "-i", path, "-t", "15", "-af", f"pan={layout}|{each}"))
    plain = fingerprint(make("plain.wav", "-i", path, "-t", "15", "-af", "pan=stereo|c0=c0|c1=c0"))
    assert (wide.outcome, wide.warnings) == ("done", [])
    assert (wide.duration, wide.items) == (plain.duration, plain.items)
    assert compare(decode_items(wide.raw), decode_items(plain.raw)).same


@pytest.mark.parametrize("ask", [fingerprint, analyze])
def test_channels_that_nobody_can_mix_are_unsupported_and_not_corrupt(
    tmp_path: Path, ask: Callable[[Path], Any]
) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(9)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes(bytes(range(1, 19)) * 44_100)
    with pytest.raises(InputRejected, match="unsupported: 9 channels"):
        ask(tmp_path / "a.wav")


def test_what_does_not_decode_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(b"fLaC" + b"\0" * 5000)
    with pytest.raises(InputRejected, match="corrupt"):
        fingerprint(tmp_path / "a.flac")


def test_time_limits_grow_with_the_file(samples: list[Sample]) -> None:
    sized = FingerprintPayload(version="", path="/a", size=10_000_000)
    assert policy_of(fingerprint_file).timeout(sized) == 200


def command_of(process: psutil.Process) -> list[str]:
    """Its arguments; none for one that has just ended (the header probe is a child as well)."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_kill_9_of_the_fingerprinting_process_leaves_no_ffmpeg(make: Make) -> None:
    path = make("hours.flac", "-f", "lavfi", "-i", "anullsrc=r=8000:cl=mono", "-t", "28800")
    code = "import sys; from pipelines.music.fingerprint import fingerprint; fingerprint(sys.argv[1])"
    with subprocess.Popen([sys.executable, "-c", code, path]) as reader:
        me = psutil.Process(reader.pid)
        while not (found := [child for child in me.children() if "chromaprint" in command_of(child)]):
            assert reader.poll() is None
        reader.send_signal(signal.SIGKILL)
    assert ends(found[0].pid, within=10)
