"""Where ffmpeg is, how it is pointed at a user's file, and which files it is pointed at.

essentia's own loaders carry FFmpeg 2.8, which dies on real files; the ffmpeg program only ever costs itself.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from functools import lru_cache
from pathlib import Path

from pipelines.errors import InputRejected, RecordNotFoundError, ToolMissing

# ffmpeg would read a playlist as the files it names, wherever they are; a playlist is not audio.
PLAYLIST_HEADS = (b"#EXTM3U", b"ffconcat", b"[playlist]", b"<?xml", b"<MPD", b"<html", b"<!DOCTYPE")

MAX_ALLOC = 128 << 20
"""Bytes that one allocation of ffmpeg may take; headers lie about frame and tag sizes."""


def ffmpeg_path() -> str:
    """The ffmpeg to run: PHAZE_FFMPEG, else the one imageio-ffmpeg carries, else PATH.

    Raises ToolMissing. The carried one is preferred because it is known to have ebur128 and chromaprint.
    """
    asked = os.environ.get("PHAZE_FFMPEG")
    if asked:
        if found := shutil.which(asked):
            return found
        raise ToolMissing(f"PHAZE_FFMPEG={asked} is not a program; unset it or name an ffmpeg 5 or newer")
    return _carried_or_on_path()


@lru_cache(maxsize=1)
def _carried_or_on_path() -> str:
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        if found := shutil.which("ffmpeg"):
            return found
    raise ToolMissing("no ffmpeg here: pip install imageio-ffmpeg, or put ffmpeg on PATH, or set PHAZE_FFMPEG")


@lru_cache(maxsize=8)
def ffmpeg_version(program: str) -> str:
    """The version as ffmpeg prints it, such as `7.0.2-static`."""
    first = subprocess.run(
        [program, "-nostdin", "-version"], capture_output=True, text=True, errors="replace", timeout=30
    ).stdout.partition("\n")[0]
    match = re.match(r"ffmpeg version (\S+)", first)
    return match.group(1) if match else "unknown"


def input_arguments(path: Path) -> list[str]:
    """argv up to and with `-i`: nothing is read from a terminal, a network, a second file or a picture.

    One thread each for decoder and filters: one slot of a lane is one core.
    """
    return [
        ffmpeg_path(),
        *("-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+info"),
        *("-max_alloc", str(MAX_ALLOC)),
        *("-filter_threads", "1", "-filter_complex_threads", "1"),
        *("-protocol_whitelist", "file,pipe", "-threads", "1", "-vn", "-sn", "-dn"),
        *("-i", f"file:{path}"),
    ]


def regular_file(path: Path) -> os.stat_result:
    """The stat of a non-empty regular file (links followed); everything else raises.

    RecordNotFoundError: the file is gone and its folder is there. OSError: the folder is not there, or stands
    empty as an unmounted archive does. InputRejected: `not-a-file` (a FIFO would hang), `empty`, `not-audio`
    (a playlist).
    """
    found = stat_of(path)
    if not stat.S_ISREG(found.st_mode):
        raise InputRejected("not-a-file", "a folder, pipe, socket or device; only regular files are read")
    if found.st_size == 0:
        raise InputRejected("empty", "0 bytes")
    with path.open("rb") as file:
        head = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(PLAYLIST_HEADS):
        raise InputRejected("not-audio", "a playlist or a page, not a sound")
    return found


def stat_of(path: Path) -> os.stat_result:
    """Of what a path leads to; raises what `missing` says it means that there is nothing."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise missing(path) from error


def missing(path: Path) -> Exception:
    """What it means that `path` is not there: gone (its folder holds other things), or its archive is."""
    held = holds_something(path.parent)
    if held:
        return RecordNotFoundError(f"{path} is gone; its folder is there")
    why = (
        "nor is its folder: is the archive mounted?" if held is None else "its folder is empty: is the archive mounted?"
    )
    return OSError(errno.ENOENT, f"not there, {why}", os.fspath(path))


def holds_something(folder: Path) -> bool | None:
    """Whether the folder has any entry; None if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return None
