"""What a file says it is: container, codec, rate, channels, declared duration. Nothing is decoded at length.

Reasons for refusal: `empty`, `not-a-file`, `not-audio` (nothing knows it), `corrupt` (it begins as audio does, and
cannot be opened), `no-audio-stream`, `unsupported`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import InputRejected
from pipelines.music.ffmpeg import input_arguments, regular_file
from pipelines.music.magic import HEAD_BYTES, looks_like_audio
from pipelines.music.stream import Budget, FfmpegStream

RATES = range(4_000, 1_000_001)
"""Hz that are decoded. Resampling from 1 Hz multiplies memory by 44,100; DSD comes out at 352,800 and above."""

PROBE = Budget(wall=60, cpu=30, output=1 << 20)

_INPUT = re.compile(r"Input #0, (\S+), from ")
_DURATION = re.compile(r"(?:\[info\] )?  Duration: (\d+):(\d\d):(\d\d\.\d+), ")
_BITRATE = re.compile(r"  Duration: .*bitrate: (\d+) kb/s")
_STREAM = re.compile(r"  Stream #0:\d+\S*: (\w+): (.*)")


@dataclass(frozen=True)
class Probe:
    """`duration` in seconds (None: not said), `bit_rate` in bit/s, `sample_rate` in Hz."""

    container: str
    codec: str
    sample_rate: int | None
    channels: int | None
    duration: float | None
    estimated: bool
    """True if ffmpeg guessed the duration from the bit rate: off by any factor for a VBR file without header."""
    bit_rate: int | None
    has_picture: bool


def probe(path: Path) -> Probe:
    """Ask ffmpeg what `path` holds. Raises InputRejected, RecordNotFoundError, OSError, TimeoutError."""
    regular_file(path)
    with FfmpegStream(input_arguments(path), PROBE) as stream:
        for _ in stream.blocks(1 << 16):
            pass
    lines = stream.log.lines()
    found = parse_probe(lines)
    if found is None:
        if any("[info] Input #0" in line for line in lines):
            raise InputRejected("no-audio-stream", "the container holds no sound")
        with path.open("rb") as file:
            claims = looks_like_audio(file.read(HEAD_BYTES))
        detail = next((line for line in lines if "Error opening input:" in line), stream.log.last_error())
        detail = detail.rpartition("Error opening input: ")[2][:200]
        raise InputRejected("corrupt" if claims else "not-audio", detail)
    if found.sample_rate is not None and found.sample_rate not in RATES:
        raise InputRejected("unsupported", f"a sample rate of {found.sample_rate} Hz")
    if found.codec == "none":
        raise InputRejected("unsupported", "a codec that ffmpeg does not know")
    return found


def parse_probe(lines: list[str]) -> Probe | None:
    """The first audio stream that ffmpeg's dump of its input lists; None if there is none."""
    container, codec, facts, picture = "", "", "", False
    duration: float | None = None
    bit_rate: int | None = None
    for line in lines:
        if match := _INPUT.search(line):
            container = match.group(1).partition(",")[0]
        elif duration is None and (match := _DURATION.match(line)):
            hours, minutes, seconds = match.groups()
            duration = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            if rate := _BITRATE.search(line):
                bit_rate = int(rate.group(1)) * 1000
        elif match := _STREAM.search(line):
            kind, rest = match.groups()
            if kind == "Audio" and not codec:
                codec = re.split(r"[ ,]", rest, maxsplit=1)[0]
                facts = rest
            picture = picture or (kind == "Video" and "(attached pic)" in rest)
    if not codec:
        return None
    rate = re.search(r"(-?\d+) Hz", facts)
    return Probe(
        container=container,
        codec=codec,
        sample_rate=int(rate.group(1)) if rate else None,
        channels=_channels(facts),
        duration=duration or None,
        estimated=any("Estimating duration from bitrate" in line for line in lines),
        bit_rate=bit_rate,
        has_picture=picture,
    )


def _channels(facts: str) -> int | None:
    if match := re.search(r"(\d+) channels", facts):
        return int(match.group(1))
    match = re.search(r"Hz, (mono|stereo|(\d)\.(\d))", facts)
    if match is None:
        return None
    if match.group(2):
        return int(match.group(2)) + int(match.group(3))
    return {"mono": 1, "stereo": 2}[match.group(1)]
