"""docs/transfers.md says nothing that is not so: its variables, commands and tables exist, its examples run.

The commands of the two worked examples run in tests/agent/test_offload.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.settings import ACCEPTED
from pipelines.files import digests, s3_store, transfer
from pipelines.files.push_file import Push, PushPayload
from pipelines.files.s3_signer import Wanted
from pipelines.files.s3_upload import PATIENCE, S3UploadPayload, Upload
from tests.conftest import REPO
from tests.pipelines.files.bucket import BUCKET
from tests.pipelines.files.conftest import moto_port

__all__ = ["moto_port"]

TEXT = (REPO / "docs" / "transfers.md").read_text("utf-8")


def commands(name: str) -> list[str]:
    """The `phaze` lines below `<!-- run by tests: NAME -->`."""
    block = TEXT.split(f"<!-- run by tests: {name} -->\n")[1].split("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


def test_every_variable_exists() -> None:
    assert set(re.findall(r"\b(PHAZE_[A-Z0-9_]+[A-Z])\b", TEXT)) <= ACCEPTED


def test_the_numbers_are_the_programs() -> None:
    assert digests.PART == 8 << 20
    assert digests.MOST_PARTS == 10_000
    assert (digests.part_size(digests.PART * 10_000), digests.part_size(digests.PART * 10_000 + 1)) == (
        8 << 20,
        9 << 20,
    )
    assert digests.PART * 10_000 // 2**30 == 78
    assert (s3_store.ATTEMPTS, s3_store.FIRST_WAIT, s3_store.MOST_WAIT, s3_store.LONGEST_RETRY_AFTER) == (
        5,
        0.5,
        30,
        60,
    )
    assert (PATIENCE, transfer.LEAST_RATE) == (8, 16 * 1024)
    assert S3UploadPayload.model_fields["parallel"].default == 4
    assert {model.model_fields["stall"].default for model in (S3UploadPayload, PushPayload)} == {60}
    for model in (Upload, Push):
        for word in re.findall(r"'([a-z0-9-]+)'", str(model.model_fields["verified"].annotation)):
            assert f"`{word}`" in TEXT or f"`verified: {word}`" in TEXT


def test_the_example_without_a_queue_runs(tmp_path: Path, moto_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"http://127.0.0.1:{moto_port}"
    httpx.put(f"{store}/{BUCKET}")
    (tmp_path / "plain.mp3").write_bytes(b"sound")
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    code = code.replace("/srv/music", str(tmp_path)).replace("https://minio.example:9000", store)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/transfers.md", "exec"), names)
    assert capsys.readouterr().out.startswith("store-")
    signed = names["signer"].sign("by-hand/plain.mp3", Wanted(kind="get"))
    assert httpx.get(signed.url).content == b"sound"
