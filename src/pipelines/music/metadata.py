"""extract_file_metadata: what a file's tags and headers say. Nothing is decoded.

A file that plays although its tags cannot be read is `partial`, with the facts that ffmpeg sees.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, Field

from pipelines.context import Policy, TaskContext, task
from pipelines.music import text, vendors
from pipelines.music.covers import Cover
from pipelines.music.limits import tag_seconds
from pipelines.music.on_file import on_file
from pipelines.payload import FilePayload, TaskResult, decode_path

LONGEST_DURATION = 30 * 86_400.0
"""Seconds; a header that says more is lying."""


class MetadataPayload(FilePayload):
    """One audio file whose tags to read. `version` is its sha256 plus the profile's name."""


class BinaryTag(BaseModel):
    """A tag that is no text: its length, the sha256 (hex) of its bytes, and, unless it is long, these in base64."""

    bytes: int
    sha256: str
    base64: str | None = None


class FileTags(TaskResult):
    """Tags and stream facts; None: not said. Texts are NFC, without control characters and lone surrogates.

    `partial`: `bad-tags` (unreadable) or `unknown-tags` (a container whose tags are not read), facts from ffmpeg.
    `skipped`: `changed-since-scan`.
    """

    artist: str | None = None
    title: str | None = None
    album: str | None = None
    album_artist: str | None = None
    year: int | None = None
    genre: str | None = None
    track: int | None = None
    disc: int | None = None
    bpm_tag: float | None = Field(default=None, description="BPM as another program wrote it")
    key_tag: str | None = Field(default=None, description="key as another program wrote it")
    key_camelot: str | None = Field(default=None, description="the same, 1A to 12B, where it can be told")
    energy_tag: int | None = Field(default=None, description="1 to 10, as Mixed In Key wrote it")
    isrc: str | None = None
    musicbrainz: dict[str, str] = Field(default_factory=dict, description="recording, release, artist, ...: UUID")
    replay_gain: vendors.ReplayGain | None = None
    programs: dict[str, dict[str, float | str]] = Field(
        default_factory=dict,
        description="serato, traktor, mixedinkey, rekordbox: what is understood of their own frames",
    )
    duration: float | None = Field(default=None, description="seconds, by the container's header")
    bit_rate: int | None = Field(default=None, description="bit/s")
    sample_rate: int | None = Field(default=None, description="Hz")
    channels: int | None = None
    codec: str | None = None
    container: str | None = None
    has_cover: bool = False
    covers: list[Cover] = Field(default_factory=list, description="facts; at most 20")
    raw: dict[str, list[str]] = Field(default_factory=dict, description="texts, by the file's own names")
    binary: dict[str, BinaryTag] = Field(default_factory=dict, description="the rest, by the file's own names")
    warnings: list[str] = Field(default_factory=list)


def read_metadata(path: str | Path) -> FileTags:
    """Tags of one file, in this process and thread. Give `size` in bytes to be told if it changed since.

    Raises RecordNotFoundError, InputRejected (neither tags nor sound), OSError, TimeoutError, ToolMissing (only where
    the tags are unreadable and ffmpeg is asked).
    """
    from pipelines.music.ffmpeg import regular_file
    from pipelines.music.tags import BadTags, read_tags

    path = Path(path)
    regular_file(path)
    try:
        tags = read_tags(path)
    except BadTags as error:
        return _by_ffmpeg(path, "bad-tags", str(error))
    if tags is None:
        return _by_ffmpeg(path, "unknown-tags", "")
    found = vendors.read_vendors(tags.raw, tags.binary)
    tempi = (bpm for written in tags.each("bpm") if (bpm := text.tempo(written)) is not None)
    key = next((written for written in tags.each("key") if vendors.camelot(written)), tags.first("key") or found.key)
    result = FileTags(
        artist=tags.first("artist"),
        title=tags.first("title"),
        album=tags.first("album"),
        album_artist=tags.first("album_artist"),
        year=text.year(tags.first("date") or ""),
        genre=tags.first("genre"),
        track=text.leading_number(tags.first("track") or ""),
        disc=text.leading_number(tags.first("disc") or ""),
        bpm_tag=next(tempi, found.bpm),
        key_tag=key,
        key_camelot=vendors.camelot(key or ""),
        energy_tag=found.energy,
        isrc=tags.first("isrc"),
        musicbrainz=vendors.musicbrainz(tags.raw, tags.binary),
        replay_gain=vendors.replay_gain(tags.raw, tags.gains),
        programs=found.programs,
        duration=round(tags.duration, 3) if tags.duration else None,
        bit_rate=tags.bit_rate,
        sample_rate=tags.sample_rate,
        channels=tags.channels,
        codec=tags.codec or tags.container,
        container=tags.container,
        has_cover=bool(tags.covers),
        covers=tags.covers[:20],
        raw=tags.raw,
        binary=_kept(tags.binary),
    )
    if result.duration and result.duration > LONGEST_DURATION:
        result.warnings.append(f"absurd-duration: the header says {result.duration:.0f} s")
        result.duration = None
    return result


def _kept(binary: Mapping[str, bytes]) -> dict[str, BinaryTag]:
    from pipelines.music.tags import MOST_BINARY, MOST_FRAME

    kept: dict[str, BinaryTag] = {}
    room = MOST_BINARY
    for name, data in binary.items():
        fits = len(data) <= min(MOST_FRAME, room)
        room -= len(data) if fits else 0
        whole = base64.b64encode(data).decode("ascii") if fits else None
        kept[name] = BinaryTag(bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), base64=whole)
    return kept


def _by_ffmpeg(path: Path, reason: str, detail: str) -> FileTags:
    """The facts that ffmpeg sees, where it plays the file; its refusal where it does not."""
    from pipelines.music.probe import probe

    found = probe(path)
    return FileTags(
        outcome="partial",
        reason=reason,
        duration=found.duration,
        bit_rate=found.bit_rate,
        sample_rate=found.sample_rate,
        channels=found.channels,
        codec=found.codec,
        container=found.container,
        has_cover=found.has_picture,
        warnings=[f"{reason}: {text.clean(detail)[:200]}"] if detail else [],
    )


@task(Policy(timeout=tag_seconds))
async def extract_file_metadata(ctx: TaskContext, payload: MetadataPayload) -> FileTags:
    """Tags and stream facts of one file; raises what `read_metadata` raises."""
    return await ctx.child(on_file, payload, read_metadata, decode_path(payload.path))
