"""Runs the ```console blocks of a page: each `$ command` in order, its output compared with what stands under it.

`...` stands for any text within a line, alone on its line for any lines. `again` behind `console`: the command is tried
until it says this. `<!-- meanwhile: words -->`: what the world does at this point; the test says how.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

BLOCK = re.compile(
    r"^```console(?P<again> again)?\n(?P<body>.*?)^```$|^<!-- meanwhile: (?P<event>.+?) -->$", re.MULTILINE | re.DOTALL
)
AGAIN = 90.0


def steps(text: str) -> Iterator[tuple[str, str, bool] | str]:
    """(command, expected output, whether it is tried again), or an event, in the order of the page."""
    for block in BLOCK.finditer(text):
        if block["event"]:
            yield block["event"]
            continue
        for part in re.split(r"^(?=\$ )", block["body"], flags=re.MULTILINE)[1:]:
            command, _, expected = part.removeprefix("$ ").partition("\n")
            yield command, expected, bool(block["again"])


def matches(expected: str, said: str) -> bool:
    """Whether it said all of that, and nothing else; blanks count once."""
    pattern = ""
    for line in expected.strip().splitlines():
        literal = re.escape(" ".join(line.split())).replace(re.escape("..."), ".*")
        pattern += r"(?:.*\n)*" if line.strip() == "..." else literal + r"\n"
    return (
        re.fullmatch(pattern, "".join(" ".join(line.split()) + "\n" for line in said.strip().splitlines())) is not None
    )


def run(page: Path, environment: Mapping[str, str], events: Mapping[str, Callable[[], None]] | None = None) -> None:
    """Run the page's commands; `events` happen meanwhile. AssertionError names the command that said something else."""
    found = list(steps(page.read_text("utf-8")))
    assert found, f"{page} has no commands"
    for step in found:
        if isinstance(step, str):
            (events or {})[step]()
            continue
        command, expected, again = step
        deadline = time.monotonic() + AGAIN
        while True:
            done = subprocess.run(
                ["/bin/bash", "-c", command],
                env=dict(environment),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            said = done.stdout + done.stderr
            if (done.returncode == 0 and matches(expected, said)) or not again or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert done.returncode == 0, f"$ {command}\n{said}"
        assert matches(expected, said), f"$ {command}\nsaid\n{said}\nand not\n{expected}"
