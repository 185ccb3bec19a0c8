"""extract_file_metadata: what a file's tags and headers say. Nothing is decoded.

A file that plays although its tags cannot be read is `partial`, with the facts that ffmpeg sees.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pipelines.context import Policy, TaskContext, task
from pipelines.music import text
from pipelines.music.limits import tag_seconds
from pipelines.music.on_file import on_file
from pipelines.payload import FilePayload, TaskResult, decode_path

LONGEST_DURATION = 30 * 86_400.0
"""Seconds; a header that says more is lying."""


class MetadataPayload(FilePayload):
    """One audio file whose tags to read. `version` is its sha256 plus the profile's name."""


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
    isrc: str | None = None
    duration: float | None = Field(default=None, description="seconds, by the container's header")
    bit_rate: int | None = Field(default=None, description="bit/s")
    sample_rate: int | None = Field(default=None, description="Hz")
    channels: int | None = None
    codec: str | None = None
    container: str | None = None
    has_cover: bool = False
    raw: dict[str, list[str]] = Field(default_factory=dict, description="by the file's own names; no binary")
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
    result = FileTags(
        artist=tags.first("artist"),
        title=tags.first("title"),
        album=tags.first("album"),
        album_artist=tags.first("album_artist"),
        year=text.year(tags.first("date") or ""),
        genre=tags.first("genre"),
        track=text.leading_number(tags.first("track") or ""),
        disc=text.leading_number(tags.first("disc") or ""),
        bpm_tag=text.tempo(tags.first("bpm") or ""),
        key_tag=tags.first("key"),
        isrc=tags.first("isrc"),
        duration=round(tags.duration, 3) if tags.duration else None,
        bit_rate=tags.bit_rate,
        sample_rate=tags.sample_rate,
        channels=tags.channels,
        codec=tags.codec or tags.container,
        container=tags.container,
        has_cover=tags.has_cover,
        raw=tags.raw,
    )
    if result.duration and result.duration > LONGEST_DURATION:
        result.warnings.append(f"absurd-duration: the header says {result.duration:.0f} s")
        result.duration = None
    return result


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
