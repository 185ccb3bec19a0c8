"""Killed at any step and done again, a batch ends as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO


def kill_everywhere(scenario: str, here: Path, there: Path) -> dict[str, Any]:
    argv = [sys.executable, "-m", "tests.pipelines.files.killing", scenario, here, there]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, cwd=REPO, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


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
        said = kill_everywhere(scenario, here, there)
    finally:
        subprocess.run(["rm", "-rf", memory], check=True)
    assert said["kills"] > 35
    assert said["outcomes"] == outcomes


def test_the_same_for_a_rename_of_case_alone_where_case_does_not_count(exfat: Path, tmp_path: Path) -> None:
    said = kill_everywhere("case", exfat, tmp_path)
    assert said["kills"] > 20
    assert said["outcomes"] == ["done"]
