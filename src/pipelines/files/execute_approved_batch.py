"""execute_approved_batch: approved moves, renames and tag writes, each done wholly or not at all.

Each item goes through two steps, `prepare` and `commit` (moving.py, tagging.py), each a call of a child process. Before
each the lease is checked; in each the journal (journal.py) is locked and the fencing token compared. Killed anywhere,
the next run ends what was begun, and what is done is answered from the journal.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import ChildDied
from pipelines.files import moving, tagging
from pipelines.files.folders import Refused, Roots, refusal
from pipelines.files.journal import ItemLog, close_journal, item_log, journal_path, prune_journals
from pipelines.files.proposals import (
    BatchPayload,
    BatchReport,
    Item,
    Move,
    Proposal,
    TagRestore,
    TagWrite,
    failed,
    report_of,
)
from pipelines.files.publish import CrossDevice

__all__ = ["BatchPayload", "BatchReport", "Item", "Move", "TagRestore", "TagWrite", "execute_approved_batch"]


class RootAway(Exception):
    """A root went away in the middle of an item; it is ended once the root is back."""


class Unsettled(Exception):
    """Something failed after the point of no return; it is ended in the next run."""


def item_seconds(proposal: Proposal) -> float:
    """60 s and what it takes to copy it at 2 MB/s, to a slow network share; 600 s where its size is not known."""
    return 60 + proposal.size / 2e6 if proposal.size else 600


def batch_seconds(payload: BatchPayload) -> float:
    """60 s, and what each proposal may take."""
    return 60 + sum(map(item_seconds, payload.proposals))


@task(Policy(timeout=batch_seconds, outside_effects=True))
async def execute_approved_batch(ctx: TaskContext, payload: BatchPayload) -> BatchReport:
    """Do what was approved, in order; what cannot be done is reported, and the others go on.

    Raises InputRejected (a root that is no plain path or not allowed here), LeaseLost, ToolMissing, and JournalError
    (nothing is changed without a journal).
    """
    Roots(payload.roots)
    content = BatchPayload.model_dump_json(payload.model_copy(update={"version": ""}))
    journal = journal_path(ctx.record_id, content)
    details: list[Item] = []
    for index, proposal in enumerate(payload.proposals):
        item = _held_up(proposal, details)
        approved = _after(proposal, details)
        while item is None:
            await ctx.check()
            step = (journal, ctx.token, index, payload.roots, approved)
            try:
                async with asyncio.timeout(item_seconds(proposal)):
                    item = await ctx.child(advance, *step)
            except (ChildDied, TimeoutError) as error:
                why = "died" if isinstance(error, ChildDied) else "timed-out"
                item = await ctx.child(give_up, *step, why, str(error) or f"after {item_seconds(proposal):.0f} s")
        details.append(item)
        await ctx.progress(len(details) / len(payload.proposals), f"{len(details)} of {len(payload.proposals)}")
    await ctx.check()
    await ctx.child(_over, journal, ctx.token)
    return report_of(details)


def _over(journal: Path, token: str) -> None:
    close_journal(journal, token)
    prune_journals(journal.parent, time.time())


def _held_up(proposal: Proposal, details: list[Item]) -> Item | None:
    """The end of a proposal whose file an earlier one should have changed, and did not."""
    if proposal.follows is None or any(
        item.proposal_id == proposal.follows and item.outcome == "done" for item in details
    ):
        return None
    return failed(proposal, "follows-failed", f"{proposal.follows} was to come before it, and is not done")


def _after(proposal: Proposal, details: list[Item]) -> Proposal:
    """With the content that the proposal before it has left."""
    left = {item.proposal_id: item.sha256 for item in details}
    return proposal.model_copy(update={"sha256": left.get(proposal.follows or "", proposal.sha256)})


def advance(journal: Path, token: str, index: int, roots: list[str], proposal: Proposal) -> Item | None:
    """One step of one item; its end, or None: there is another step.

    Raises what the task raises, RootAway and Unsettled.
    """
    with item_log(journal, token, index) as log:
        if done := log.last("done"):
            return Item.model_validate(done["result"])
        try:
            item = _step(proposal, Roots(roots), log)
        except CrossDevice:
            log.append("cross-device")
            return None
        except (Refused, OSError) as error:
            return _failed(proposal, Roots(roots), log, refusal(error) if isinstance(error, OSError) else error)
        if item is not None:
            log.append("done", result=item.model_dump(mode="json"))
        return item


def give_up(
    journal: Path, token: str, index: int, roots: list[str], proposal: Proposal, reason: str, detail: str
) -> Item | None:
    """The end of an item whose preparation kills its process or takes too long, so that the others go on.

    None where it was past preparation: what was begun there is ended.
    """
    with item_log(journal, token, index) as log:
        if log.last("ready") or log.last("done"):
            return None
        return _failed(proposal, Roots(roots), log, Refused(reason, detail))


def _step(proposal: Proposal, roots: Roots, log: ItemLog) -> Item | None:
    begun = log.last("ready") is not None
    if isinstance(proposal, Move):
        return (moving.commit if begun else moving.prepare)(proposal, roots, log)
    return (tagging.commit if begun else tagging.prepare)(proposal, roots, log)


def _failed(proposal: Proposal, roots: Roots, log: ItemLog, why: Refused) -> Item:
    if log.last("intent") is not None:
        if why.reason == "root-missing":
            raise RootAway(f"{why.detail} ({proposal.proposal_id} was begun)")
        if isinstance(proposal, Move):
            back = moving.abandon(proposal, roots, log)
        else:
            back = tagging.abandon(proposal, roots, log)
        if not back:
            raise Unsettled(f"{proposal.proposal_id}: {why.reason} ({why.detail}) after it was done; to be ended again")
    log.append("failed", reason=why.reason, detail=why.detail)
    return failed(proposal, why.reason, why.detail)
