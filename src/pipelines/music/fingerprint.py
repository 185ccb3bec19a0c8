"""fingerprint_file: the Chromaprint of a whole file and the sha256 of its bytes.

Recordings are compared in `prints` and grouped in `duplicates`; nothing numeric is imported here.
"""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

from pydantic import Field

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import InputChanged
from pipelines.music.cut_off import completeness
from pipelines.music.duplicates import PrintLike, duplicate_groups
from pipelines.music.ffmpeg import ffmpeg_path, ffmpeg_version, input_arguments, regular_file
from pipelines.music.limits import decode_budget, decode_seconds
from pipelines.music.on_file import on_file
from pipelines.music.prints import Match, compare, encode_items
from pipelines.music.probe import probe
from pipelines.music.stream import SIDE, FfmpegStream, nothing_decoded
from pipelines.payload import FilePayload, TaskResult, decode_path

__all__ = [
    "Fingerprint",
    "FingerprintPayload",
    "Match",
    "PrintLike",
    "compare",
    "duplicate_groups",
    "fingerprint",
    "fingerprint_file",
]

PULSE_RATE = 44_100
"""Bytes a second of 8-bit sound on stdout: tells the decoded length, and ends ffmpeg when nobody reads any more
(the fingerprint itself is only written at the very end)."""

LARGE_FRAMES = ("-map", "0:a:0", "-af", "aformat=channel_layouts=mono|stereo,asetnsamples=n=16384:p=0")
"""Fewer frames spare ffmpeg's threads most of their switching. Chromaprint takes two channels at most; one and two are
left as they are, and so are their fingerprints."""


class FingerprintPayload(FilePayload):
    """One audio file to fingerprint. `version` is its sha256 plus the profile's name."""


class Fingerprint(TaskResult):
    """What one file is. The outcome is `partial` where there is a hash but no fingerprint (`too-short`), or clearly
    less than the declared duration was decoded (`short`), and `skipped` (`changed-since-scan`) where the bytes are
    not those that `version` stands for."""

    sha256: str = Field(default="", description="of the file's bytes, hexadecimal")
    raw: str = Field(default="", description="Chromaprint (algorithm 1), base64 of little-endian uint32")
    items: int = Field(default=0, description="how many uint32 `raw` holds, 8.07 a second")
    duration: float | None = Field(default=None, description="seconds that could be decoded")
    versions: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


def fingerprint(path: str | Path, version: str = "") -> Fingerprint:
    """Fingerprint one file, in this process and thread. Give the `version` it must have to be told if it changed.

    Raises RecordNotFoundError, InputRejected, OSError, TimeoutError, ToolMissing.
    """
    path = Path(path)
    before = regular_file(path)
    digest = sha256_of(path)
    expected = version.partition(":")[0]
    if len(expected) == len(digest) and expected != digest:
        raise InputChanged(f"{path} has another content than it was scanned with")
    declared = probe(path)
    pulse = [*LARGE_FRAMES, "-ac", "1", "-ar", str(PULSE_RATE), "-f", "u8", "pipe:1"]
    chromaprint = [*LARGE_FRAMES, "-f", "chromaprint", "-fp_format", "raw", SIDE]
    arguments = [*input_arguments(path), *pulse, *chromaprint]
    decoded = 0
    with FfmpegStream(arguments, decode_budget(before.st_size)) as stream:
        for block in stream.blocks(1 << 16):
            decoded += len(block)
    if not decoded:
        raise nothing_decoded(stream.log)
    words = array("I", bytes(stream.side[: len(stream.side) // 4 * 4]))  # the muxer writes the machine's own order
    result = Fingerprint(
        sha256=digest,
        raw=encode_items(words),
        items=len(words),
        duration=round(decoded / PULSE_RATE, 3),
        versions={"ffmpeg": ffmpeg_version(ffmpeg_path()), "algorithm": "1"},
    )
    if stream.log.errors:
        result.warnings.append(f"decode-errors: {stream.log.errors} ({stream.log.last_error()[:120]})")
    if not words:
        result.outcome, result.reason = "partial", "too-short"
    elif completeness(path, declared, decoded / PULSE_RATE, stream.log.errors)[1]:
        result.outcome, result.reason = "partial", "short"
    return result


@task(Policy(timeout=decode_seconds))
async def fingerprint_file(ctx: TaskContext, payload: FingerprintPayload) -> Fingerprint:
    """The Chromaprint and sha256 of one file; raises what `fingerprint` raises."""
    result = await ctx.child(on_file, payload, fingerprint, decode_path(payload.path), payload.version)
    await ctx.progress(1.0, f"{result.items} items")
    return result


def sha256_of(path: Path) -> str:
    """Of the file's bytes, streamed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
