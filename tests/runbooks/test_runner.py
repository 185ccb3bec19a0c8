"""The runner of the runbooks fails where a book is wrong: in what it says, in how a command ends, or in its form."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.runbooks import runner
from tests.runbooks.runner import Command, Failed, Meanwhile, Shell, Unreadable, follow, matches, read


def book(*lines: str, words: str = "console") -> str:
    return "\n".join(["# A book", f"```{words}", *lines, "```", "The end.", ""])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, os.environ, within=10)
    yield shell
    shell.close()


def run(text: str, shell: Shell) -> None:
    follow(read(text, "up"), shell)


def test_a_right_book_passes(shell: Shell) -> None:
    lines = ["$ echo one; echo two >&2", "one", "two", "$ N=3", "$ cd /"]
    run(book(*lines, "$ echo $N in; pwd", "3 in", "/"), shell)
    run(book("$ for n in 1 2; do", ">   echo $n", "> done", "1", "2"), shell)
    run(book("$ printf 'no newline at the end'", "no newline at the end", "$ true"), shell)


@pytest.mark.parametrize(
    "lines",
    [
        ("$ echo one", "two"),
        ("$ echo one",),
        ("$ true", "one"),
        ("$ echo one; echo two", "one"),
        ("$ echo one", "one", "two"),
        ("$ echo one two", "one"),
        ("$ echo one", "one ... two"),
        ("$ true", "$ echo one", "one", "$ echo two", "three"),
    ],
)
def test_a_wrong_expectation_fails(shell: Shell, lines: tuple[str, ...]) -> None:
    with pytest.raises(Failed, match=r"line \d+: .* but it said|line \d+: "):
        run(book(*lines), shell)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("echo one; false", "one"),
        ("echo one | grep two | cat", ""),
        ("no-such-program", "bash: ... command not found"),
        ("echo 'unclosed", "..."),
    ],
)
def test_a_failing_command_fails_whatever_it_says(shell: Shell, typed: str, said: str) -> None:
    with pytest.raises(Failed, match=r"ended with [1-9]"):
        follow([Command(1, typed, said)], shell)


def test_a_command_that_hangs_is_bounded_and_leaves_nothing_running(tmp_path: Path) -> None:
    shell, started = Shell(tmp_path, os.environ, within=0.5), time.monotonic()
    with pytest.raises(Failed, match=r"took more than 0\.5 s; it said:\nbegun"):
        run(book("$ sleep 3217 & echo begun; sleep 3217", "begun"), shell)
    assert time.monotonic() - started < 10
    while any("3217" in (one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])):
        assert time.monotonic() - started < 20
        time.sleep(0.05)


def test_a_command_that_waits_for_input_gets_none(shell: Shell) -> None:
    run(book("$ cat; echo over", "over"), shell)


def test_a_command_that_ends_the_shell_fails(shell: Shell) -> None:
    with pytest.raises(Failed, match=r"ended the shell"):
        run(book("$ exit 0"), shell)


def test_what_is_typed_again_is_typed_until_it_says_so_or_the_time_is_over(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = "$ echo x >>tries; wc -l <tries"
    run(book(count, "3", words="console again"), shell)
    monkeypatch.setattr(runner, "AGAIN", 0.5)
    with pytest.raises(Failed, match=r"expected\n2\n"):
        run(book(count, "2", words="console again"), shell)
    with pytest.raises(Failed):
        run(book("$ echo 3; false", "3", words="console again"), shell)


def test_dots_stand_for_text_in_a_line_and_for_lines_and_blanks_count_once() -> None:
    assert matches("job ... of ...", "job 17 of 20")
    assert matches("first\n...\nlast", "first\nlast")
    assert matches("first\n...\nlast", "first\n2\n3\nlast")
    assert matches("a b", "  a     b  \n\n")
    assert not matches("job ... of", "job 17 of 20")
    assert not matches("job ... 20", "job 17\nof 20")
    assert not matches("a.b", "axb")
    assert not matches("", "anything")


def test_blocks_are_for_all_forms_or_for_one() -> None:
    text = book("$ a") + book("$ b", words="console up") + book("$ c", "d", words="console containers again")
    assert read(text, "up") == [Command(3, "a", ""), Command(8, "b", "")]
    assert read(text, "containers") == [Command(3, "a", ""), Command(13, "c", "d", again=True)]


def test_what_the_world_does_meanwhile_is_done_in_its_place_and_none_is_forgotten(shell: Shell, tmp_path: Path) -> None:
    text = book("$ test ! -e disk") + "<!-- meanwhile: the disk comes back -->\n" + book("$ test -e disk")
    assert Meanwhile(6, "the disk comes back") in read(text, "up")
    follow(read(text, "up"), shell, {"the disk comes back": (tmp_path / "disk").touch})
    for world in ({}, {"the disk comes back": print, "the moon falls down": print}):
        with pytest.raises(Unreadable, match="its test of"):
            follow(read(text, "up"), shell, world)


@pytest.mark.parametrize(
    "text",
    [
        book("$ true", words="sh"),
        book("$ true", words=""),
        book("$ true", words="console once"),
        book("true"),
        book("$ true", "..."),
        book("$ true", words="console again"),
        book("$ true", words="console containers"),
        "```console\n$ true\n",
        "No command.\n",
    ],
)
def test_a_book_that_the_runner_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text, "up")
