"""`phaze first-start`: secrets that a fresh installation lacks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path


def first_start(folder: Path, **env: str) -> str:
    files = {f"{name}_FILE": str(folder / name.lower()) for name in ("PHAZE_AGENT_TOKEN", "PHAZE_HUB_PASSWORD")}
    command = [sys.executable, "-m", "agent.cli", "first-start"]
    done = subprocess.run(
        command, env={**os.environ, **files, **env}, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_what_is_missing_is_made_once_and_the_password_is_told_once(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    said = first_start(folder)
    names = ("phaze_hub_password", "phaze_agent_token")
    password, token = ((folder / name).read_text("ascii").strip() for name in names)
    assert len({password, token}) == 2
    assert min(len(password), len(token)) >= 40
    assert password in said
    assert token not in said
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert first_start(folder) == ""
    assert (folder / "phaze_hub_password").read_text("ascii").strip() == password
    assert len(list(folder.iterdir())) == 2


def test_what_is_set_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    said = first_start(folder, PHAZE_HUB_PASSWORD="chosen", PHAZE_AGENT_TOKEN="given")
    assert said == ""
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_told_with_the_remedy() -> None:
    command = [sys.executable, "-m", "agent.cli", "first-start"]
    env = {**os.environ, "PHAZE_AGENT_TOKEN_FILE": "/proc/phaze/token"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "give this user a folder of its own" in done.stderr
