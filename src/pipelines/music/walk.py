"""A folder's files in a fixed order, from any point on.

Entries come depth first, names compared as bytes; a place in that order is a `Cursor`, so a walk in a new process
goes on where another ended and reads only the folders that the cursor runs through.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Cursor = tuple[bytes, ...]
"""Names below the root of the last entry that was seen."""

Kind = Literal["file", "link", "special", "error"]


@dataclass(frozen=True)
class Entry:
    """`path` in bytes, absolute if the root is; `error` is why a folder or file could not be looked at."""

    cursor: Cursor
    path: bytes
    kind: Kind
    error: str = ""


def walk_after(root: bytes, cursor: Cursor = ()) -> Iterator[Entry]:
    """Everything below `root` that is no folder, after `cursor`.

    Links are told of and never followed: one that stays inside would report its target twice, one that leads out is
    not ours, and a loop cannot be. A folder that cannot be read is one `error`. Raises OSError if `root` itself
    cannot be read.
    """
    yield from _walk(root, (), cursor, _listing(root))


def _walk(
    folder: bytes, above: Cursor, cursor: Cursor, listing: list[tuple[bytes, os.DirEntry[bytes]]]
) -> Iterator[Entry]:
    resume, deeper = (cursor[0], cursor[1:]) if cursor else (b"", ())
    for name, entry in listing:
        if name < resume or (name == resume and cursor and not deeper):
            continue
        here, path = (*above, name), os.path.join(folder, name)  # noqa: PTH118 - bytes
        try:
            if entry.is_dir(follow_symlinks=False):
                below = _listing(path)
            else:
                yield Entry(here, path, _kind(entry))
                continue
        except OSError as error:
            yield Entry(here, path, "error", reason_of(error))
            continue
        yield from _walk(path, here, deeper if name == resume else (), below)


def _listing(folder: bytes) -> list[tuple[bytes, os.DirEntry[bytes]]]:
    with os.scandir(folder) as entries:
        return sorted(((entry.name, entry) for entry in entries), key=lambda pair: pair[0])


def _kind(entry: os.DirEntry[bytes]) -> Kind:
    if entry.is_symlink():
        return "link"
    return "file" if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode) else "special"


def reason_of(error: OSError) -> str:
    """`permission-denied`, `vanished`, or the system's own words."""
    if isinstance(error, PermissionError):
        return "permission-denied"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "vanished"
    return error.strerror or type(error).__name__
