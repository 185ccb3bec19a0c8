"""`phaze new pipeline`: what it writes passes its own test, and fits the lane table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import phaze
from agent.errors import WrongUse
from agent.new_command import write


def test_the_skeletons_test_passes_at_once_and_its_wrapper_is_short(tmp_path: Path) -> None:
    said = CliRunner().invoke(phaze, ["new", "pipeline", "genetics", "--into", str(tmp_path / "new")])
    assert said.exit_code == 0, said.output
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "new",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    wrapper = (tmp_path / "new" / "phaze_genetics" / "processor.py").read_text("utf-8")
    assert len(wrapper.splitlines()) <= 50


@pytest.mark.parametrize(
    ("name", "why"),
    [("Genetics", "cannot name"), ("a-b", "cannot name"), ("cron", "cannot name"), ("io", "already")],
)
def test_a_name_that_cannot_be_a_service_is_refused(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=why):
        write(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="is there already"):
        write("genetics", tmp_path)
