"""docs/documents.md as it stands: the service is started, its commands are typed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.settings import ACCEPTED
from pipelines.documents.samples import write_samples
from tests import consoles
from tests.agent.test_up import Up
from tests.conftest import REPO
from tests.servers import Local

PAGE = REPO / "docs" / "documents.md"
TOOLS = ("redis-cli", "curl", "jq")


def test_its_variables_exist() -> None:
    assert set(re.findall(r"\b(PHAZE_[A-Z_]+[A-Z]|WORKER_MAX_JOBS)\b", PAGE.read_text("utf-8"))) <= ACCEPTED | {
        "PHAZE_REDIS_URL", "PHAZE_HUB_URL",
    }  # fmt: skip


@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="redis-cli, curl or jq is not installed")
@pytest.mark.timeout(300)
async def test_its_commands_say_what_it_says(tmp_path: Path, start_server: Callable[..., Local]) -> None:
    reports = tmp_path / "reports"
    write_samples(reports)
    url = start_server().url
    up = Up(tmp_path / "data", "--documents", PHAZE_DOCUMENT_ROOTS=str(reports), PHAZE_REDIS_URL=url)
    try:
        async with asyncio.timeout(120):
            while not list(up.data.glob("logs/worker-grouper.log")):
                assert up.process.poll() is None
                await asyncio.sleep(0.1)
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PHAZE_REDIS_URL": url,
            "PHAZE_HUB_URL": (up.data / "hub.url").read_text("utf-8").strip(),
            "REPORTS": str(reports),
        }
        await asyncio.to_thread(consoles.run, PAGE, environment)
    finally:
        up.clean()
