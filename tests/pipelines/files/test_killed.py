"""Killed at any step and done again, a batch ends as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO

MEMORY = Path("/dev/shm")


@pytest.mark.parametrize(
    ("scenario", "outcomes"),
    [
        ("rename", ["done", "destination-exists"]),
        ("across", ["done", "done"]),
        ("no-links", ["done", "destination-exists"]),
        ("no-links-no-flags", ["done", "destination-exists"]),
        ("tags", ["done"]),
        ("tags-plain", ["done"]),
    ],
)
def test_killed_at_any_step_and_done_again_nothing_is_lost_doubled_or_left_over(
    scenario: str, outcomes: list[str], tmp_path: Path
) -> None:
    if not MEMORY.is_dir():
        pytest.skip("no second file system to copy to")
    memory = MEMORY / f"phaze-test-{os.getpid()}"
    here, there = (tmp_path, memory) if scenario == "across" else (memory, memory / "other")
    memory.mkdir()
    try:
        argv = [sys.executable, "-m", "tests.pipelines.files.killing", scenario, here, there]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=110, cwd=REPO, check=False)
    finally:
        subprocess.run(["rm", "-rf", memory], check=True)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["kills"] > 35
    assert said["outcomes"] == outcomes
