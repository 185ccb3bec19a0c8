""".ci/run, with a `make` of the test's own: what it starts, what it says, and what it says last."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPO

MAKE = """#!/bin/sh
echo "$@, CI=$CI, started: $(cat started 2>/dev/null)"
echo "===== 1 failed, 2 passed in 0.50s ====="
echo "====== short test summary info ======"
echo "= 3 skipped in 0.10s ="
echo "make: *** [Makefile:1: test] Error 1"
exit 2
"""


def ci(clone: Path, *, starter: str | None) -> tuple[int, list[str]]:
    """Exit code and lines of a run in a clone without a Docker engine; `starter`: what is at ../shared/docker/up."""
    (clone / ".ci").mkdir(parents=True)
    shutil.copy(REPO / ".ci/run", clone / ".ci")
    programs = clone.parent / "programs"
    programs.mkdir()
    for path, text in ((programs / "make", MAKE), (clone.parent / "shared/docker/up", starter)):
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            path.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "JOBS", "PHAZE_TEST_DOCKER_UP")}
    env |= {"PATH": f"{programs}:{os.environ['PATH']}", "DOCKER_HOST": "unix:///nonexistent"}
    done = subprocess.run([clone / ".ci/run"], env=env, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("there", [True, False])
def test_it_starts_an_engine_where_it_can_and_ends_with_both_closing_lines(tmp_path: Path, there: bool) -> None:
    code, said = ci(tmp_path / "clone", starter="#!/bin/sh\necho engine >started\n" if there else None)
    assert code == 2
    assert said[-2:] == ["===== 1 failed, 2 passed in 0.50s =====", "= 3 skipped in 0.10s ="]
    assert f"--keep-going test JOBS=3, CI=true, started: {'engine' if there else ''}" in said
    assert any(line.startswith("no Docker engine answers (../shared/docker/up starts one") for line in said)
