"""An index of prints on the disk: a checkpoint is there whole or not at all, whenever its writer is killed.

    tape-N.u32     the items of all prints, one after the other; grows at its end
    heads-N.u32    where each key's places begin
    places-N.u32   where on the tape each key stands
    index.json     names the files that hold, how much of the tape counts, and the prints; replaced last

What lies beyond the tape's counted end, or in a file that index.json does not name, was never finished. All of it can
be made again from the catalogue, so whatever does not fit is thrown away (Damaged).
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.music.postings import Base, Items, Numbers, build, mapped

FORMAT = 1
"""Changes whenever files of an older program cannot be used."""

INDEX = "index.json"

READ = 1 << 22
"""Bytes read at once."""


class Damaged(Exception):
    """What is there cannot be used: delete it and build anew."""


@dataclass(frozen=True)
class Saved:
    """One checkpoint, mapped. Print n is `tape[bounds[n] : bounds[n + 1]]`."""

    names: list[str]
    bounds: Numbers
    links: list[list[Any]]
    tape: Items
    base: Base
    files: dict[str, str]
    sums: dict[str, int]


def load(folder: Path, *, verify: bool) -> Saved | None:
    """The last checkpoint; None if there is none. `verify` reads all of it (a second or two for 100,000 tracks).

    Raises Damaged, OSError.
    """
    for _ in range(10):
        try:
            text = (folder / INDEX).read_text("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise Damaged(f"{INDEX}: {error}") from None
        try:
            return _open(folder, text, verify=verify)
        except FileNotFoundError as error:
            missing = error  # the next checkpoint has replaced it meanwhile; or it is truly gone
    raise Damaged(str(missing))


def _open(folder: Path, text: str, *, verify: bool) -> Saved:
    try:
        said = json.loads(text)
        if said["format"] != FORMAT:
            raise Damaged(f"format {said['format']}; this program writes {FORMAT}")
        files, sums, names = said["files"], said["sums"], said["names"]
        bounds = np.asarray(said["bounds"], dtype=np.int64)
        size = int(bounds[-1])
        if bounds.size != len(names) + 1 or bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise Damaged("bounds and names do not fit")
        if (folder / files["tape"]).stat().st_size < 4 * size:
            raise Damaged("the tape is too short")
        for part, file in files.items() if verify else ():
            if checksum(folder / file, 4 * size if part == "tape" else None) != sums[part]:
                raise Damaged(f"{file} is not what was written")
        tape = map_tape(folder / files["tape"], size)
        base = Base(folder / files["heads"], folder / files["places"])
        return Saved(names, bounds, said["links"], tape, base, files, sums)
    except FileNotFoundError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Damaged(f"{INDEX}: {error!r}") from None


def save(
    folder: Path, before: Saved | None, names: Sequence[str], prints: Sequence[Items], links: Sequence[Sequence[Any]]
) -> Saved:
    """Write the next checkpoint: the prints of `before` and, after them, `prints`; durable on return.

    `names` and `links` are those of all. Raises OSError, and then the one before still holds.
    """
    generation = 1 + max((_number(file) for file in folder.glob("*-*.u32")), default=0)
    files = {part: f"{part}-{generation}.u32" for part in ("tape", "heads", "places")}
    fresh = set(files.values())
    old, bounds, crc = 0, np.zeros(1, dtype=np.int64), 0
    if before is not None:
        fresh.discard(files["tape"])
        files["tape"], old, bounds, crc = before.files["tape"], before.tape.size, before.bounds, before.sums["tape"]
    try:
        sizes, crc = _append(folder / files["tape"], old, prints, crc)
        bounds = np.append(bounds, bounds[-1] + np.cumsum(sizes, dtype=np.int64))
        build(folder / files["tape"], bounds, folder / files["heads"], folder / files["places"])
        sums = {"tape": crc, **{part: _settled(folder / files[part]) for part in ("heads", "places")}}
        rows = [list(link) for link in links]
        document = {"format": FORMAT, "files": files, "sums": sums, "names": list(names), "bounds": bounds.tolist()}
        _replace(folder / INDEX, json.dumps({**document, "links": rows}))
    except BaseException:
        for file in fresh:  # nothing names them; a full disk wants the room back
            (folder / file).unlink(missing_ok=True)
        raise
    sweep(folder, keep=files.values())
    tape = map_tape(folder / files["tape"], int(bounds[-1]))
    return Saved(list(names), bounds, rows, tape, Base(folder / files["heads"], folder / files["places"]), files, sums)


def _append(path: Path, old: int, prints: Sequence[Items], crc: int) -> tuple[list[int], int]:
    """Put prints behind the first `old` items of a tape; their sizes, and the checksum that goes on from `crc`."""
    sizes = []
    with path.open("r+b" if old else "w+b") as tape:
        tape.truncate(4 * old)
        tape.seek(4 * old)
        for items in prints:
            data = items.astype("<u4", copy=False).tobytes()
            crc = zlib.crc32(data, crc)
            tape.write(data)
            sizes.append(items.size)
        tape.flush()
        os.fsync(tape.fileno())
    return sizes, crc


def _settled(path: Path) -> int:
    """Have a file on the disk; its checksum, as read back."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return checksum(path)


def _replace(path: Path, text: str) -> None:
    """Put a text in the place of a file, whole or not at all, also after a power cut."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path, keep: Any = ()) -> None:
    """Delete what no checkpoint names."""
    kept = set(keep)
    for file in folder.glob("*-*.u32"):
        if file.name not in kept:
            file.unlink(missing_ok=True)
    if not kept:
        (folder / INDEX).unlink(missing_ok=True)


def map_tape(path: Path, size: int) -> Items:
    """`size` items, mapped."""
    return mapped(path, size) if size else np.empty(0, dtype="<u4")


def checksum(path: Path, size: int | None = None) -> int:
    """CRC-32 of a file, or of its first `size` bytes, as read back from it."""
    left, crc = path.stat().st_size if size is None else size, 0
    with path.open("rb") as file:
        while left and (data := file.read(min(READ, left))):
            crc = zlib.crc32(data, crc)
            left -= len(data)
    return crc


def _number(file: Path) -> int:
    with contextlib.suppress(ValueError):
        return int(file.stem.rpartition("-")[2])
    return 0
