"""One SQLite file, opened so that what was acknowledged survives a power cut, and errors say what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, ProgrammingError

from agent.errors import UserError

BUSY_TIMEOUT = 5.0
"""Seconds to wait for another process's write, or for another thread's."""


class CatalogueError(UserError):
    """The catalogue cannot be opened as asked; the message says why and what to do."""


class CatalogueUnavailable(CatalogueError):
    """The catalogue cannot be read or written right now (disk full, locked, damaged). Nothing was written."""


class Database:
    """Connections to one file: any number of readers, one writer at a time.

    Every write is one transaction (BEGIN IMMEDIATE, synchronous=FULL): it is on the disk when `write` returns, or
    it never happened. Safe to use from several threads.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._writer = threading.Lock()
        mode = "rw" if read_only else "rwc"
        self._engine = sa.create_engine(
            sa.URL.create(
                "sqlite+pysqlite", database=f"{path.absolute().as_uri()}", query={"mode": mode, "uri": "true"}
            ),
            connect_args={"timeout": BUSY_TIMEOUT, "check_same_thread": False},
            pool_size=8,
            max_overflow=0,
            pool_timeout=BUSY_TIMEOUT,
        )
        event.listen(self._engine, "connect", self._prepare)
        event.listen(self._engine, "begin", _begin)

    def _prepare(self, connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy's `begin` event says which kind of transaction, not the driver
        # A reader never creates nor changes anything, yet it must be able to open a WAL that nobody else has open.
        pragmas = ["query_only=ON"] if self.read_only else ["journal_mode=WAL", "synchronous=FULL"]
        for pragma in (*pragmas, f"busy_timeout={int(BUSY_TIMEOUT * 1000)}", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A consistent view. Raises CatalogueUnavailable."""
        with self._explained(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction, durable on return. Raises CatalogueUnavailable, and then nothing was written."""
        if not self._writer.acquire(timeout=BUSY_TIMEOUT):
            raise CatalogueUnavailable(f"{self.path} is busy with another write; try again")
        try:
            with (
                self._explained(),
                self._engine.connect().execution_options(immediate=True) as connection,
                connection.begin(),
            ):
                yield connection
        finally:
            self._writer.release()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (IntegrityError, DataError, ProgrammingError):
            raise  # the request is at fault, not the file
        except (DatabaseError, sa.exc.TimeoutError) as error:
            reason = str(getattr(error, "orig", None) or error)
            raise CatalogueUnavailable(f"{self.path}: {reason}; {_remedy(reason)}") from error

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def _begin(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _remedy(reason: str) -> str:
    if "full" in reason:
        return "free space on that disk"
    if "locked" in reason or "QueuePool" in reason:
        return "another process holds it; try again"
    if "malformed" in reason or "not a database" in reason:
        return "restore the file from a backup, or move it away to start a new catalogue"
    return "look at the disk and at the folder's permissions"
