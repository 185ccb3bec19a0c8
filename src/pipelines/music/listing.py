"""What a scan does on the disk, in child processes: list files, and read those that are not known.

A file counts as unchanged while size, modification time and change time are what they were. The change time (`ctime`)
is the system's own: whoever sets a file's modification time back, as rsync and taggers do, changes it. The inode is
left out, because FUSE and exFAT give new ones at every mount.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, Field

from pipelines.music.ffmpeg import holds_something, stat_of
from pipelines.music.magic import AUDIO_SUFFIXES, HEAD_BYTES, looks_like_audio
from pipelines.music.mounts import mounted_below
from pipelines.music.walk import Cursor, Entry, reason_of, walk_after, walk_within
from pipelines.payload import encode_path

LIST_FILES = 5_000
LIST_SECONDS = 20.0
"""A listing ends at whichever comes first: a folder is listed anew for each, so they are large."""

READ_BYTES = 2 << 30
READ_SECONDS = 20.0
"""A read ends at whichever comes first (progress is seen on big files)."""

_KIND = re.compile(rb"\.[a-z0-9_+~-]{1,10}")

COARSE_NS = 2_000_000_000
"""The coarsest clock of a file system: FAT keeps times to 2 s. What changed no longer ago than this may change once
more without a new time, so it is read again by the next scan (git calls such files racily clean)."""


class Listed(BaseModel):
    """One audio file that is there: percent-encoded `path`, `size` in bytes, times in nanoseconds since 1970."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int

    def with_hash(self, sha256: str) -> ScannedFile:
        """The same, known as it is."""
        return ScannedFile(**self.model_dump(), sha256=sha256)


class ScannedFile(Listed):
    """One audio file with the `sha256` of its bytes. `ctime_ns` 0: it changed so lately that times prove nothing."""

    ctime_ns: int = 0
    sha256: str


class ScanError(BaseModel):
    """What could not be read: percent-encoded `path` and `reason` (`permission-denied`, `vanished`, ...)."""

    path: str
    reason: str


class Listing(BaseModel):
    """What one call found; `cursor` is None at the end of the walk.

    `identity`: device and inode of the root, the same before and after; None if it was taken away or holds nothing.
    """

    files: list[Listed] = Field(default_factory=list)
    errors: list[ScanError] = Field(default_factory=list)
    cursor: Cursor | None = None
    identity: tuple[int, int] | None = None
    mounts: list[str] = Field(default_factory=list, description="percent-encoded mount points below the root")
    unmounted: list[str] = Field(default_factory=list, description="such where nothing is mounted now")
    other: int = 0
    links: int = 0
    special: int = 0
    other_suffixes: Counter[str] = Field(default_factory=Counter)
    """Of the `other` files: `suffix_of` -> how many."""
    follow: bool = False
    """Whether the root is itself a link to a file."""

    @property
    def nothing(self) -> bool:
        """Whether there was nothing at all."""
        return not (self.files or self.errors or self.other or self.links or self.special)


class Read(BaseModel):
    """What one call has read: the first `taken` of those it was given, `bytes` in all."""

    files: list[ScannedFile] = Field(default_factory=list)
    errors: list[ScanError] = Field(default_factory=list)
    taken: int = 0
    bytes: int = 0


def list_files(
    root: Path,
    only: Sequence[Path] = (),
    cursor: Cursor = (),
    mounts: Sequence[Path] = (),
    max_files: int = LIST_FILES,
    max_seconds: float = LIST_SECONDS,
) -> Listing:
    """The audio files below `root` (or `only` at and below some places in it) after `cursor`, until a bound is met.

    `mounts`: where something was mounted before. A `root` that is a file is taken, whatever its name. Raises what
    `stat_of` raises, and OSError if the root cannot be read.
    """
    before = stat_of(root)
    found = Listing()
    if not stat.S_ISDIR(before.st_mode):
        if stat.S_ISREG(before.st_mode):
            found.files.append(_listed(os.fsencode(root), before))
            found.follow = root.is_symlink()
        else:
            found.special += 1
        found.identity = (before.st_dev, before.st_ino)
        return found
    expected = mounted_below(os.fsencode(root)) | {os.fsencode(mount) for mount in mounts}
    end = time.monotonic() + max_seconds
    for entry in _entries(root, only, cursor):
        _visit(found, entry)
        if len(found.files) + len(found.errors) >= max_files or time.monotonic() > end:
            found.cursor = entry.cursor
            break
    found.identity = _still_there(root, before)
    there = mounted_below(os.fsencode(root))
    found.mounts = [encode_path(mount) for mount in sorted(there)]
    # A mount point that was taken away as well is nobody's any more: what was in it is gone.
    found.unmounted = [encode_path(mount) for mount in sorted(expected - there) if os.path.isdir(mount)]  # noqa: PTH112
    return found


