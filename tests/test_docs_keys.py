"""docs/per-user-keys.md says nothing that is not so: its code runs; commands, variables and numbers are as it says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from agent.hub.catalogue import Catalogue
from agent.phoenix import billing, keys
from agent.phoenix.breaker import FAILURES, KEYS_FAULT
from agent.settings import ACCEPTED
from tests.agent.paying.conftest import running_service, service
from tests.agent.paying.fleet import Fleet, fleet
from tests.agent.paying.service import COMPLETION, PROMPT, Service
from tests.conftest import REPO
from tests.hub.conftest import catalogue
from tests.hub.deliveries import AGENT, TOKEN

__all__ = ["catalogue", "running_service", "service"]

TEXT = (REPO / "docs" / "per-user-keys.md").read_text("utf-8")


@pytest.fixture
async def running(
    redis: Redis, valkey_url: str, service: Service, catalogue: Catalogue, tmp_path: Path
) -> AsyncIterator[Fleet]:
    async with fleet(redis, valkey_url, service, catalogue, tmp_path) as found:
        yield found


def write_package(folder: Path) -> None:
    """The package of the page, as installed."""
    for name, code in re.findall(r"`(labs/\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.DOTALL):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code, "utf-8")
    info = folder / "labs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: labs\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(
        "[phaze.lanes.io]\nsummarise_report = labs.tasks:summarise_report\n"
        "translate_report = labs.tasks:translate_report\n",
        "utf-8",
    )


async def test_the_package_of_the_page_pays_with_each_users_key_and_its_usage_is_shown(
    running: Fleet, tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder)
    await running.worker("agent.cli", "worker", PYTHONPATH=str(folder), PHAZE_BILLING_PATH="/key/generate")
    tasks = ("summarise_report", "translate_report")
    for name in tasks:
        for user in ("ann", "bob"):
            arguments = {"version": "v1", "user_id": user, "text": f"{user} 1"}
            await running.producer.enqueue(name, key=f"{name}:{user}", **arguments)
    await running.until(running.quiet)
    calls = running.calls()
    assert len(calls) == 4
    assert all(call["payer"] == call["meant"] for call in calls)
    for name in tasks:
        rows = running.catalogue.results(name)
        assert {row["record_id"]: row["result"]["text"] for row in rows} == {"ann": "for ann", "bob": "for bob"}
    env = {"PHAZE_HUB_URL": running.hub_url, "PHAZE_AGENT_TOKEN": TOKEN, "PHAZE_AGENT_ID": AGENT}
    lines = [line.strip() for line in re.findall(r"^    (phaze usage[^#\n]*)", TEXT, re.MULTILINE)]
    said = {line: await phaze(line, env) for line in lines}
    tokens = f"{2 * PROMPT} prompt + {2 * COMPLETION} completion tokens, 2 calls"
    assert f"ann: {tokens}" in said["phaze usage"]
    assert "2 users" in said["phaze usage"]
    assert "summarise_report:ann" in said["phaze usage --user ann"]
    assert "bob" not in said["phaze usage --user ann"]
    assert '"calls": 4' in said["phaze usage --json"]
    assert f"{4 * PROMPT} prompt" in await phaze("phaze usage --since 7d", env)
    assert "0 users" in await phaze("phaze usage --since 2999-01-01", env)


async def phaze(line: str, env: dict[str, str]) -> str:
    """What the command says."""
    command = [sys.executable, "-m", "agent.cli", *line.split()[1:]]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_variable_exists() -> None:
    assert set(re.findall(r"\b(PHAZE_[A-Z_]+[A-Z])\b", TEXT)) <= ACCEPTED


def test_the_numbers_are_the_programs() -> None:
    assert billing.LIFE == 24 * 3600
    assert (billing.PATIENCE, billing.LOCK, keys.LONGEST_USER, FAILURES) == (45, 15, 256, 5)
    assert {401, 402, 403, 429} == KEYS_FAULT
