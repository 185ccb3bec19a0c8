"""Reading a file's tags with mutagen, whatever their format, into one shape. Runs in a child process.

mutagen leaks whatever its parsers hit on broken files (struct.error, ZeroDivisionError, ...), so that every exception
here means one thing: the tags cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pipelines.music.text import clean

FIELDS: dict[str, tuple[str, ...]] = {
    # ours: ID3, MP4, ASF, then the free-form names of Vorbis comments and APEv2; compared in lower case
    "artist": ("tpe1", "©art", "author", "artist"),
    "title": ("tit2", "©nam", "title"),
    "album": ("talb", "©alb", "wm/albumtitle", "album"),
    "album_artist": ("tpe2", "aart", "wm/albumartist", "albumartist", "album artist", "album_artist"),
    "date": ("tdrc", "tdor", "tyer", "©day", "wm/year", "date", "originaldate", "year"),
    "genre": ("tcon", "©gen", "gnre", "wm/genre", "genre"),
    "track": ("trck", "trkn", "wm/tracknumber", "tracknumber", "track"),
    "disc": ("tpos", "disk", "wm/partofset", "discnumber", "disc"),
    "bpm": ("tbpm", "tmpo", "wm/beatsperminute", "bpm", "tempo"),
    "key": ("tkey", "initialkey", "wm/initialkey", "key"),
    "isrc": ("tsrc", "isrc", "wm/isrc"),
}

FORMATS = {
    "oggvorbis": ("ogg", "vorbis"),
    "oggopus": ("ogg", "opus"),
    "oggflac": ("ogg", "flac"),
    "oggspeex": ("ogg", "speex"),
    "oggtheora": ("ogg", "theora"),
    "wave": ("wav", "pcm"),
    "aiff": ("aiff", "pcm"),
    "mp4": ("mp4", "aac"),
}
"""mutagen's class -> container and codec, where its class says both. The file's own codec name goes before."""

MOST_TAGS = 200
MOST_VALUES = 20
MOST_CHARACTERS = 50_000
"""Bounds of the raw tags that are kept: names, values a name, characters in all."""

PICTURES = ("apic", "pic", "covr", "metadata_block_picture", "coverart", "wm/picture", "cover art")


class BadTags(Exception):
    """mutagen could not make sense of the file; says with which exception."""


@dataclass
class Tags:
    """What mutagen found. `raw` keeps the file's own names; facts about the stream are None where not said."""

    container: str
    raw: dict[str, list[str]] = field(default_factory=dict)
    has_cover: bool = False
    duration: float | None = None
    bit_rate: int | None = None
    sample_rate: int | None = None
    channels: int | None = None
    codec: str | None = None

    def first(self, name: str) -> str | None:
        """The first value of one of our `FIELDS`, in the order of that table."""
        lower = {short_name(key): values for key, values in self.raw.items()}
        for key in FIELDS[name]:
            if values := lower.get(key):
                return values[0]
        return None


def read_tags(path: Path) -> Tags | None:
    """The tags of one file; None if mutagen does not know the format. Raises BadTags, and OSError of the file."""
    try:
        return _read(path, path.name)
    except BadTags:
        return _read(path, "")  # the name misled it: an MP3 that is called .flac


def _read(path: Path, name: str) -> Tags | None:
    import mutagen

    try:
        with path.open("rb") as file:
            found = mutagen.File(_Named(file, name))
            return None if found is None else _collect(found)
    except OSError:
        raise
    except Exception as error:
        if isinstance(error.__context__, OSError) and error.__context__.errno is not None:
            raise error.__context__ from error
        raise BadTags(f"{type(error).__name__}: {error}") from error


class _Named:
    """An open file under another name: mutagen judges by suffix as well as by content."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self.read, self.seek, self.tell = file.read, file.seek, file.tell


def short_name(key: str) -> str:
    """`TXXX:initialkey`, `----:com.apple.iTunes:ISRC`, `COMM:desc:eng` -> `initialkey`, `isrc`, `comm`."""
    head, _, rest = key.lower().partition(":")
    if head in ("txxx", "----") and rest:
        return rest.rpartition(":")[2]
    return head


def _collect(found: Any) -> Tags:
    info = found.info
    tags = Tags(
        container=type(found).__name__.lower(),
        duration=_positive(getattr(info, "length", None)),
        bit_rate=_whole(getattr(info, "bitrate", None), 1_000_000_000),
        sample_rate=_whole(getattr(info, "sample_rate", None), 50_000_000),
        channels=_whole(getattr(info, "channels", None), 1_000),
    )
    tags.container, tags.codec = FORMATS.get(tags.container, (tags.container, tags.container))
    if named := getattr(info, "codec", None) or getattr(info, "codec_name", None):
        tags.codec = clean(str(named))
    tags.has_cover = bool(getattr(found, "pictures", None))
    room = MOST_CHARACTERS
    for key, value in _items(found.tags):
        if short_name(key) in PICTURES or short_name(key).startswith("cover art"):
            tags.has_cover = True
            continue
        texts = [text for text in map(clean, _texts(value)) if text][:MOST_VALUES]
        room -= sum(map(len, texts)) + len(key)
        if texts and room >= 0 and len(tags.raw) < MOST_TAGS:
            tags.raw.setdefault(clean(key), []).extend(texts)
    return tags


def _items(tags: Any) -> Iterable[tuple[str, Any]]:
    """Pairs of name and value, whether the container is a mapping or a list of pairs (Vorbis comments)."""
    if not tags:
        return []
    pairs = tags.items() if isinstance(tags, Mapping) or hasattr(tags, "items") else tags
    return [(str(key), value) for key, value in pairs]


def _texts(value: Any) -> Iterator[str]:
    """The texts of one value of any of mutagen's formats; binary ones have none."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, bytes):  # MP4 free-form values are UTF-8 unless they are binary
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            return
        if text.isprintable():
            yield text
    elif isinstance(value, tuple):  # MP4 track and disc: (number, total)
        yield "/".join(str(part) for part in value if isinstance(part, int))
    elif isinstance(value, list):
        for part in value[:MOST_VALUES]:
            yield from _texts(part)
    elif hasattr(value, "text"):  # ID3 text frames; dates print as dates
        for part in value.text if isinstance(value.text, list) else [value.text]:
            yield str(part)
    elif isinstance(getattr(value, "value", None), str | int | float | bytes):  # APEv2, ASF
        yield from _ape_or_asf(value)
    elif isinstance(getattr(value, "url", None), str):
        yield value.url


def _ape_or_asf(value: Any) -> Iterator[str]:
    if type(value).__name__ == "APETextValue":
        yield from list(value)[:MOST_VALUES]
    elif not isinstance(value.value, bytes):
        yield str(value.value)


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else None


def _whole(value: Any, most: int) -> int | None:
    number = _positive(value)
    return int(number) if number is not None and 1 <= number <= most else None
