"""Whether a file is all there: what its container announces, beside what the file holds and what could be decoded.

ffmpeg takes a WAV, W64 or CAF that was cut off for a shorter one, and an Ogg stream ends wherever its bytes do: their
headers are read here.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pipelines.music.limits import is_short
from pipelines.music.probe import Probe

LARGEST_PAGE = 27 + 255 + 255 * 255
"""Bytes of an Ogg page: header, table of segments, segments (RFC 3533)."""

MOST_CHUNKS = 1_000
"""Before that of the sound; a file that has more is taken for whole."""

UNTOLD = (range(1), range(0x7FFF_0000, 0x8000_1000), range(0xFFFF_0000, 1 << 32))
"""Sizes of a WAV's sound that programs write who cannot go back in a pipe: it goes on to the file's end."""

W64 = b"riff\x2e\x91\xcf\x11"
_W64_DATA = b"data\xf3\xac\xd3\x11"


def completeness(path: Path, probed: Probe, decoded: float, errors: int) -> tuple[float | None, bool]:
    """(seconds that the container declares, or None; whether clearly less was decoded). Raises OSError.

    `decoded` in seconds, with so many `errors` of the decoder.
    """
    times = times_announced(path)
    if math.isinf(times):
        return probed.duration, True
    if times > 1:
        declared = decoded * times
        return declared, is_short(decoded, declared, estimated=False, errors=errors)
    return probed.duration, is_short(decoded, probed.duration, probed.estimated, errors)


def times_announced(path: Path) -> float:
    """How many times the bytes of sound that the file holds its container announces; 1: all, or it does not say.

    Infinite: it is cut off, and nobody knows how much is missing (an Ogg file that ends within a page).
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(16)
        if head.startswith(b"OggS"):
            return math.inf if _ends_within_a_page(file, size) else 1.0
        for kind, at, announced in _chunks(file, head, size):
            if kind in (b"data", _W64_DATA):
                held = size - at
                return announced / held if 0 < held < announced else 1.0
    return 1.0


def _chunks(file: BinaryIO, head: bytes, size: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, where its content begins, how many bytes it announces) up to the file's end; nothing where it is none."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        at, form, even = 12, struct.Struct("<4sI"), 2
    elif head.startswith(W64):
        at, form, even = 40, struct.Struct("<8s8xQ"), 8
    elif head.startswith(b"caff"):
        at, form, even = 8, struct.Struct(">4sq"), 1
    else:
        return
    for _ in range(MOST_CHUNKS):
        file.seek(at)
        told = file.read(form.size)
        if len(told) < form.size:
            return
        kind, announced = form.unpack(told)
        at += form.size
        if form.size == 24:  # of a W64: the header counts as well
            announced -= form.size
        if announced < 0 or (even == 2 and any(announced in sizes for sizes in UNTOLD)):
            return
        yield kind, at, announced
        at += -(-announced // even) * even
        if at >= size:
            return


def _ends_within_a_page(file: BinaryIO, size: int) -> bool:
    file.seek(max(0, size - 2 * LARGEST_PAGE))
    tail = file.read(2 * LARGEST_PAGE)
    at = len(tail)
    while (at := tail.rfind(b"OggS", 0, at)) >= 0:
        if tail[at + 4 : at + 5] in (b"\0", b""):  # the version; other bytes read so by chance
            break
    if at < 0:
        return False
    segments = tail[at + 26 : at + 27]
    table = tail[at + 27 :][: segments[0]] if segments else b""
    if not segments or len(table) < segments[0]:
        return True
    rest = tail[at + 27 + len(table) :]
    # Of the next page there may be a letter or two; what else follows a whole page is somebody's tag.
    return len(rest) < sum(table) or rest[sum(table) :] in (b"O", b"Og", b"Ogg")
