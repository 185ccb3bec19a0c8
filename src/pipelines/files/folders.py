"""Names below allowed roots, reached by open folders: no `..`, no link, and no race leads out.

Each folder on the way is opened by its name in the folder before (openat(2), O_NOFOLLOW). What is done afterwards is
done in the open folder, so it does not matter what somebody puts in its place meanwhile. Names are compared as bytes:
what differs in case or normalisation from a root is not below it. The root itself is the operator's word and may be,
or lie behind, a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from pipelines.errors import InputRejected
from pipelines.payload import encode_path

MOVE_ROOTS = "PHAZE_MOVE_ROOTS"
"""Environment variable: folders, parted by colons, outside of which this agent changes nothing, whatever a job says."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """One proposal is not done; `reason` is one of a few words that tables group by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


REASONS = {
    errno.EACCES: "permission-denied",
    errno.EPERM: "permission-denied",
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EFBIG: "file-too-large",
    errno.EROFS: "read-only",
    errno.ENAMETOOLONG: "name-too-long",
    errno.ENOENT: "vanished",
    errno.EEXIST: "destination-exists",
    errno.EIO: "disk-error",
}


def refusal(error: OSError) -> Refused:
    """The same in our words."""
    said = error.strerror or type(error).__name__
    return Refused(REASONS.get(error.errno or 0, "failed"), said)


@dataclass(frozen=True)
class Place:
    """A name in an open folder; whether there is anything is another question."""

    folder: int
    name: bytes

    def stat(self) -> os.stat_result | None:
        """Of the name itself, a link not followed; None if there is nothing."""
        with suppress(FileNotFoundError):
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        return None

    def is_listed(self) -> bool:
        """Whether the folder shows this very spelling; a file system that ignores case finds others too."""
        with os.scandir(self.folder) as entries:
            return any(os.fsencode(entry.name) == self.name for entry in entries)

    def beside(self, name: bytes) -> Place:
        """Another name in the same folder."""
        return Place(self.folder, name)

    def unlink(self) -> None:
        """Remove the name, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)

    def sync(self) -> None:
        """Names that were made or removed here are on the disk (where the file system can say so)."""
        sync_folder(self.folder)


def sync_folder(folder: int) -> None:
    """fsync(2) of a folder; some network file systems cannot, and then there is nothing to be had."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise


class Roots:
    """The folders below which files may be changed."""

    def __init__(self, encoded: Sequence[str]) -> None:
        """Raises InputRejected for what is no plain absolute path, or not allowed on this agent."""
        try:
            self._roots = [names_of(root.rstrip("/") or "/") for root in encoded]
        except Refused as error:
            raise InputRejected("bad-root", error.detail) from None
        allowed = [part for part in os.environ.get(MOVE_ROOTS, "").split(os.pathsep) if part]
        for root in self._roots if allowed else []:
            if not any(_is_below(root, names_of(encode_path(folder.rstrip("/") or "/"))) for folder in allowed):
                raise InputRejected("root-not-allowed", f"{MOVE_ROOTS} of this agent does not allow {_path(root)!r}")

    @contextmanager
    def place(self, encoded: str, make: Collection[str] = ()) -> Iterator[Place]:
        """The name with its folder open. Folders in `make` are made where missing.

        Raises Refused (`bad-path`, `outside-roots`, `link-in-path`, `not-a-folder`) and OSError.
        """
        root, below = self._locate(encoded)
        folder = _open_root(root)
        try:
            for depth, name in enumerate(below[:-1], 1):
                may = encode_path(_path(root + below[:depth])) in make
                deeper = _enter(folder, name, make=may)
                os.close(folder)
                folder = deeper
            yield Place(folder, below[-1])
        finally:
            os.close(folder)

    @contextmanager
    def existing(self, encoded: str) -> Iterator[Place | None]:
        """The same; None where a folder on the way is not there."""
        with ExitStack() as stack:
            try:
                place = stack.enter_context(self.place(encoded))
            except FileNotFoundError:
                place = None
            yield place

    def missing(self, encoded: str) -> list[str]:
        """The folders that would have to be made for a name, percent-encoded, the outermost first."""
        root, below = self._locate(encoded)
        folder = _open_root(root)
        try:
            for depth, name in enumerate(below[:-1], 1):
                try:
                    deeper = _enter(folder, name)
                except FileNotFoundError:
                    return [encode_path(_path(root + below[:end])) for end in range(depth, len(below))]
                os.close(folder)
                folder = deeper
        finally:
            os.close(folder)
        return []

    def remove_empty(self, folders: Sequence[str]) -> None:
        """Remove those of the folders that are empty, from the last to the first; what is not, stays."""
        for encoded in reversed(folders):
            with suppress(OSError, Refused), self.place(encoded) as place:
                os.rmdir(place.name, dir_fd=place.folder)
                place.sync()

    def _locate(self, encoded: str) -> tuple[list[bytes], list[bytes]]:
        """The nearest root and the names below it."""
        names = names_of(encoded)
        around = [root for root in self._roots if len(root) < len(names) and _is_below(names, root)]
        if not around:
            raise Refused("outside-roots", "no allowed root holds it")
        root = max(around, key=len)
        return root, names[len(root) :]


def names_of(encoded: str) -> list[bytes]:
    """The names in a percent-encoded absolute path. Raises Refused for what is not plain: `..`, `//`, NUL, ..."""
    try:
        path = unquote_to_bytes(encoded)
    except UnicodeEncodeError:  # a lone surrogate, which nothing encoded holds
        path = b""
    names = path.split(b"/")[1:] if path != b"/" else []
    if not path.startswith(b"/") or b"\0" in path or any(name in (b"", b".", b"..") for name in names):
        raise Refused("bad-path", "not a plain absolute path: no '..', '.', '//', closing '/' or NUL")
    return names


def _is_below(names: list[bytes], root: list[bytes]) -> bool:
    return names[: len(root)] == root


def _path(names: list[bytes]) -> bytes:
    return b"/" + b"/".join(names)


def _open_root(names: list[bytes]) -> int:
    try:
        return os.open(_path(names), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Refused("root-missing", "the root is not there: is the archive mounted?") from None


def _enter(folder: int, name: bytes, *, make: bool = False) -> int:
    try:
        return _with_mode(os.open(name, FOLDER, dir_fd=folder), folder, make)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        found = Place(folder, name).stat()
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise Refused("link-in-path", "a folder on the way is a link; links are not followed") from None
        raise Refused("not-a-folder", "something on the way is not a folder") from None
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    sync_folder(folder)
    return _with_mode(os.open(name, FOLDER, dir_fd=folder), folder, make)


def _with_mode(opened: int, parent: int, made: bool) -> int:
    """A folder that we made is as its parent is: the agent's own umask is for its data folder."""
    if made:
        above = os.fstat(parent)
        with suppress(OSError):
            os.fchown(opened, above.st_uid, above.st_gid)
        with suppress(OSError):
            os.fchmod(opened, stat.S_IMODE(above.st_mode))
    return opened
