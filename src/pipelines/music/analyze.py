"""process_file: tempo, key, loudness and danceability of one file.

`analyze(path)` works alone; `process_file` runs it in a child process. Nothing numeric is imported with this module.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pipelines.context import Policy, TaskContext, task
from pipelines.music.limits import analyze_seconds
from pipelines.music.on_file import on_file
from pipelines.payload import FilePayload, TaskResult, decode_path

SCHEMA = 1
"""Grows when a field of `Analysis` changes its meaning."""

PROFILE = "default"

UNSURE = 1.0
"""Confidence under which essentia's authors call a tempo very unreliable."""


class AnalyzePayload(FilePayload):
    """One audio file to analyse. `version` is its sha256 plus the profile's name."""


class Analysis(TaskResult):
    """What one file sounds like. None: not measurable; `warnings` say why, each as `slug: detail`.

    The outcome is `partial` (reason `short`) where clearly less could be decoded than the file declares, and
    `skipped` (reason `changed-since-scan`) where it is no longer the file that was scanned.
    """

    duration: float | None = Field(default=None, description="seconds that could be decoded")
    declared_duration: float | None = Field(default=None, description="seconds that the container declares")
    bpm: float | None = Field(default=None, description="beats a minute, 40 to 208")
    bpm_confidence: float | None = Field(default=None, description="0 to 5.32; over 3.5 is excellent")
    bpm_agreement: float | None = Field(default=None, description="share of the votes, 0 to 1")
    key: str | None = Field(default=None, description="tonic: A, Bb, B, C, C#, D, Eb, E, F, F#, G, Ab")
    scale: str | None = Field(default=None, description="major or minor")
    key_strength: float | None = Field(default=None, description="correlation with the key's profile, to 1")
    camelot: str | None = Field(default=None, description="1A to 12B")
    loudness: float | None = Field(default=None, description="integrated, LUFS (EBU R128)")
    loudness_range: float | None = Field(default=None, description="LU (EBU Tech 3342)")
    danceability: float | None = Field(default=None, description="0 to about 3")
    leading_silence: float | None = Field(default=None, description="seconds under -60 dBFS")
    trailing_silence: float | None = Field(default=None, description="seconds under -60 dBFS")
    windows: int = Field(default=0, description="windows of 60 s that were analysed")
    profile: str = PROFILE
    versions: dict[str, str] = Field(default_factory=dict, description="of schema, essentia, ffmpeg")
    warnings: list[str] = Field(default_factory=list)


def analyze(path: str | Path) -> Analysis:
    """Analyse one file, in this process and thread. Give `size` in bytes to be told if it changed since.

    Raises RecordNotFoundError (the file is gone, its folder is there), InputRejected (not audio, corrupt), OSError,
    TimeoutError, ToolMissing.
    """
    from pipelines.music.measure import measure

    return measure(Path(path))


@task(Policy(timeout=analyze_seconds))
async def process_file(ctx: TaskContext, payload: AnalyzePayload) -> Analysis:
    """Tempo, key and loudness of one file; raises what `analyze` raises."""
    result = await ctx.child(on_file, payload, analyze, decode_path(payload.path))
    await ctx.progress(1.0, f"{result.windows} windows")
    return result
