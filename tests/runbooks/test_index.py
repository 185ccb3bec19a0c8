"""Every runbook is listed, has its test, and names nothing that is not there. In which form each runs is told here."""

from __future__ import annotations

import re

import pytest

from agent.cli import COMMANDS
from agent.settings import ACCEPTED
from tests.conftest import REPO
from tests.runbooks.runner import Command, Unreadable, read
from tests.runbooks.system import BOOKS

ELSEWHERE_TEST = REPO / "tests/agent/operator/test_message_not_processing.py"
NAMES = sorted(path.stem for path in BOOKS.glob("*.md") if path.stem != "README")
TYPED = {
    form: set(re.findall(r'follow\(\s*"([a-z-]+)"', (REPO / "tests/runbooks" / module).read_text("utf-8")))
    for form, module in (("up", "test_books.py"), ("containers", "test_container_books.py"))
}
ELSEWHERE = {"message-not-processing"}
"""Typed by tests/agent/operator/test_message_not_processing.py, which brings the service that the book speaks of."""


def test_every_book_is_listed_and_typed_by_a_test() -> None:
    listed = re.findall(r"^\|.*\]\(([a-z-]+)\.md\) \|$", (BOOKS / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == NAMES
    assert TYPED["up"] | TYPED["containers"] == set(NAMES) - ELSEWHERE
    assert all(f"{name}.md" in ELSEWHERE_TEST.read_text("utf-8") for name in ELSEWHERE)


@pytest.mark.parametrize("name", NAMES)
def test_a_book_names_only_what_there_is(name: str) -> None:
    text = (BOOKS / f"{name}.md").read_text("utf-8")
    assert set(re.findall(r"\b(PHAZE_[A-Z0-9_]+[A-Z]|WORKER_MAX_JOBS)\b", text)) <= ACCEPTED | {
        "PHAZE_AGENT_TOKEN_FILE",
        "PHAZE_LANE_WORDS_CONCURRENCY",
        "PHAZE_LANE_GENETICS_CONCURRENCY",
    }
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (BOOKS / target).exists(), target
    assert set(re.findall(r"(?:^\$ |`)phaze ([a-z]+)\b", text, re.MULTILINE)) <= COMMANDS.keys() | {"up"}
    for form, typed in TYPED.items():
        steps = read(text, form) if name in typed else []
        assert all(step.text.strip() for step in steps if isinstance(step, Command))


@pytest.mark.parametrize("name", NAMES)
def test_no_block_of_a_book_goes_untyped(name: str) -> None:
    """What is for one form alone is in a book that is typed in that form."""
    text = (BOOKS / f"{name}.md").read_text("utf-8")
    for words in re.findall(r"^```(console.*)$", text, re.MULTILINE):
        for form in {"up", "containers"} & set(words.split()):
            if name not in TYPED[form]:
                raise Unreadable(f"{name} has a block for {form}, and no test types it there")
