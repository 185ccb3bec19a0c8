"""A file's content: opened only if it is a plain file, hashed, copied with all that belongs to it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from pipelines.files.folders import Place, Refused

BLOCK = 1 << 20

Identity = Sequence[int]
"""Device, inode, size, modification time in nanoseconds: the same file with the same content, for all one can see."""


def identity(found: os.stat_result) -> list[int]:
    """Of what stat(2) said."""
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def open_file(place: Place) -> int:
    """A regular file for reading; never a link, and nothing else is opened, because that may hang or do something.

    Raises FileNotFoundError, Refused (`link`, `not-a-file`), OSError.
    """
    found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise Refused("link", "it is a link; links are not followed")
    if not stat.S_ISREG(found.st_mode):
        raise Refused("not-a-file", "a folder, pipe, socket or device")
    fd = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused("not-a-file", "a folder, pipe, socket or device")
    return fd


def sha256_of(fd: int) -> str:
    """Hex digest of an open file, from its start."""
    digest, place = hashlib.sha256(), 0
    while block := os.pread(fd, BLOCK, place):
        digest.update(block)
        place += len(block)
    return digest.hexdigest()


def is_still(place: Place, was: Identity | None, sha256: str) -> bool:
    """Whether the name holds the file that it held; by content where only the inode differs, as on file systems that
    number their files anew (FUSE, FAT)."""
    found = place.stat()
    if found is None or was is None or not stat.S_ISREG(found.st_mode):
        return False
    now = identity(found)
    if now == list(was):
        return True
    return now[2:] == list(was[2:]) and holds(place, sha256)


def holds(place: Place, sha256: str) -> bool:
    """Whether the name is a plain file with that content."""
    try:
        fd = open_file(place)
    except (OSError, Refused):
        return False
    try:
        return sha256_of(fd) == sha256
    finally:
        os.close(fd)


def copy(fd: int, target: Place, sha256: str) -> list[str]:
    """A new file `target` with the content and the attributes of `fd`, on the disk and read back.

    Returns what could not be kept. Raises Refused (`source-changed`: the content is not `sha256`) and OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    out = os.open(target.name, flags, 0o600, dir_fd=target.folder)
    try:
        digest, place = hashlib.sha256(), 0
        while block := os.pread(fd, BLOCK, place):
            digest.update(block)
            view = memoryview(block)
            while view:
                view = view[os.write(out, view) :]
            place += len(block)
        if digest.hexdigest() != sha256:
            raise Refused("source-changed", "its content is not what was approved")
        os.fsync(out)
        os.posix_fadvise(out, 0, 0, os.POSIX_FADV_DONTNEED)
        if sha256_of(out) != sha256:
            raise OSError(errno.EIO, "the copy does not read back as it was written")
        lost = keep_attributes(fd, out)
        if os.fstat(fd).st_nlink > 1:
            lost.append("the tie to its other names (hard links)")
        os.fsync(out)
        return lost
    finally:
        os.close(out)


def keep_attributes(fd: int, out: int, *, times: bool = True) -> list[str]:
    """Owner, mode, extended attributes (ACLs are such) and times, as far as may be; what could not be kept, in words.

    `times=False` for a file whose content is new.
    """
    found, lost = os.fstat(fd), []
    if (os.fstat(out).st_uid, os.fstat(out).st_gid) != (found.st_uid, found.st_gid):
        try:
            os.fchown(out, found.st_uid, found.st_gid)
        except OSError:
            lost.append("owner")
    try:
        os.fchmod(out, stat.S_IMODE(found.st_mode))
    except OSError:
        lost.append("mode")
    names: list[str] = []
    with suppress(OSError):
        names = os.listxattr(fd)
    for name in names:
        try:
            value = os.getxattr(fd, name)
            os.setxattr(out, name, value)
        except OSError:
            lost.append(f"attribute {name}")
    if times:
        os.utime(out, ns=(found.st_atime_ns, found.st_mtime_ns))
    return lost
