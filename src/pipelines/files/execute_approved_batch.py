"""execute_approved_batch: approved moves, renames and tag writes. The payload stands; the work is not built yet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import NotBuiltError
from pipelines.payload import Payload, TaskResult


class Move(BaseModel):
    """Move or rename one file; an existing destination is never overwritten. Paths are percent-encoded, absolute."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["move"] = "move"
    proposal_id: str
    source: str
    destination: str
    sha256: str
    """What was approved: other bytes at `source` are not moved."""


class TagWrite(BaseModel):
    """Write tags of one file; a name with an empty list removes that tag."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["tag"] = "tag"
    proposal_id: str
    source: str
    sha256: str
    tags: dict[str, list[str]]


Proposal = Annotated[Move | TagWrite, Field(discriminator="action")]


class BatchPayload(Payload):
    """1 to 500 approved proposals, all of it under `roots`."""

    roots: list[str] = Field(min_length=1)
    """Percent-encoded absolute paths of folders that may be changed; nothing outside is touched."""
    proposals: list[Proposal] = Field(min_length=1, max_length=500)


class BatchReport(TaskResult):
    """proposal_id -> what became of it: `done`, or a reason why not."""

    items: dict[str, str] = Field(default_factory=dict)


def batch_seconds(payload: BatchPayload) -> float:
    """60 s, and 60 s for each proposal: a move may copy across file systems."""
    return 60 + 60 * len(payload.proposals)


@task(Policy(timeout=batch_seconds, outside_effects=True))
async def execute_approved_batch(ctx: TaskContext, payload: BatchPayload) -> BatchReport:
    """Raises NotBuiltError; nothing is changed."""
    raise NotBuiltError("execute_approved_batch")
