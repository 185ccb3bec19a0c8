"""Facts about a picture in a file's tags: nothing is decoded, and the picture is not kept."""

from __future__ import annotations

from pydantic import BaseModel, Field

MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"BM": "image/bmp"}
FRONT = 3
"""The kind of a front cover (ID3v2.4, 4.14; FLAC uses the same numbers)."""


class Cover(BaseModel):
    """One picture. `kind`: 3 is the front cover (ID3v2.4, 4.14); pixels are None where its header does not say."""

    mime: str | None = Field(default=None, description="by its first bytes, whatever the tag says")
    bytes: int = 0
    kind: int | None = None
    width: int | None = None
    height: int | None = None


def cover(data: bytes, kind: int | None = None) -> Cover:
    """Of a picture's bytes."""
    mime = next((mime for magic, mime in MAGIC.items() if data.startswith(magic)), None)
    if mime is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        mime = "image/webp"
    width, height = _png(data) if mime == "image/png" else _jpeg(data) if mime == "image/jpeg" else (None, None)
    return Cover(mime=mime, bytes=len(data), kind=kind, width=width, height=height)


def _png(data: bytes) -> tuple[int | None, int | None]:
    """IHDR is the first chunk (PNG, 5.6)."""
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None, None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _jpeg(data: bytes) -> tuple[int | None, int | None]:
    """From the first start-of-frame segment (ITU T.81, B.2.2)."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + max(length, 2)
    return None, None
