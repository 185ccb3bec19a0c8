"""The marker of each item while a batch runs: one file a batch, one line a step, on the disk before the step is done.

It lies in the agent's data folder (`<PHAZE_DATA_DIR>/journal/<batch>-<hash>.jsonl`), not beside the music: a root may
be read-only for us but for one folder, and what is in it is the user's. After a kill the next run on this agent reads
what was begun and ends it. It is also a fence: it is locked while a step is done, and remembers the highest fencing
token, so that a run whose lease is lost can do nothing more, even where nobody could tell it.
Lost journals lose no file: what is not done is done, and what is at its destination already is found there.
A journal whose batch is over is kept for KEPT, and removed by a later batch. An undo does not want it: it is made of
the batch's report, which the catalogue keeps.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from pipelines.errors import LeaseLost
from pipelines.files.folders import sync_folder

LOCK_SECONDS = 10.0
"""How long a step waits for another run's step to end."""

KEPT = 90 * 86_400.0
"""Seconds for which the journal of a batch that is over is kept: a marker of its job lives 30 days at most, so that by
then nobody runs it again, and whoever wants to know what was done when has had a season for it."""

OVER = b'{"over": true}\n'
"""The last line of a journal whose batch is over."""

Record = dict[str, Any]


class JournalError(Exception):
    """The journal cannot be written or is in use; nothing is changed without it."""


def journal_path(batch: str, content: str) -> Path:
    """Where the journal of a batch with that content (its JSON) lies."""
    data = os.environ.get("PHAZE_DATA_DIR")
    folder = (Path(data).expanduser() if data else user_data_path("phaze")) / "journal"
    digest = hashlib.sha256(f"{batch}\0{content}".encode("utf-8", "surrogatepass")).hexdigest()
    return folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', batch)[:80]}-{digest[:16]}.jsonl"


@dataclass
class ItemLog:
    """The steps of one item, oldest first, and how another is added."""

    journal: int
    index: int
    records: list[Record]

    def append(self, step: str, **fields: Any) -> Record:
        """Durable on return. Raises JournalError."""
        record = {"item": self.index, "step": step, **fields}
        _append(self.journal, record)
        self.records.append(record)
        return record

    def last(self, step: str) -> Record | None:
        """The newest record of a step since the item was last begun anew."""
        for record in reversed(self.records):
            if record["step"] == step:
                return record
            if record["step"] in ("failed", "cross-device"):
                return None
        return None

    def ever(self, step: str) -> list[Record]:
        """All records of a step."""
        return [record for record in self.records if record["step"] == step]


@contextmanager
def item_log(path: Path, token: str, index: int) -> Iterator[ItemLog]:
    """The log of one item, for one step of it.

    Raises LeaseLost if a run with a higher token was here, and JournalError.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"{path} cannot be opened ({error.strerror}); see PHAZE_DATA_DIR") from error
    try:
        _lock(journal, path)
        records = _read(journal, path, index)
        _fence(journal, records, token)
        yield ItemLog(journal, index, [record for record in records if "item" in record])
    finally:
        os.close(journal)


def close_journal(path: Path, token: str) -> None:
    """The batch is over: its report is complete. Raises what `item_log` raises."""
    with item_log(path, token, -1) as log:
        size = os.fstat(log.journal).st_size
        if os.pread(log.journal, len(OVER), max(0, size - len(OVER))) != OVER:
            _append(log.journal, json.loads(OVER))


def prune_journals(folder: Path, now: float) -> None:
    """Remove those of batches that are over since KEPT; one that is not over stays. `now`: Unix seconds."""
    with suppress(OSError):  # of housekeeping no batch fails
        for path in folder.glob("*.jsonl"):
            if now - path.stat().st_mtime > KEPT:
                _prune(path)


def _prune(path: Path) -> None:
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not under a run that is at it
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(OVER)))
        if file.read() == OVER:
            path.unlink()


def _lock(journal: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise JournalError(f"{path} is locked: another run of the batch is in the middle of a step") from None
            time.sleep(0.05)


def _read(journal: int, path: Path, index: int) -> list[Record]:
    """The records of one item and those of none; the others are not looked into.

    A last line without its end was never acknowledged, and nothing was done on its word.
    """
    size = os.fstat(journal).st_size
    if size == 0:
        sync_folder_of(path)
        return []
    text = os.pread(journal, size, 0)
    whole = text.rfind(b"\n") + 1
    if whole < size:
        os.ftruncate(journal, whole)
    try:
        wanted = (b'{"token"', b'{"item": %d,' % index)
        return [json.loads(line) for line in text[:whole].splitlines() if line.startswith(wanted)]
    except ValueError:
        raise JournalError(f"{path} is damaged; look at its files by hand, then move the journal away") from None


def sync_folder_of(path: Path) -> None:
    """The file's name is on the disk."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_folder(folder)
    finally:
        os.close(folder)


def _fence(journal: int, records: list[Record], token: str) -> None:
    highest = max((int(record["token"]) for record in records if "token" in record), default=-1)
    if int(token) < highest:
        raise LeaseLost(f"a run with a higher token ({highest}) has taken this batch over; nothing more is changed")
    if int(token) > highest:
        _append(journal, {"token": token})


def _append(journal: int, record: Record) -> None:
    line = json.dumps(record).encode() + b"\n"
    try:
        if os.write(journal, line) != len(line):
            raise JournalError("the journal's disk is full; free space in PHAZE_DATA_DIR")
        os.fsync(journal)
    except OSError as error:
        raise JournalError(f"the journal cannot be written ({error.strerror}); see PHAZE_DATA_DIR") from error
