"""The README promises nothing that is not there: its tests, commands, variables and files exist."""

from __future__ import annotations

import re
import shlex

import pytest
from click import Group
from click.testing import CliRunner

from agent.cli import phaze
from agent.settings import ACCEPTED
from tests.conftest import REPO

README = (REPO / "README.md").read_text("utf-8")
COMMANDS = sorted(
    {
        command.strip()
        for line in README.splitlines()
        if line.startswith("    phaze ")
        for command in line.partition("#")[0].split(";")
    }
)


def test_every_promise_names_a_test_that_exists() -> None:
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", README))
    assert len(named) > 10
    written = "".join(path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*.py"))
    missing = {name for name in named if f"def {name}(" not in written}
    assert not missing
    for folder in re.findall(r"`(tests/[a-z]+)`", README):
        assert (REPO / folder).is_dir()


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_parses(line: str) -> None:
    """Its options and sub-commands exist: `--help` is put behind them, so that nothing runs."""
    words = shlex.split(line)[1:]
    command = phaze
    while words and isinstance(command, Group):
        found = command.get_command(None, words[0])  # type: ignore[arg-type]  # ours needs no context
        assert found is not None, line
        command, words = found, words[1:]
    for word in words:
        if word.startswith("--"):
            assert any(word in parameter.opts for parameter in command.params), (line, word)
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0


def test_every_variable_exists() -> None:
    assert set(re.findall(r"\b(PHAZE_[A-Z_]+[A-Z]|WORKER_MAX_JOBS)\b", README)) <= ACCEPTED


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (REPO / target).exists(), target


def test_the_two_commands_are_the_makefiles() -> None:
    makefile = (REPO / "Makefile").read_text("utf-8")
    for target in ("up", "test"):
        assert f"    make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
