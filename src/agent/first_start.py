"""`phaze first-start`: what a fresh installation has no secrets for, it makes itself, once.

Each of SECRETS that is not set, and whose `_FILE` variable names a file that is not there yet, gets one.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from agent.errors import StartError

SECRETS = {"PHAZE_AGENT_TOKEN": False, "PHAZE_HUB_PASSWORD": True}
"""Variable -> whether a person needs to know it: it is printed then, this once."""


@click.command("first-start")
def first_start() -> None:
    """Make the agent's token and the hub's password where their _FILE variables name files that are not there.

    A password that it makes it prints, once; what is there stays as it is.
    """
    for name, tell in SECRETS.items():
        place = os.environ.get(f"{name}_FILE")
        if place and not os.environ.get(name) and (made := _make(Path(place))) is not None and tell:
            click.echo(f"{name} was not set. This one was made and is kept in {place}: {made}")


def _make(file: Path) -> str | None:
    """Write a new secret, readable by this user alone, whole or not at all; None where there is one already."""
    if file.exists():
        return None
    secret = secrets.token_urlsafe(32)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as page:
            page.write(f"{secret}\n")
            page.flush()
            os.fsync(page.fileno())
        try:
            os.link(draft, file)  # never over one that another first start has just made
        except FileExistsError:
            return None
        finally:
            draft.unlink()
    except OSError as error:
        raise StartError(f"{file} cannot be written ({error.strerror}); give this user a folder of its own") from None
    return secret
