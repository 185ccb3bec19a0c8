"""What is at a path now, as far as a scan would take it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator

from pipelines.music.listing import may_be_audio
from pipelines.music.walk import walk_after

Stamp = tuple[int, int, int, int] | None
"""Size in bytes, modification and change time in nanoseconds, inode; None: nothing that a scan would take."""

UNREADABLE: Stamp = (0, 0, 0, 0)
"""Something may be there: the scan will say why it cannot be read."""


def stamp_of(path: bytes) -> Stamp:
    """What is at one path."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return UNREADABLE
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def look(root: bytes, paths: Collection[bytes]) -> Iterator[tuple[bytes, Stamp]]:
    """The files that changes at `paths` are about: those below a folder that has come, and what is no longer there.

    Left out: what is not below `root` or only through a link, and files whose names say that they are no sound.
    """
    linked: dict[bytes, bool] = {root: False}
    below = root.rstrip(b"/") + b"/"
    for path in paths:
        folder, name = os.path.split(path)
        if not path.startswith(below) or _is_linked(folder, linked):
            continue
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            mode = 0
        if stat.S_ISDIR(mode):
            yield from _files_below(path)
        elif not (stat.S_ISREG(mode) and may_be_audio(name) is False):
            yield path, stamp_of(path)


def _is_linked(folder: bytes, known: dict[bytes, bool]) -> bool:
    """Whether a link is on the way from the root to a folder."""
    if folder not in known:
        known[folder] = _is_linked(os.path.dirname(folder), known) or os.path.islink(folder)  # noqa: PTH114, PTH120
    return known[folder]


def _files_below(folder: bytes) -> Iterator[tuple[bytes, Stamp]]:
    try:
        for entry in walk_after(folder):
            if entry.kind == "error":
                yield entry.path, UNREADABLE
            elif entry.kind == "file" and may_be_audio(entry.path) is not False:
                yield entry.path, stamp_of(entry.path)
    except OSError:
        yield folder, UNREADABLE
