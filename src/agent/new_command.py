"""`phaze new pipeline NAME`: the skeleton of a package that adds a service of its own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template

import click

from agent.errors import WrongUse
from agent.lanes import AGENT_TASKS, LANES
from agent.plugins import NAME, RESERVED

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "phaze_{name}/__init__.py": "init.py.txt",
    "phaze_{name}/library.py": "library.py.txt",
    "phaze_{name}/processor.py": "processor.py.txt",
    "tests/test_{name}.py": "test.py.txt",
}
"""Path in the new folder -> its template in agent/skeleton."""


@click.group()
def new() -> None:
    """Write skeletons."""


@new.command()
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), help="The folder to make; phaze-NAME unless given.")
def pipeline(name: str, into: Path | None) -> None:
    """Write a package with the service NAME: library, wrapper, its line in the lane table, and a test that passes."""
    folder = into or Path(f"phaze-{name}")
    for path in write(name, folder):
        click.echo(path)
    click.echo(f"now: cd {folder} && pytest && pip install . && phaze doctor")


def write(name: str, folder: Path) -> list[Path]:
    """The files that were written. Raises WrongUse for a name that cannot be one, and where something is there."""
    if not NAME.fullmatch(name) or name in RESERVED:
        raise WrongUse(f"{name} cannot name a service; use 1 to 48 lower-case letters, digits and underscores")
    if name in AGENT_TASKS or name in LANES:
        raise WrongUse(f"{name} is a task or a lane already; choose another name")
    if folder.exists():
        raise WrongUse(f"{folder} is there already; choose another folder with --into, or remove it")
    written = []
    for path, template in FILES.items():
        target = folder / path.format(name=name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (files("agent") / "skeleton" / template).read_text("utf-8")
        target.write_text(Template(text).substitute(name=name), "utf-8")
        written.append(target)
    return written
