"""What is not built says so, and changes nothing."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from pipelines.context import InlineContext, policy_of
from pipelines.errors import NotBuiltError
from pipelines.files.execute_approved_batch import BatchPayload, Move, TagWrite, execute_approved_batch
from pipelines.files.push_file import PushPayload, push_file
from pipelines.files.s3_upload import S3UploadPayload, s3_upload

HASH = "0" * 64
FILE = {"version": f"{HASH}:default", "path": "/music/a.mp3", "size": 5_000_000}
MOVE = Move(proposal_id="1", source="/music/a.mp3", destination="/music/b.mp3", sha256=HASH)

UPLOAD = S3UploadPayload(
    **FILE,
    part_urls=["https://key@store.example/a?X-Amz-Signature=secret"],
    part_size=8 << 20,
    complete_url="https://store.example/c?X-Amz-Signature=secret",
    abort_url="https://store.example/x?X-Amz-Signature=secret",
)
PUSH = PushPayload(
    **FILE, host="nas.example", user="phaze", destination="/in", host_key="nas.example ssh-ed25519 A", key_name="k"
)

TASKS = [
    (execute_approved_batch, BatchPayload(version="1", roots=["/music"], proposals=[MOVE])),
    (s3_upload, UPLOAD),
    (push_file, PUSH),
]


@pytest.mark.parametrize(("function", "payload"), TASKS, ids=lambda value: getattr(value, "__name__", ""))
async def test_it_raises_not_built_and_has_a_time_limit(function: object, payload: BaseModel) -> None:
    with pytest.raises(NotBuiltError, match="not built yet"):
        await function(InlineContext(), payload)  # type: ignore[operator]
    assert policy_of(function).timeout(payload) >= 60  # type: ignore[arg-type]


def test_what_leans_on_others_names_them_for_the_breaker() -> None:
    assert policy_of(s3_upload).dependency(UPLOAD) == "s3:store.example"  # type: ignore[misc]
    assert policy_of(push_file).dependency(PUSH) == "ssh:nas.example:22"  # type: ignore[misc]


def test_presigned_urls_do_not_show_in_a_repr() -> None:
    assert "secret" not in repr(UPLOAD)


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "", "a;b"])
def test_a_host_that_ssh_would_take_for_an_option_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        PushPayload(**{**PUSH.model_dump(), "host": host})


def test_a_batch_holds_1_to_500_proposals_of_known_kinds() -> None:
    tag = TagWrite(proposal_id="2", source="/music/a.mp3", sha256=HASH, tags={"title": ["A"]})
    batch = BatchPayload(version="1", roots=["/music"], proposals=[MOVE, tag])
    assert BatchPayload.model_validate_json(batch.model_dump_json()) == batch
    for proposals in ([], [MOVE] * 501, [{"action": "delete", "proposal_id": "3", "source": "/a"}]):
        with pytest.raises(ValidationError):
            BatchPayload(version="1", roots=["/music"], proposals=proposals)
