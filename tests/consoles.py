"""Runs the ```console blocks of a page: each `$ command` in order, its output compared with what stands under it.

`...` stands for any text within a line. `again` behind `console`: the command is tried until it says this.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

BLOCK = re.compile(r"^```console( again)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AGAIN = 90.0


def commands(text: str) -> Iterator[tuple[str, str, bool]]:
    """(command, expected output, whether it is tried again) in the order of the page."""
    for block in BLOCK.finditer(text):
        for part in re.split(r"^(?=\$ )", block[2], flags=re.MULTILINE)[1:]:
            command, _, expected = part.removeprefix("$ ").partition("\n")
            yield command, expected, bool(block[1])


def matches(expected: str, said: str) -> bool:
    """Whether it said all of that, and nothing else; blanks count once."""
    pattern = "\n".join(
        re.escape(" ".join(line.split())).replace(re.escape("..."), ".*") for line in expected.strip().splitlines()
    )
    return re.fullmatch(pattern, "\n".join(" ".join(line.split()) for line in said.strip().splitlines())) is not None


def run(page: Path, environment: Mapping[str, str], *, typed: int = 10_000) -> None:
    """Run the page's commands, `typed` of them at most. AssertionError names the command that said something else."""
    found = list(commands(page.read_text("utf-8")))
    assert found, f"{page} has no commands"
    for command, expected, again in found[:typed]:
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
