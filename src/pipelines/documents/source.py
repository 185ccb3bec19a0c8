"""Where a document comes from: a URL, or a path below the folders that the operator allows.

What is read is held open meanwhile, and named by its open file (`/proc/PID/fd/N`, proc_pid_fd(5)) where there is such
a thing: a child process reads just what was judged here, whatever becomes of the path; and a download, which has no
name of its own, is gone with this process however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipelines.documents.fetch import HEAD, Fetcher, check_head, too_large
from pipelines.errors import InputRejected, NotGranted, RecordNotFoundError

DISK_STALL = 300.0
"""Seconds in which a disk must answer."""


@dataclass(frozen=True)
class Held:
    """A document that is open: a path that leads to it, and its size in bytes."""

    path: Path
    size: int


@contextlib.asynccontextmanager
async def downloaded(url: str, fetcher: Fetcher) -> AsyncIterator[Held]:
    """The document of a URL, until the block ends. Raises what `Fetcher.fetch` does."""
    with _nameless() as file:
        size = await fetcher.fetch(url, file)
        yield Held(_path_of(file), size)


@contextlib.asynccontextmanager
async def local(path: Path, roots: Sequence[Path], most: int) -> AsyncIterator[Held]:
    """A file below one of `roots`, wherever links lead, of at most `most` bytes.

    Raises NotGranted (there are no roots), InputRejected (`outside-roots`, `not-a-file`, `empty`, `not-a-pdf`,
    `too-large`), RecordNotFoundError (it is gone, and its root holds other things) and OSError.
    """
    if not roots:
        raise NotGranted("this agent reads no local documents; set PHAZE_DOCUMENT_ROOTS to the folders that hold them")
    async with asyncio.timeout(DISK_STALL):
        file = await asyncio.to_thread(_opened, path, roots)
    with file:
        size = await asyncio.to_thread(_judged, file, most)
        yield Held(_path_of(file), size)


def _opened(path: Path, roots: Sequence[Path]) -> IO[bytes]:
    real_roots = [Path(os.path.realpath(root)) for root in roots]
    real = Path(os.path.realpath(path))
    root = next((root for root in real_roots if real.is_relative_to(root)), None)
    if root is None or not path.is_absolute():
        raise InputRejected("outside-roots", "PHAZE_DOCUMENT_ROOTS of this agent does not allow its folder")
    try:
        number = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError) as error:
        with contextlib.suppress(OSError):
            if any(root.iterdir()):
                raise RecordNotFoundError(f"{path} is gone; {root} is there") from error
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise InputRejected("not-a-file", "a folder, pipe, socket or device; only regular files are read")
    file = os.fdopen(number, "rb")
    opened = Path(os.path.realpath(_path_of(file)))
    if not any(opened.is_relative_to(root) for root in real_roots):
        file.close()  # a folder became a link between the two looks
        raise InputRejected("outside-roots", "PHAZE_DOCUMENT_ROOTS of this agent does not allow its folder")
    return file


def _judged(file: IO[bytes], most: int) -> int:
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise too_large(most)
    check_head(file.read(HEAD))
    return size


@contextlib.contextmanager
def _nameless() -> Iterator[IO[bytes]]:
    if _has_open_files_by_name():
        with tempfile.TemporaryFile(prefix="phaze-document-") as file:
            yield file
    else:
        with tempfile.NamedTemporaryFile(prefix="phaze-document-") as named:
            yield named


def _path_of(file: IO[bytes]) -> Path:
    if _has_open_files_by_name():
        return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
    return Path(file.name)


def _has_open_files_by_name() -> bool:
    return Path(f"/proc/{os.getpid()}/fd").is_dir()
