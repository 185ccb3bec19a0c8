"""Runs a runbook: every command of it in order, in one real shell, each compared with what is written under it.

A fenced block is ```` ```console ````, and words behind it:

    $ a command                    what is typed; all of a book runs in one bash, so that variables and functions stay
    > its next line                a command of several lines, as bash shows it
    what it says                   output and errors, as a terminal shows them

- It must end with exit code 0 and within `Shell.within` seconds, and say all of what is written and nothing else.
- `...` stands for any text within a line; alone on its line for any lines, also none. Blanks count once: columns may be
  wider than written. An expectation of `...` alone expects nothing and is refused.
- `again`: the operator types it until it says this; `AGAIN` seconds at most.
- `up` or `containers`: only where the agent runs that way; other blocks are for both.
- `<!-- meanwhile: words -->` is what the world does at this point (a disk comes back): the test says how.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

AGAIN = 90.0
PAUSE = 0.3
"""Seconds before a command is typed again."""

FORMS = frozenset({"up", "containers"})
WORDS = FORMS | {"again"}

_BLOCK = re.compile(r"^```(?P<words>.*)\n(?P<body>(?:.*\n)*?)```$|^<!-- meanwhile: (?P<event>.+) -->$", re.MULTILINE)


class Unreadable(Exception):
    """The book is not written as the runner reads it."""


class Failed(AssertionError):
    """A command did not do what the book says."""


@dataclass(frozen=True)
class Command:
    """One thing to type."""

    line: int
    text: str
    expected: str
    again: bool = False


@dataclass(frozen=True)
class Meanwhile:
    """Something that happens without the operator."""

    line: int
    event: str


Step = Command | Meanwhile


def read(text: str, form: str) -> list[Step]:
    """The steps of a book for an agent of this form. Raises Unreadable."""
    if text.count("\n```") % 2:
        raise Unreadable("a fence is not closed")
    steps: list[Step] = []
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if (event := found["event"]) is not None:
            steps.append(Meanwhile(line, event))
            continue
        kind, *words = found["words"].split() or [""]
        if kind != "console" or not set(words) <= WORDS:
            raise Unreadable(f"line {line}: a block is ```console, then {', '.join(sorted(WORDS))} or nothing")
        commands = list(_commands(found["body"], line + 1, again="again" in words))
        if not FORMS & set(words) or form in words:
            steps += commands
    if not any(isinstance(step, Command) for step in steps):
        raise Unreadable("nothing is typed")
    return steps


def _commands(body: str, line: int, *, again: bool) -> Iterator[Command]:
    if not body.startswith("$ "):
        raise Unreadable(f"line {line}: a block begins with `$ ` and a command")
    for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        typed = next((n for n, text in enumerate(lines) if n and not text.startswith("> ") and text != ">"), len(lines))
        expected = "\n".join(lines[typed:])
        if expected and not expected.replace("...", "").strip():
            raise Unreadable(f"line {line}: `...` alone expects nothing; write what matters, or send it to a file")
        if again and not expected:
            raise Unreadable(f"line {line}: what is typed again is typed until it says something")
        yield Command(line, "\n".join(text[2:] for text in lines[:typed]), expected, again)
        line += len(lines)


def matches(expected: str, said: str) -> bool:
    """Whether a command said what the book says."""
    pattern = ""
    for line in expected.splitlines():
        words = " ".join(line.split())
        literal = re.escape(words).replace(re.escape("..."), ".*")
        pattern += r"(?:.*\n)*" if words == "..." else literal + r"\n"
    text = "".join(" ".join(line.split()) + "\n" for line in said.rstrip().splitlines())
    return re.fullmatch(pattern, text) is not None


class Shell:
    """One bash for a whole book. `within`: seconds that a command may take; one that takes longer ends the shell."""

    def __init__(self, folder: Path, env: Mapping[str, str], *, within: float = 60.0) -> None:
        self.within = within
        self._mark = secrets.token_hex(8)
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-o", "pipefail"],
            cwd=folder, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def run(self, command: str) -> tuple[str, int]:
        """What it said, and its exit code. Raises Failed if it does not end in time, or ends the shell."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(
            f"eval {shlex.quote(command)} </dev/null\nprintf '\\n%s %s\\n' {self._mark} $?\n".encode()
        )
        self._bash.stdin.flush()
        said, deadline = b"", time.monotonic() + self.within
        end = re.compile(rf"\n{self._mark} (\d+)\n\Z".encode())
        while (found := end.search(said)) is None:
            more = self._read(deadline)
            said += more or b""
            if not more:
                why = f"ended the shell ({self._bash.wait()})" if more == b"" else f"took more than {self.within:g} s"
                self.close()
                raise Failed(f"`{command}` {why}; it said:\n{said.decode('utf-8', 'replace')}")
        return said[: found.start()].decode("utf-8", "replace"), int(found[1])

    def _read(self, deadline: float) -> bytes | None:
        """Some output; empty at its end, None when the time is over."""
        assert self._bash.stdout is not None
        ready, _, _ = select.select([self._bash.stdout], [], [], max(0.0, deadline - time.monotonic()))
        return os.read(self._bash.stdout.fileno(), 65536) if ready else None

    def close(self) -> None:
        """End it, and all that was started in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        for pipe in (self._bash.stdin, self._bash.stdout):
            if pipe is not None:
                pipe.close()


def follow(steps: list[Step], shell: Shell, world: Mapping[str, Callable[[], None]] | None = None) -> None:
    """Do what a book says, in order. `world`: what happens meanwhile. Raises Failed, Unreadable."""
    known = dict(world or {})
    if known.keys() != (told := {step.event for step in steps if isinstance(step, Meanwhile)}):
        raise Unreadable(f"the book tells of {sorted(told)}, its test of {sorted(known)}")
    for step in steps:
        if isinstance(step, Meanwhile):
            known[step.event]()
        else:
            _type(step, shell)


def _type(command: Command, shell: Shell) -> None:
    deadline = time.monotonic() + AGAIN
    while True:
        said, code = shell.run(command.text)
        if code == 0 and matches(command.expected, said):
            return
        if not command.again or time.monotonic() > deadline:
            told = f"ended with {code}; expected\n{command.expected}\nbut it said\n{said}"
            raise Failed(f"line {command.line}: `{command.text}` {told}")
        time.sleep(PAUSE)
