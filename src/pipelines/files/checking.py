"""What a batch would come to, without changing anything: the same looks that its first step takes, on this machine."""

from __future__ import annotations

import os

from pipelines.files import moving
from pipelines.files.content import open_file, sha256_of
from pipelines.files.folders import Refused, Roots, refusal
from pipelines.files.proposals import BatchPayload, Move, Proposal


def look(payload: BatchPayload) -> dict[str, str]:
    """proposal_id -> "" where it would be done as things are now, else the reason why not, and a detail.

    What earlier proposals of the batch bring and take away is counted in. Raises InputRejected for a bad root.
    """
    roots = Roots(payload.roots)
    by_then: dict[str, bool] = {}
    found: dict[str, str] = {}
    for proposal in payload.proposals:
        try:
            _look(proposal, roots, by_then)
            found[proposal.proposal_id] = ""
        except (Refused, OSError) as error:
            why = refusal(error) if isinstance(error, OSError) else error
            found[proposal.proposal_id] = f"{why.reason}: {why.detail}" if why.detail else why.reason
    return found


def _look(proposal: Proposal, roots: Roots, by_then: dict[str, bool]) -> None:
    """`by_then`: path -> whether earlier proposals will have put a file there, or taken it away."""
    coming = by_then.get(proposal.source)
    if coming is False:
        raise Refused("vanished", "an earlier proposal takes it away")
    with roots.existing(proposal.source) as source:
        if coming is None:
            if source is None:
                raise Refused("vanished", "there is no such file (any more)")
            fd = open_file(source)
            try:
                if proposal.follows is None and sha256_of(fd) != proposal.sha256:
                    raise Refused("source-changed", "its content is not what was approved")
            finally:
                os.close(fd)
        if isinstance(proposal, Move):
            if by_then.get(proposal.destination):
                raise Refused("destination-exists", "an earlier proposal puts a file there")
            if proposal.destination not in by_then and not roots.missing(proposal.destination) and source is not None:
                moving.is_alias(proposal, roots, source)
            by_then |= {proposal.source: False, proposal.destination: True}
