"""process_file: tempo, key, loudness and more of one file.

`analyze(path)` works alone; `process_file` runs it in a child process. Nothing numeric is imported with this module.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from pipelines.context import Policy, TaskContext, task
from pipelines.music.limits import analyze_seconds
from pipelines.music.on_file import on_file
from pipelines.music.profiles import SCHEMA, Profile, profile_of
from pipelines.payload import FilePayload, TaskResult, decode_path

__all__ = ["SCHEMA", "Analysis", "AnalyzePayload", "analyze", "process_file"]

UNSURE = 1.0
"""Confidence under which essentia's authors call a tempo very unreliable."""


class AnalyzePayload(FilePayload):
    """One audio file to analyse. `version` is its sha256 plus the profile's name, which says how much is measured."""

    @field_validator("version")
    @classmethod
    def _of_a_profile(cls, value: str) -> str:
        profile_of(value)
        return value

    @property
    def profile(self) -> Profile:
        return profile_of(self.version)


class TempoAlternative(BaseModel):
    """Another tempo that can be meant. `share` of the windows' votes, 0 to 1; 0: only an octave of the answer."""

    bpm: float
    share: float


class KeyAlternative(BaseModel):
    """The next best keys, by their correlation."""

    key: str
    scale: str
    camelot: str
    strength: float


class GridMarker(BaseModel):
    """Beat n of `beats` is at `at + n * 60 / bpm` seconds; what was heard lies within 0.035 s of that."""

    at: float
    bpm: float
    beats: int


class WindowView(BaseModel):
    """What one window of 60 s said by itself: the tempo curve and, for sets, the key of the moment."""

    start: float = Field(description="seconds")
    bpm: float | None = None
    confidence: float | None = None
    key: str | None = None
    scale: str | None = None
    camelot: str | None = None
    strength: float | None = None


class Analysis(TaskResult):
    """What one file sounds like. None: not measurable; `warnings` say why, each as `slug: detail`.

    The outcome is `partial` (reason `short`) where clearly less could be decoded than the file declares, and
    `skipped` (reason `changed-since-scan`) where it is no longer the file that was scanned.
    """

    duration: float | None = Field(default=None, description="seconds: decoded, or declared where less came out")
    decoded_duration: float | None = Field(default=None, description="seconds that could be decoded")
    declared_duration: float | None = Field(default=None, description="seconds that the container declares")
    partial: bool = Field(default=False, description="clearly less could be decoded than was declared")

    bpm: float | None = Field(default=None, description="beats a minute, 40 to 210")
    bpm_confidence: float | None = Field(default=None, description="0 to 5.32; over 3.5 is excellent; None if fast")
    bpm_agreement: float | None = Field(default=None, description="share of the votes, 0 to 1")
    bpm_alternatives: list[TempoAlternative] = Field(default_factory=list)
    tempo: str | None = Field(default=None, description="steady or variable")
    grid: list[GridMarker] = Field(default_factory=list, description="every beat, as markers")

    key: str | None = Field(default=None, description="tonic: A, Bb, B, C, C#, D, Eb, E, F, F#, G, Ab")
    scale: str | None = Field(default=None, description="major or minor")
    key_strength: float | None = Field(default=None, description="correlation with the key's profile, to 1")
    key_agreement: float | None = Field(default=None, description="share of the windows with this key, 0 to 1")
    camelot: str | None = Field(default=None, description="1A to 12B")
    key_alternatives: list[KeyAlternative] = Field(default_factory=list)
    tuning: float | None = Field(default=None, description="Hz of A4, 427.5 to 452.9")

    loudness: float | None = Field(default=None, description="integrated, LUFS (EBU R128)")
    loudness_range: float | None = Field(default=None, description="LU (EBU Tech 3342)")
    sample_peak: float | None = Field(default=None, description="dBFS, the louder channel's")
    replaygain: float | None = Field(default=None, description="dB to -18 LUFS (ReplayGain 2.0)")
    dynamic_complexity: float | None = Field(default=None, description="dB, mean distance from the mean loudness")

    danceability: float | None = Field(default=None, description="0 to about 3")
    onset_rate: float | None = Field(default=None, description="onsets a second; None if fast")
    spectral_centroid: float | None = Field(default=None, description="Hz")
    leading_silence: float | None = Field(default=None, description="seconds under -60 dBFS")
    trailing_silence: float | None = Field(default=None, description="seconds under -60 dBFS")

    tags: dict[str, dict[str, float]] = Field(default_factory=dict, description="model -> label -> 0 to 1")
    embeddings: dict[str, list[float]] = Field(default_factory=dict, description="model -> mean over the piece")
    model_bpm: float | None = Field(default=None, description="beats a minute by TempoCNN, a second opinion")
    model_bpm_confidence: float | None = Field(default=None, description="its probability, 0 to 1")

    windows: list[WindowView] = Field(default_factory=list, description="those of 60 s that were not silent")
    profile: Profile = "default"
    versions: dict[str, str] = Field(default_factory=dict, description="of schema, essentia, ffmpeg, each model")
    warnings: list[str] = Field(default_factory=list)

    def beats(self) -> list[float]:
        """The grid written out: seconds of every beat."""
        return [marker.at + n * 60 / marker.bpm for marker in self.grid for n in range(marker.beats)]


def analyze(path: str | Path, profile: Profile = "default") -> Analysis:
    """Analyse one file, in this process and thread.

    Raises RecordNotFoundError (the file is gone, its folder is there), InputRejected (not audio, corrupt), OSError,
    TimeoutError, ToolMissing (also where the profile wants models and none is installed).
    """
    from pipelines.music.measure import measure

    return measure(Path(path), profile)


@task(Policy(timeout=lambda payload: analyze_seconds(payload, models=payload.profile == "full")))
async def process_file(ctx: TaskContext, payload: AnalyzePayload) -> Analysis:
    """Tempo, key, loudness and more of one file; raises what `analyze` raises."""
    result = await ctx.child(on_file, payload, analyze, decode_path(payload.path), payload.profile)
    await ctx.progress(1.0, f"{len(result.windows)} windows")
    return result
