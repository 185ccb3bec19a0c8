"""`phaze backup`: a copy of the catalogue, as of one moment, while the hub writes on. `phaze restore` puts it back."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import click

from agent.errors import UserError, WrongUse
from agent.hub.catalogue import FILE_NAME, PRINTS_FOLDER
from agent.hub.schema import SCHEMA_VERSION
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
        with _scratch(source) as folder:
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


def _scratch(source: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder beside the catalogue, where its disk has room for a copy. Raises UserError."""
    try:
        return tempfile.TemporaryDirectory(dir=source.parent if source.exists() else None)
    except OSError as error:
        raise UserError(f"{source.parent} cannot be written ({error.strerror}); the copy is made there first") from None


@click.command()
@click.argument("source", metavar="FILE")
def restore(source: str) -> None:
    """Make FILE (-: the input), a copy by `phaze backup`, the catalogue of this data folder; no hub may run on it.

    It is checked first. What was there is kept beside it, as catalogue.sqlite.before (then .before.2 and on: one that
    was kept earlier is never replaced).
    """
    folder = load_settings().data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            draft = Path(scratch) / FILE_NAME
            with sys.stdin.buffer if source == "-" else open(source, "rb") as copy, draft.open("xb") as file:  # noqa: PTH123
                shutil.copyfileobj(copy, file)
                os.fsync(file.fileno())
            draft.chmod(0o600)
            results = _usable(draft, source)
            kept = _put_aside(folder / FILE_NAME)
            draft.replace(folder / FILE_NAME)
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be used ({error.strerror})") from None
    before = f"; what was there is kept as {kept}" if kept else ""
    click.echo(f"{folder / FILE_NAME}: {results:,} results{before}")


def _usable(copy: Path, name: str) -> int:
    """How many results a copy holds. Raises WrongUse for what is no catalogue, or one that is damaged or too new."""
    try:
        with closing(sqlite3.connect(copy)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            said = connection.execute("PRAGMA integrity_check").fetchone()[0]
            (results,) = connection.execute("SELECT count(*) FROM results").fetchone()
    except sqlite3.Error as error:
        raise WrongUse(f"{name} is no catalogue ({error}); give a file that `phaze backup` made") from None
    if said != "ok":
        raise WrongUse(f"{name} is damaged ({said}); give another backup")
    if version > SCHEMA_VERSION:
        raise WrongUse(f"{name} is of a newer phaze (schema {version}; this one knows {SCHEMA_VERSION}); upgrade first")
    return int(results)


def _put_aside(catalogue: Path) -> Path | None:
    """Rename a catalogue that nobody uses, its log written back into it: its new name, None where there is none.

    Raises UserError where somebody uses it.
    """
    kept: Path | None = None
    if catalogue.exists():
        try:
            with closing(sqlite3.connect(catalogue, timeout=1.0)) as connection:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # in WAL mode: no other connection at all
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UserError(f"a hub runs on {catalogue}; stop it first, and start it afterwards") from None
        except sqlite3.Error:
            """Damaged: what it is replaced for."""
        kept = _free_name(catalogue.with_name(f"{FILE_NAME}.before"))
        catalogue.rename(kept)
    for rest in ("-wal", "-shm"):
        catalogue.with_name(f"{FILE_NAME}{rest}").unlink(missing_ok=True)
    shutil.rmtree(catalogue.with_name(PRINTS_FOLDER), ignore_errors=True)  # made anew from the catalogue
    return kept


def _free_name(wanted: Path) -> Path:
    """`wanted`, or with the first number behind it of which there is none."""
    names = (wanted.with_name(f"{wanted.name}.{n}") for n in itertools.count(2))
    return next(path for path in itertools.chain([wanted], names) if not os.path.lexists(path))


def copy_catalogue(source: Path, target: Path) -> int:
    """A compact copy (`VACUUM INTO`, one read transaction), checked, on the disk on return: how many results it holds.

    Raises UserError: no catalogue there, no room for the copy, a damaged catalogue. OSError: no such folder.
    """
    if not source.exists():
        raise UserError(f"there is no catalogue at {source}; PHAZE_DATA_DIR names the hub's data folder")
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # VACUUM INTO takes an empty file
    try:
        with closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, timeout=BUSY)) as original:
            original.execute("VACUUM INTO ?", [str(target)])
        with closing(sqlite3.connect(target)) as copy:
            if (said := copy.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
                raise UserError(f"{source} is damaged: {said}; restore it from an older backup")
            results = int(copy.execute("SELECT count(*) FROM results").fetchone()[0])
    except sqlite3.Error as error:
        raise UserError(f"{source} could not be copied: {error}; is there room, and may this user read it?") from None
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return results
