"""Give a file a name without ever taking the name from another, and the few calls that Python has not.

The choice, from first to last resort:

1. link(2), then unlink of the old name. There is no moment without a name, every POSIX file system has it, it fails
   where the destination exists, and what is linked is the open file whose content was verified (/proc/self/fd), not
   whatever its name leads to by now.
2. renameat2(2) with RENAME_NOREPLACE, where there are no hard links (exFAT in the kernel, some FUSE and SMB).
3. An empty file made with O_EXCL takes the name, then rename(2) over it: where there is neither (exFAT by FUSE). Who
   writes into the empty file in the microseconds between loses what was written.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

from pipelines.files.folders import Place, Refused

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
"""<linux/fs.h>."""

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.ENOENT})
"""What link(2) says where it cannot, whatever the names; ENOENT: there is no /proc."""

NO_FLAGS = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What renameat2(2) says where system or file system do not know the flag."""


class CrossDevice(Exception):
    """The two names cannot be names of one file: it has to be copied."""


def publish(fd: int, source: Place, target: Place, claim: Callable[[], object]) -> None:
    """The open file `fd`, known as `source`, is `target` from now on; it may or may not be `source` as well.

    `claim` is called before an empty file takes the name (3). Raises Refused (`destination-exists`, `source-changed`:
    another file had got the name), CrossDevice, OSError.
    """
    try:
        os.link(f"/proc/self/fd/{fd}", target.name, dst_dir_fd=target.folder, follow_symlinks=True)
    except FileExistsError:
        raise Refused("destination-exists", "it is never overwritten") from None
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise CrossDevice from None
        if error.errno not in NO_LINKS:
            raise
        _rename(fd, source, target, claim)


def _rename(fd: int, source: Place, target: Place, claim: Callable[[], object]) -> None:
    try:
        if not rename_with(RENAME_NOREPLACE, source, target):
            _rename_over_own(source, target, claim)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise CrossDevice from None
        raise
    moved = target.stat()
    if moved is not None and not os.path.samestat(moved, os.fstat(fd)) and not _unstable(fd, moved):
        if not rename_with(RENAME_NOREPLACE, target, source):
            move_name(target, source)
        raise Refused("source-changed", "another file had taken its name")


def _unstable(fd: int, found: os.stat_result) -> bool:
    """Whether it is the same file on a file system that numbers its files anew as it likes."""
    mine = os.fstat(fd)
    return (mine.st_dev, mine.st_size, mine.st_mtime_ns) == (found.st_dev, found.st_size, found.st_mtime_ns)


def _rename_over_own(source: Place, target: Place, claim: Callable[[], object]) -> None:
    claim()
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(target.name, flags, 0o600, dir_fd=target.folder))
    except FileExistsError:
        raise Refused("destination-exists", "it is never overwritten") from None
    try:
        move_name(source, target)
    except OSError:
        target.unlink()
        raise


def move_name(source: Place, target: Place) -> None:
    """rename(2): replaces what is there, so only for names of our own."""
    os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)


def rename_with(flag: int, source: Place, target: Place) -> bool:
    """renameat2(2); False where it is not to be had. Raises Refused (`destination-exists`) and OSError."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(source.folder, source.name, target.folder, target.name, flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in NO_FLAGS:
        return False
    if number == errno.EEXIST:
        raise Refused("destination-exists", "it is never overwritten")
    raise OSError(number, os.strerror(number))
