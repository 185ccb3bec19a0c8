"""A folder's files in a fixed order, from any point on.

Entries come depth first, names compared as bytes; a place in that order is a `Cursor`, so a walk in a new process
goes on where another ended and reads only the folders that the cursor runs through.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
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


def walk_within(root: bytes, wanted: Collection[Cursor], cursor: Cursor = ()) -> Iterator[Entry]:
    """Only what is at or below some places (`wanted`: names below `root`), in the same order, after `cursor`.

    A place that is not there yields nothing. A link on the way to one is told of and ends the way: what lies behind
    it is not below `root`.
    """
    for place in outermost(wanted):
        inside = cursor[: len(place)] == place
        if place <= cursor and (not inside or place == cursor != ()):
            continue
        try:
            found = _step_down(root, place)
            if found is None:
                continue
            path = os.path.join(root, *place)  # noqa: PTH118 - bytes
            below = _listing(path) if stat.S_ISDIR(found.st_mode) else None
        except OSError as error:
            yield Entry(place, os.path.join(root, *place), "error", reason_of(error))  # noqa: PTH118 - bytes
            continue
        if below is None:
            yield Entry(place, path, _kind_of(found.st_mode))
        else:
            yield from _walk(path, place, cursor[len(place) :] if inside else (), below)


def outermost(places: Collection[Cursor]) -> list[Cursor]:
    """Sorted, without those that lie below another one."""
    kept: list[Cursor] = []
    for place in sorted(set(places)):
        if not kept or place[: len(kept[-1])] != kept[-1]:
            kept.append(place)
    return kept


def _step_down(root: bytes, place: Cursor) -> os.stat_result | None:
    """What is at a place, or the link on the way to it; None if nothing is there."""
    path, found = root, None
    for name in place or (b"",):
        path = os.path.join(path, name)  # noqa: PTH118 - bytes
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(found.st_mode):
            break
    return found


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
    return "link" if entry.is_symlink() else _kind_of(entry.stat(follow_symlinks=False).st_mode)


def _kind_of(mode: int) -> Kind:
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "special"


def reason_of(error: OSError) -> str:
    """`permission-denied`, `vanished`, or the system's own words."""
    if isinstance(error, PermissionError):
        return "permission-denied"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "vanished"
    return error.strerror or type(error).__name__
