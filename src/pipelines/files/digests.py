"""A file in parts, and the hashes of it and of each part, as an object store names them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipelines.files.transfer import on_disk

MIB = 1 << 20

PART = 8 * MIB
"""Bytes of a part of files up to 78 GiB; below 5 MiB no store takes it (S3: multipart upload limits)."""

MOST_PARTS = 10_000
LARGEST_PART = 5 << 30
"""S3: multipart upload limits. Together 48.8 TiB, which is more than any store takes."""

READ = MIB
"""Bytes read at once for hashing."""


@dataclass(frozen=True)
class Part:
    """One part: `number` from 1, `offset` and `size` in bytes, hashes raw."""

    number: int
    offset: int
    size: int
    sha256: bytes
    md5: bytes


@dataclass(frozen=True)
class Digests:
    """A whole file: size in bytes, sha256 (raw), and its parts, one at least (an empty file has an empty one)."""

    size: int
    sha256: bytes
    parts: tuple[Part, ...]

    @property
    def checksum(self) -> str:
        """What a store answers as x-amz-checksum-sha256: base64, of several parts the hash of their hashes."""
        if len(self.parts) == 1:
            return base64_of(self.sha256)
        return base64_of(hashlib.sha256(b"".join(part.sha256 for part in self.parts)).digest())

    @property
    def etag(self) -> str:
        """What a store answers as ETag where it is an MD5: hex, of several parts the hash of their hashes and `-N`."""
        if len(self.parts) == 1:
            return self.parts[0].md5.hex()
        joined = hashlib.md5(b"".join(part.md5 for part in self.parts), usedforsecurity=False)
        return f"{joined.hexdigest()}-{len(self.parts)}"


def part_size(size: int) -> int:
    """Bytes of each part but the last, for a file of `size` bytes: 8 MiB, and for more than 10,000 of these the least
    whole number of MiB that needs no more than 10,000. It depends on the size alone, so that a later run finds the
    same parts."""
    return max(PART, -(-size // (MOST_PARTS * MIB)) * MIB)


def base64_of(raw: bytes) -> str:
    """As headers carry hashes."""
    return base64.b64encode(raw).decode("ascii")


async def digest(path: Path, size: int, on_bytes: Callable[[int], Awaitable[None]]) -> Digests:
    """Read the file once. `on_bytes` hears how much has been read, after each part.

    A file that is shorter or longer than `size` by now gives digests of another size. Raises OSError and Unreadable.
    """
    whole = hashlib.sha256()
    parts: list[Part] = []
    done = 0
    with await on_disk(path.open, "rb") as file:
        while done < size or not parts:
            part = await on_disk(_part, file, whole, len(parts) + 1, done, part_size(size))
            if not part.size and parts:
                break
            parts.append(part)
            done += part.size
            await on_bytes(done)
    return Digests(done, whole.digest(), tuple(parts))


def _part(file: BinaryIO, whole: hashlib._Hash, number: int, offset: int, size: int) -> Part:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    done = 0
    while done < size and (block := file.read(min(READ, size - done))):
        for hashed in (whole, sha256, md5):
            hashed.update(block)
        done += len(block)
    return Part(number, offset, done, sha256.digest(), md5.digest())
