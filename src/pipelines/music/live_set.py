"""scan_live_set: a long set becomes its tracklist. The payload stands; the work is not built yet."""

from __future__ import annotations

from pydantic import BaseModel, Field

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import NotBuiltError
from pipelines.music.limits import analyze_seconds
from pipelines.payload import FilePayload, TaskResult


class LiveSetPayload(FilePayload):
    """One recording of a set. `version` is its sha256 plus the profile's name."""

    tracklist: str | None = None
    """Percent-encoded path of a .cue or text tracklist; None: look beside the recording."""


class SetTrack(BaseModel):
    """One track of a set; seconds from its start."""

    start: float = Field(ge=0)
    end: float = Field(ge=0)
    artist: str | None = None
    title: str | None = None
    confidence: float = Field(ge=0, le=1)


class Tracklist(TaskResult):
    """The tracks of a set in order; gaps are what no track covers."""

    tracks: list[SetTrack] = Field(default_factory=list)


@task(Policy(timeout=analyze_seconds))
async def scan_live_set(ctx: TaskContext, payload: LiveSetPayload) -> Tracklist:
    """Raises NotBuiltError."""
    raise NotBuiltError("scan_live_set")
