"""`phaze backup`: a copy of the catalogue, whole and as of one moment, while the hub writes on."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

import click

from agent.errors import UserError, WrongUse
from agent.hub.catalogue import FILE_NAME
from agent.settings import load_settings

BUSY = 30.0
"""Seconds to wait for another process that has the catalogue to itself."""


@click.command()
@click.argument("target", metavar="FILE")
@click.option("--force", is_flag=True, help="Replace a FILE that is there.")
def backup(target: str, force: bool) -> None:
    """Copy the catalogue of this data folder to FILE (-: to the output), also while a hub runs.

    The copy is checked before it takes its name. It holds no token and no password, only hashes of them.
    """
    source = load_settings().data_dir / FILE_NAME
    if target == "-":
        with tempfile.TemporaryDirectory(dir=source.parent if source.exists() else None) as folder:
            copy = Path(folder) / FILE_NAME
            copy_catalogue(source, copy)
            with copy.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
        return
    wanted = Path(target).absolute()
    if wanted.exists() and not force:
        raise WrongUse(f"{target} is there already; name another file, or replace it with --force")
    draft = wanted.with_name(f"{wanted.name}.{os.getpid()}")
    try:
        results = copy_catalogue(source, draft)
        draft.replace(wanted)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}); name a file in a folder of yours") from None
    finally:
        draft.unlink(missing_ok=True)
    click.echo(f"{target}: {wanted.stat().st_size:,} bytes, {results:,} results")


def copy_catalogue(source: Path, target: Path) -> int:
    """A compact copy (`VACUUM INTO`, one read transaction), checked, on the disk on return: how many results it holds.

    Raises UserError: no catalogue there, no room for the copy, a damaged catalogue. OSError: no such folder.
    """
    if not source.exists():
        raise UserError(f"there is no catalogue at {source}; PHAZE_DATA_DIR names the hub's data folder")
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # VACUUM INTO takes an empty file
    try:
        original = sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, timeout=BUSY)
        try:
            original.execute("VACUUM INTO ?", [str(target)])
        finally:
            original.close()
        copy = sqlite3.connect(target)
        try:
            if (said := copy.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
                raise UserError(f"{source} is damaged: {said}; restore it from an older backup")
            results = int(copy.execute("SELECT count(*) FROM results").fetchone()[0])
        finally:
            copy.close()
    except sqlite3.Error as error:
        raise UserError(f"{source} could not be copied: {error}; is there room, and may this user read it?") from None
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return results
