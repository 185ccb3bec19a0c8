"""Reading a file's tags with mutagen, whatever their format, into one shape. Runs in a child process.

mutagen leaks whatever its parsers hit on broken files (struct.error, ZeroDivisionError, ...), so that every exception
here means one thing: the tags cannot be read.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pipelines.music.covers import MAGIC, Cover, cover
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
    "bpm": ("tbpm", "tmpo", "wm/beatsperminute", "bpm", "tempo", "fbpm", "beatsperminute"),
    "key": ("tkey", "initialkey", "wm/initialkey", "initial key", "initial_key", "key"),
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

MOST_FRAME, MOST_BINARY = 2_048, 16_384
"""Bytes of one binary value, and of all, that are kept whole; of others their length."""

PICTURES = ("apic", "pic", "covr", "metadata_block_picture", "coverart", "wm/picture", "cover art")


class BadTags(Exception):
    """mutagen could not make sense of the file; says with which exception."""


@dataclass
class Tags:
    """What mutagen found. `raw` keeps the file's own names; facts about the stream are None where not said."""

    container: str
    raw: dict[str, list[str]] = field(default_factory=dict)
    binary: dict[str, bytes] = field(default_factory=dict)
    """Values that are no text, without pictures, by the file's own names."""
    gains: dict[str, tuple[float, float]] = field(default_factory=dict)
    """RVA2: its name, in lower case -> decibels, peak."""
    covers: list[Cover] = field(default_factory=list)
    duration: float | None = None
    bit_rate: int | None = None
    sample_rate: int | None = None
    channels: int | None = None
    codec: str | None = None

    def first(self, name: str) -> str | None:
        """The first value of one of our `FIELDS`, in the order of that table."""
        return next(self.each(name), None)

    def each(self, name: str) -> Iterator[str]:
        """The first value under each of a field's names, in the order of that table."""
        lower: dict[str, list[str]] = {}
        for key, values in self.raw.items():
            lower.setdefault(short_name(key), values)
        for key in FIELDS[name]:
            if found := lower.get(key):
                yield found[0]


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
            return None if found is None else _collect(found, _ape_beside(found, file))
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error.__context__, OSError) and error.__context__.errno is not None:
            raise error.__context__ from error
        raise BadTags(f"{type(error).__name__}: {error}") from error


def _ape_beside(found: Any, file: BinaryIO) -> Any:
    """The APEv2 tags at the end of a file of which mutagen reads only the ID3 tags, if any: mp3gain writes ReplayGain
    there, and foobar2000 all tags if told so."""
    from mutagen.aac import AAC
    from mutagen.apev2 import APEv2
    from mutagen.mp3 import MP3

    if not isinstance(found, MP3 | AAC):
        return None
    try:
        return APEv2(_Named(file, ""))  # type: ignore[no-untyped-call]  # mutagen has no types
    except (OSError, MemoryError):
        raise
    except Exception:  # there are none, or they are broken: that spoils no other tags
        return None


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


def _collect(found: Any, beside: Any) -> Tags:
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
    tags.covers = [
        cover(picture.data, picture.type) for picture in (getattr(found, "pictures", None) or [])[:MOST_VALUES]
    ]
    room = MOST_CHARACTERS
    items = list(_items(found.tags))
    known = {short_name(key) for key, _ in items}
    for key, value in items + [(key, value) for key, value in _items(beside) if short_name(key) not in known]:
        if short_name(key) in PICTURES or short_name(key).startswith("cover art"):
            tags.covers += list(_covers(key, value))[:MOST_VALUES]
            continue
        if isinstance(gain := getattr(value, "gain", None), float) and isinstance(value.peak, float):
            tags.gains[str(getattr(value, "desc", "")).lower()] = gain, value.peak
        if (data := _data(value)) is not None and len(tags.binary) < MOST_TAGS:
            tags.binary[clean(_owned(value) if hasattr(value, "owner") else key)] = data
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


def _owned(value: Any) -> str:
    """`PRIV:TRAKTOR4`, `UFID:http://musicbrainz.org`: mutagen's own name of PRIV holds its data."""
    return f"{value.FrameID}:{value.owner}"


def _data(value: Any) -> bytes | None:
    """The bytes of a value that is no text."""
    if isinstance(value, list):  # MP4 free-form
        value = value[0] if value else None
    if isinstance(value, bytes):
        return None if list(_texts(value)) else bytes(value)
    for name in ("data", "value"):
        if isinstance(found := getattr(value, name, None), bytes) and not list(_texts(value)):
            return found
    return None


def _covers(key: str, value: Any) -> Iterator[Cover]:
    for one in value if isinstance(value, list) else [value]:
        data = one if isinstance(one, bytes | str) else getattr(one, "data", None) or getattr(one, "value", None)
        if isinstance(data, str):  # Vorbis comments: a picture block of FLAC, or a bare picture, in base64
            try:
                data = base64.b64decode(data)
            except ValueError:
                data = None
            if data and short_name(key) == "metadata_block_picture":
                yield _block(data)
                continue
        if not isinstance(data, bytes):
            yield Cover()
        elif short_name(key).startswith("cover art"):  # APEv2: a file name, a zero, the picture
            yield cover(data.partition(b"\0")[2])
        elif short_name(key) == "wm/picture":  # kind, length, and two texts of UTF-16 go before it
            start = min((at for magic in MAGIC if (at := data.find(magic)) >= 0), default=0)
            yield cover(data[start:], data[0])
        else:
            kind = getattr(one, "type", None)
            yield cover(bytes(data), int(kind) if isinstance(kind, int) else None)


def _block(data: bytes) -> Cover:
    from mutagen.flac import Picture

    try:
        picture = Picture(data)  # type: ignore[no-untyped-call]  # mutagen has no types
    except Exception:  # whatever its parser hits, as everywhere in mutagen
        return Cover(bytes=len(data))
    return cover(picture.data, picture.type)


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