def _entries(root: Path, only: Sequence[Path], cursor: Cursor) -> Iterator[Entry]:
    top = os.fsencode(root)
    if not only:
        return walk_after(top, cursor)
    return walk_within(top, [tuple(map(os.fsencode, path.relative_to(root).parts)) for path in only], cursor)


def _still_there(root: Path, before: os.stat_result) -> tuple[int, int] | None:
    try:
        after = root.stat()
    except OSError:
        return None
    same = (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)
    return (after.st_dev, after.st_ino) if same and holds_something(root) else None


def _visit(found: Listing, entry: Entry) -> None:
    if entry.kind == "file":
        try:
            if is_audio(entry.path):
                found.files.append(_listed(entry.path, os.lstat(entry.path)))
            else:
                found.other += 1
                found.other_suffixes[suffix_of(entry.path)] += 1
        except OSError as error:
            found.errors.append(_failure(entry.path, reason_of(error)))
    elif entry.kind == "link":
        found.links += 1
    elif entry.kind == "special":
        found.special += 1
    else:
        found.errors.append(_failure(entry.path, entry.error))


def _listed(path: bytes, found: os.stat_result) -> Listed:
    return Listed(path=encode_path(path), size=found.st_size, mtime_ns=found.st_mtime_ns, ctime_ns=found.st_ctime_ns)


def may_be_audio(path: bytes) -> bool | None:
    """By suffix; None where the name has none. `._x.mp3` is a Mac's companion file, not a sound."""
    name = os.path.basename(path)  # noqa: PTH119 - bytes
    if name.startswith(b"._"):
        return False
    suffix = os.path.splitext(name)[1]  # noqa: PTH122 - bytes
    return suffix.lower().decode("latin-1") in AUDIO_SUFFIXES if suffix else None


def suffix_of(path: bytes) -> str:
    """For people: `.jpg`, `._*` for a Mac's companion file; empty where there is none, or none that says a kind."""
    name = os.path.basename(path)  # noqa: PTH119 - bytes
    if name.startswith(b"._"):
        return "._*"
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - bytes
    return suffix.decode("ascii") if _KIND.fullmatch(suffix) else ""


def is_audio(path: bytes) -> bool:
    """By suffix; by its first bytes where the name has none."""
    said = may_be_audio(path)
    if said is not None:
        return said
    with open_file(path) as file:
        return looks_like_audio(file.read(HEAD_BYTES))


def read_files(
    files: Sequence[Listed],
    follow: bool = False,
    max_bytes: int = READ_BYTES,
    max_seconds: float = READ_SECONDS,
) -> Read:
    """Hash the first of `files`, until a bound is met. `follow`: also through a link, as a root may be one."""
    read = Read()
    end = time.monotonic() + max_seconds
    for file in files:
        path = unquote_to_bytes(file.path)
        try:
            _hash(read, path, follow)
        except OSError as error:
            read.errors.append(_failure(path, reason_of(error)))
        read.taken += 1
        if read.bytes >= max_bytes or time.monotonic() > end:
            break
    return read


def _hash(read: Read, path: bytes, follow: bool) -> None:
    began = time.time_ns()
    with open_file(path, follow=follow) as file:
        before = os.fstat(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
    read.bytes += after.st_size
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        read.errors.append(_failure(path, "changing"))
        return
    file_read = _listed(path, after).with_hash(digest)
    if after.st_ctime_ns > began - COARSE_NS:
        file_read.ctime_ns = 0
    read.files.append(file_read)


def open_file(path: bytes, *, follow: bool = False) -> BufferedReader:
    """A regular file, for reading. Anything else that took its place since it was listed is an OSError: a link would
    lead elsewhere, and a pipe hang."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no longer a file")
    return os.fdopen(descriptor, "rb")


def _failure(path: bytes, reason: str) -> ScanError:
    return ScanError(path=encode_path(path), reason=reason)
