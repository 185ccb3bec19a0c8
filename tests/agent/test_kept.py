"""Secrets that a first start makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent import kept
from agent.embedded import Fleet
from agent.errors import ConfigError
from agent.settings import load_settings


def test_a_secret_is_made_once_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    made, new = kept.secret(file)
    assert new
    assert len(made) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert kept.secret(file) == (made, False)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_what_somebody_wrote_there_is_kept_and_a_blank_file_is_none(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("pässword\n", "utf-8")
    assert kept.secret(file) == ("pässword", False)
    file.write_bytes(b"\xef\xbb\xbfpassword\r\n")
    assert kept.secret(file) == ("password", False)
    file.write_text(" \n", "utf-8")
    assert kept.secret(file)[1]
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8 text; remove it"):
        kept.secret(file)
    assert file.read_bytes() == b"\xff"
    with pytest.raises(OSError, match="No such file"):
        kept.secret(tmp_path / "no" / "secret")


def test_in_a_container_phaze_up_gives_its_page_a_password_and_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    settings = load_settings(data_dir=tmp_path)
    assert Fleet(settings, said.append)._login() == {}
    monkeypatch.setenv("container", "docker")
    given = Fleet(settings, said.append)._login()
    assert Fleet(settings, said.append)._login() == given
    assert [given["PHAZE_HUB_PASSWORD"] in line for line in said] == [True]
    assert Fleet(load_settings(data_dir=tmp_path, hub_password="mine"), said.append)._login() == {}


NO_ROOM = """
import resource, sys
from agent.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
main()
"""
"""No file can grow: to who writes it is a full disk, with another number."""


@pytest.mark.parametrize("command", [["up"], ["hub", "--first-start"], ["hub"]])
def test_on_a_full_disk_a_start_is_one_line_that_names_the_folder(tmp_path: Path, command: list[str]) -> None:
    env = {**os.environ, "PHAZE_DATA_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {} if command == ["up"] else {"PHAZE_REDIS_URL": "redis://127.0.0.1:1", "PHAZE_HUB_PORT": "0"}
    said = subprocess.run(
        [sys.executable, "-c", NO_ROOM, *command], env=env, capture_output=True, timeout=60, check=False, text=True
    )
    assert said.returncode in (1, 2)
    [line] = said.stderr.splitlines()
    assert line.startswith("phaze: ")
    assert str(tmp_path) in line
