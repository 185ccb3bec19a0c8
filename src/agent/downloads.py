"""One file by HTTP: resumed where it broke off, proved, and put in place whole or not at all.

What arrived lies in `<name>.part` beside the place it goes to, and what the server called it (ETag or Last-Modified)
in `<name>.part.of`: with that, a range is asked for only of the very same file (If-Range), and a server that sends all
of it again, or another one, is taken at its word.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from agent.errors import UserError
from agent.redaction import redact_text
from pipelines.music.models.catalogue import sha256_of

TRIES = 5
"""Attempts in a row that may bring nothing new; each that brings something starts the count again."""

PAUSE = 1.0
"""Seconds before the second try, doubled before each further one that follows a try in vain, 30 at most."""

PATIENCE = httpx.Timeout(30.0, connect=15.0)
"""Seconds without a byte, and to connect."""

LEAST_RATE = 4_096
"""Bytes a second on average below which a server does not really answer."""

GRACE = 60.0
"""Seconds before the rate counts."""

MOST_BYTES = 2 << 30
"""No model has more; a server that says so serves something else."""

HEADER_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})

Tell = Callable[[int, int | None], None]
"""Is told how many bytes are here, and of how many (None: the server does not say)."""


class DownloadError(UserError):
    """The file could not be had; the message says why and what to do. What arrived is kept for the next try."""


class _Broken(Exception):
    """This attempt ended early; another may go on from there."""


@dataclass(frozen=True)
class Wanted:
    """`size` in bytes and `sha256` (hexadecimal), where they are known."""

    url: str
    to: Path
    size: int | None = None
    sha256: str | None = None


def download(client: httpx.Client, wanted: Wanted, tell: Tell) -> None:
    """Fetch one file to `wanted.to`, whose folder exists. Raises DownloadError."""
    part = Part(wanted.to)
    most = part.size
    failures, deadline = 0, time.monotonic() + GRACE + (wanted.size or MOST_BYTES) / LEAST_RATE
    while True:
        try:
            _attempt(client, wanted, part, tell, deadline)
            break
        except (_Broken, httpx.TransportError) as error:
            failures = 0 if part.size > most else failures + 1
            most = max(most, part.size)
            if failures >= TRIES or time.monotonic() > deadline:
                raise DownloadError(
                    f"{_shown(wanted.url)} broke off {TRIES} times ({str(error) or type(error).__name__}); "
                    "try again later, what is here is kept"
                ) from None
            time.sleep(min(PAUSE * 2**failures, 30.0))
    _prove(wanted, part)
    part.path.replace(wanted.to)
    part.forget_name()


class Part:
    """What is here so far, and of which file."""

    def __init__(self, to: Path) -> None:
        self.path = to.with_name(f"{to.name}.part")
        self._name = to.with_name(f"{to.name}.part.of")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def name(self) -> str:
        """The server's name for this version; empty if it has none."""
        return self._name.read_text("utf-8") if self._name.exists() else ""

    def begin(self, name: str) -> None:
        """From nothing, of a version of that name."""
        self.path.write_bytes(b"")
        self._name.write_text(name, "utf-8")

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.forget_name()

    def forget_name(self) -> None:
        self._name.unlink(missing_ok=True)


def _attempt(client: httpx.Client, wanted: Wanted, part: Part, tell: Tell, deadline: float) -> None:
    headers = {"Accept-Encoding": "identity"}  # a size and a range are those of the file, not of its compression
    if part.size and part.name:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": part.name}
    elif part.size:
        part.drop()
    with client.stream("GET", wanted.url, headers=headers, timeout=PATIENCE) as answer:
        total = _begin(answer, wanted, part)
        tell(part.size, total)
        with part.path.open("ab") as file:
            _receive(answer, file, total, tell, deadline)
    if total is not None and part.size != total:
        raise _Broken(f"{part.size} of {total} bytes came")


def _begin(answer: httpx.Response, wanted: Wanted, part: Part) -> int | None:
    """Judge the answer's head and bring the part in line with it; returns the whole file's size, if said."""
    if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        part.drop()
        raise _Broken("the server has no more than what is here; from the start again")
    if answer.status_code in WORTH_ANOTHER_TRY:
        raise _Broken(f"HTTP {answer.status_code}")
    if not answer.is_success:
        raise DownloadError(
            f"{_shown(wanted.url)} answered HTTP {answer.status_code}; check PHAZE_MODELS_URL, or download the file by "
            f"hand to {wanted.to}"
        )
    said = HEADER_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status_code == httpx.codes.PARTIAL_CONTENT and said and int(said[1]) == part.size:
        total = None if said[2] == "*" else int(said[2])
    elif answer.status_code == httpx.codes.PARTIAL_CONTENT:
        part.drop()
        raise _Broken("the server sent another range than the one asked for")
    else:
        part.begin(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
    expected = wanted.size if wanted.size is not None else total
    if total is not None and (total != expected or total > MOST_BYTES):
        part.drop()
        raise DownloadError(
            f"{_shown(wanted.url)} has {total} bytes and not {wanted.size or f'at most {MOST_BYTES}'}: it is another "
            "file; check PHAZE_MODELS_URL"
        )
    return expected


def _receive(answer: httpx.Response, file: IO[bytes], total: int | None, tell: Tell, deadline: float) -> None:
    most = MOST_BYTES if total is None else total
    for chunk in answer.iter_raw():
        if file.tell() + len(chunk) > most:
            raise _Broken("more bytes came than were announced")
        file.write(chunk)
        tell(file.tell(), total)
        if time.monotonic() > deadline:
            raise _Broken("it is too slow")


def _prove(wanted: Wanted, part: Part) -> None:
    if wanted.size is not None and part.size != wanted.size:
        size = part.size
        part.drop()
        raise DownloadError(f"{_shown(wanted.url)} has {size} bytes and not {wanted.size}; check PHAZE_MODELS_URL")
    if wanted.sha256 is not None and (found := sha256_of(part.path)) != wanted.sha256:
        part.drop()
        raise DownloadError(
            f"{_shown(wanted.url)} has another content than it should (sha256 {found}); check PHAZE_MODELS_URL"
        )


def _shown(url: str) -> str:
    """A URL for people: without its query and password."""
    with contextlib.suppress(httpx.InvalidURL):
        return redact_text(str(httpx.URL(url).copy_with(query=None)))
    return redact_text(url)


@contextlib.contextmanager
def sole_user(folder: Path, waiting: Callable[[], None], within: float = 3600.0) -> Iterator[None]:
    """Be the only process that installs into `folder`; `waiting` is called once if another is at it.

    The lock goes with the process that holds it, however it ends. Raises DownloadError after `within` seconds.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + within
    with (folder / ".lock").open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    waiting()
                    told = True
                if time.monotonic() > deadline:
                    raise DownloadError(f"another process has been installing into {folder} for an hour") from None
                time.sleep(0.2)
        yield
