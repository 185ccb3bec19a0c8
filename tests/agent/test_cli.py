"""The commands answer at once, and say what they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from redis import Redis

from agent.cli import COMMANDS, phaze
from agent.errors import ConfigError
from agent.hub.catalogue import Catalogue
from agent.phoenix.keys import dead_letters_key


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-m", "agent.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    started = time.monotonic()
    said = run("--help")
    assert time.monotonic() - started < 3.0
    assert said.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in said.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in said.stderr.splitlines() if "|" in line}
    assert "click" in imported
    assert not imported & {"saq", "redis", "pydantic", "sqlalchemy", "rich", "httpx", "starlette", "asyncio", "numpy"}
    assert not imported & {"agent.lanes", "agent.plugins", "importlib.metadata"}, "it reads no package's entry points"


def test_a_queue_and_its_worker_bring_no_http_client_along() -> None:
    code = "import sys, agent.phoenix.worker; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0, "it costs 7 MB"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    said = run(name, "--help")
    assert said.returncode == 0
    assert f"Usage: phaze {name}" in said.stdout or f"Usage: python -m agent.cli {name}" in said.stdout


@pytest.mark.parametrize("arguments", [
    ("tracks", "--limit", "9223372036854775808"), ("tracks", "--limit", "0"),
    ("transfers", "--limit", "9223372036854775808"),
    ("drain", "wait", "--timeout", "nan"), ("drain", "wait", "--timeout", "-1"),
])  # fmt: skip
def test_a_number_that_no_command_can_use_is_wrong_use(arguments: tuple[str, ...]) -> None:
    Catalogue(Path(os.environ["PHAZE_DATA_DIR"])).close()
    said = CliRunner().invoke(phaze, arguments)
    assert said.exit_code == 2
    assert f"Error: Invalid value for {arguments[-2]!r}:" in said.output


def test_every_number_that_is_asked_for_has_bounds() -> None:
    def options(command: click.Command) -> Iterator[click.Parameter]:
        yield from command.params
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from options(found)

    numbers = [option for option in options(phaze) if option.type.name.startswith("integer")]
    assert len(numbers) >= 2
    for option in numbers:
        assert isinstance(option.type, click.IntRange), option.name
        assert option.type.min is not None, option.name
        assert (option.type.max or 2**63) < 2**63, f"{option.name}: SQLite takes no larger one"


def test_an_unknown_command_is_wrong_use() -> None:
    said = run("analyse")
    assert said.returncode == 2
    assert "No such command 'analyse'" in said.stderr


def test_bad_configuration_is_one_line_and_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_MAX_JOBS", "none")
    command = [sys.executable, "-m", "agent.cli", "worker"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == ConfigError.exit_code == 2
    assert said.stderr.startswith("phaze: WORKER_MAX_JOBS=none should be a valid integer")
    assert len(said.stderr.splitlines()) == 1


def test_settings_shows_values_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_AGENT_TOKEN", "s3cret")
    monkeypatch.setenv("PHAZE_REDIS_URL", "redis://user:passw0rd@host:6379/0")
    monkeypatch.setenv("PHAZE_LANE_IO_CONCURENCY", "3")
    command = [sys.executable, "-m", "agent.cli", "settings"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "PHAZE_AGENT_TOKEN=[redacted]  (set)" in said.stdout
    assert "PHAZE_LANE_ANALYZE_CONCURRENCY=4\n" in said.stdout
    assert "did you mean PHAZE_LANE_IO_CONCURRENCY?" in said.stderr
    assert "s3cret" not in said.stdout + said.stderr
    assert "passw0rd" not in said.stdout + said.stderr


def test_a_name_that_is_no_text_hides_no_other_line_where_the_terminal_takes_only_text(valkey_url: str) -> None:
    """A missing file whose name is not UTF-8 has a lone surrogate in its dead letter's error."""
    with Redis.from_url(valkey_url) as server:
        for number, said in enumerate(["caf\udce9.mp3 is gone", "other.mp3 is gone"]):
            letter = {"id": f"saq:job:q:scan_directory:{number}", "error": said, "attempts": 1, "last": 0.0}
            server.rpush(dead_letters_key("scan_directory"), json.dumps(letter))
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", "PHAZE_REDIS_URL": valkey_url}
    command = [sys.executable, "-m", "agent.cli", "dlq", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert listed.returncode == 0, listed.stderr
    assert "caf\\udce9.mp3 is gone" in listed.stdout
    assert "other.mp3 is gone" in listed.stdout


@pytest.mark.parametrize("command", [["settings"], ["doctor", "--json"], ["--help"]])
def test_an_output_on_a_full_disk_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "agent.cli", *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.stderr == "phaze: the output could not be written (No space left on device); is its disk full?\n"
    assert done.returncode == 1


@pytest.mark.parametrize("command", [["worker"], ["watch", "/"]])
@pytest.mark.parametrize("place", ["no/folder/healthy", "."])
def test_a_health_file_that_cannot_be_touched_stops_the_start(
    command: list[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as ill for ever, and its check would blame the queue server."""
    monkeypatch.setenv("PHAZE_HEALTH_FILE", str(tmp_path / place))
    monkeypatch.setenv("PHAZE_REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("PHAZE_AGENT_TOKEN", "t")
    said = run(*command)
    assert said.returncode == ConfigError.exit_code
    assert f"phaze: PHAZE_HEALTH_FILE={tmp_path / place} cannot be written; name a file in a folder" in said.stderr


@pytest.mark.parametrize("place", ["no/ffmpeg", "."])
def test_an_ffmpeg_that_is_no_program_stops_a_workers_start(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every file would fail, and be tried again for ever."""
    monkeypatch.setenv("PHAZE_FFMPEG", str(tmp_path / place))
    monkeypatch.setenv("PHAZE_REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("PHAZE_AGENT_TOKEN", "t")
    said = run("worker")
    assert said.returncode == ConfigError.exit_code
    assert f"phaze: PHAZE_FFMPEG={tmp_path / place} is not a program; unset it" in said.stderr
