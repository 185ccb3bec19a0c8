"""Proposals that somebody approved, and what became of each. Paths are percent-encoded and absolute (`encode_path`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pipelines.payload import Payload, TaskResult

MOST_PROPOSALS = 500


def _storable(text: str) -> str:
    """JSON can spell a lone surrogate; nothing that is encoded holds one, and no answer could repeat it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be text without lone surrogates; percent-encode the path's bytes") from None
    return text


Text = Annotated[str, AfterValidator(_storable)]


class _Proposal(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    proposal_id: Text = Field(min_length=1, max_length=200)
    source: Text
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """What was approved: a file with other bytes is left alone."""
    size: int = Field(default=0, ge=0)
    """Bytes, where known; the time-out scales with it."""
    follows: str | None = None
    """An earlier proposal of this batch that changes the file: the content it leaves is approved, not `sha256`."""


class Move(_Proposal):
    """Move or rename one file; an existing destination is never overwritten, missing folders are made."""

    action: Literal["move"] = "move"
    destination: Text
    prune: list[Text] = Field(default_factory=list, max_length=100)
    """Folders to remove afterwards if they are empty, the deepest first: an undo names those that the move made."""


class TagWrite(_Proposal):
    """Write tags of one file: our names (artist, title, album, album_artist, date, genre, track, disc, bpm, key, isrc)
    or free ones; a name with an empty list removes that tag. The sound stays as it is."""

    action: Literal["tag"] = "tag"
    tags: dict[Text, list[Text]] = Field(min_length=1, max_length=100)


class TagRestore(_Proposal):
    """Put back the tags that a write reported as its `old`."""

    action: Literal["restore"] = "restore"
    old: dict[str, Any]


Proposal = Annotated[Move | TagWrite | TagRestore, Field(discriminator="action")]


class BatchPayload(Payload):
    """1 to 500 approved proposals, all of it under `roots`; done in this order."""

    roots: list[Text] = Field(min_length=1, max_length=1000)
    """Folders below which files may be changed; nothing outside is touched."""
    proposals: list[Proposal] = Field(min_length=1, max_length=MOST_PROPOSALS)

    @model_validator(mode="after")
    def _one_answer_each(self) -> BatchPayload:
        ids = [proposal.proposal_id for proposal in self.proposals]
        if len(set(ids)) < len(ids):
            raise ValueError("two proposals have one proposal_id; give each its own")
        return self


class Item(BaseModel):
    """What became of one proposal. What is `failed` left its file as it was."""

    proposal_id: str
    action: Literal["move", "tag", "restore"]
    outcome: Literal["done", "failed"] = "done"
    reason: str | None = None
    """Why not, in one of a few words (docs/approved-moves.md lists them)."""
    detail: str = ""
    """For the person who looks: why not, or what could not be kept (extended attributes, an owner)."""
    source: str
    path: str
    """Where the file is now."""
    sha256_before: str
    sha256: str
    """Of the file as it is now."""
    size: int = 0
    mtime_ns: int = 0
    made: list[str] = Field(default_factory=list)
    """Folders that were made for it, the outermost first."""
    old: dict[str, Any] | None = None
    """The tags that were there before, as a `TagRestore` takes them."""


class BatchReport(TaskResult):
    """proposal_id -> `done`, or the reason why not; `details` says more, in the order of the proposals.

    `partial` where some failed, `rejected` where all did.
    """

    items: dict[str, str] = Field(default_factory=dict)
    details: list[Item] = Field(default_factory=list)


def report_of(details: list[Item]) -> BatchReport:
    """The sum of the items."""
    failed = [item for item in details if item.outcome == "failed"]
    report = BatchReport(
        items={item.proposal_id: item.reason or item.outcome for item in details},
        details=details,
    )
    if failed:
        report.outcome = "rejected" if len(failed) == len(details) else "partial"
        report.reason = f"{len(failed)} of {len(details)} not done, the first: {failed[0].reason}"
    return report


def failed(proposal: Move | TagWrite | TagRestore, reason: str, detail: str = "") -> Item:
    """Not done, and why; the file is where and as it was."""
    return Item(
        proposal_id=proposal.proposal_id,
        action=proposal.action,
        outcome="failed",
        reason=reason,
        detail=detail,
        source=proposal.source,
        path=proposal.source,
        sha256_before=proposal.sha256,
        sha256=proposal.sha256,
    )
