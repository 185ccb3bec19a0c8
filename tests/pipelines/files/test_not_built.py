"""What is not built says so, and changes nothing."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from pipelines.context import InlineContext, policy_of
from pipelines.errors import NotBuiltError
from pipelines.files.execute_approved_batch import BatchPayload, Move, TagWrite, execute_approved_batch
from pipelines.music.live_set import LiveSetPayload, scan_live_set

HASH = "0" * 64
FILE = {"version": f"{HASH}:default", "path": "/music/a.mp3", "size": 5_000_000}
MOVE = Move(proposal_id="1", source="/music/a.mp3", destination="/music/b.mp3", sha256=HASH)

TASKS = [
    (scan_live_set, LiveSetPayload(**FILE)),
    (execute_approved_batch, BatchPayload(version="1", roots=["/music"], proposals=[MOVE])),
]


@pytest.mark.parametrize(("function", "payload"), TASKS, ids=lambda value: getattr(value, "__name__", ""))
async def test_it_raises_not_built_and_has_a_time_limit(function: object, payload: BaseModel) -> None:
    with pytest.raises(NotBuiltError, match="not built yet"):
        await function(InlineContext(), payload)  # type: ignore[operator]
    assert policy_of(function).timeout(payload) >= 60  # type: ignore[arg-type]


def test_a_batch_holds_1_to_500_proposals_of_known_kinds() -> None:
    tag = TagWrite(proposal_id="2", source="/music/a.mp3", sha256=HASH, tags={"title": ["A"]})
    batch = BatchPayload(version="1", roots=["/music"], proposals=[MOVE, tag])
    assert BatchPayload.model_validate_json(batch.model_dump_json()) == batch
    for proposals in ([], [MOVE] * 501, [{"action": "delete", "proposal_id": "3", "source": "/a"}]):
        with pytest.raises(ValidationError):
            BatchPayload(version="1", roots=["/music"], proposals=proposals)
