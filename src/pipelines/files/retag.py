"""Write text tags with mutagen, in every family of containers, so that they can be put back exactly as they were.

A *key* is the container's own name of a tag (`TPE1`, `TXXX:mood`, `©ART`, `ARTIST`); its *values* are JSON that `_set`
makes the same tag from again. Pictures and binary tags are never touched.
"""

from __future__ import annotations

import base64
import importlib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, BinaryIO

from pipelines.files.folders import Refused

KEYS: dict[str, tuple[str, str, str, str, str]] = {
    # ours: ID3v2.4, MP4, Vorbis comment, APEv2, ASF; as MusicBrainz Picard maps them
    "artist": ("TPE1", "©ART", "artist", "Artist", "Author"),
    "title": ("TIT2", "©nam", "title", "Title", "Title"),
    "album": ("TALB", "©alb", "album", "Album", "WM/AlbumTitle"),
    "album_artist": ("TPE2", "aART", "albumartist", "Album Artist", "WM/AlbumArtist"),
    "date": ("TDRC", "©day", "date", "Year", "WM/Year"),
    "genre": ("TCON", "©gen", "genre", "Genre", "WM/Genre"),
    "track": ("TRCK", "trkn", "tracknumber", "Track", "WM/TrackNumber"),
    "disc": ("TPOS", "disk", "discnumber", "Disc", "WM/PartOfSet"),
    "bpm": ("TBPM", "tmpo", "bpm", "BPM", "WM/BeatsPerMinute"),
    "key": ("TKEY", "----:com.apple.iTunes:initialkey", "initialkey", "INITIALKEY", "WM/InitialKey"),
    "isrc": ("TSRC", "----:com.apple.iTunes:ISRC", "isrc", "ISRC", "WM/ISRC"),
}

OTHERS: dict[str, tuple[str, ...]] = {
    "album_artist": ("album artist", "album_artist"),
    "date": ("year",),
    "track": ("track",),
    "disc": ("disc",),
    "bpm": ("tempo",),
    "key": ("key",),
}
"""Names that some programs use in Vorbis comments and APEv2 for the same: they would contradict what is written."""

FAMILIES = ("id3", "mp4", "vorbis", "ape", "asf")

FREE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,63}")

MOST_CHARACTERS = 20_000
"""Of what is written, and of what is kept for an undo, for one file."""

Old = dict[str, Any]
"""{"family": one of FAMILIES, "keys": {key: values, or null where there was no such tag}}."""


class _Named:
    """An open file under another name: mutagen judges by suffix as well as by content."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def write(file: BinaryIO, name: str, tags: Mapping[str, list[str]]) -> Old | None:
    """Write our tags into the open file (r+b); what was there before, or None where all of it is there already.

    Raises Refused (`no-tags`, `bad-tags`, `bad-value`, `tags-too-large`).
    """
    audio, family = _load(file, name)
    wanted: dict[str, Any] = {}
    for ours, values in tags.items():
        key = _key(ours, family)
        wanted |= dict.fromkeys(_contradicting(audio.tags, family, ours, key))
        wanted[_as_spelled(audio.tags, family, key)] = _values(family, ours, values)
    return _change(audio, file, name, family, wanted)


def restore(file: BinaryIO, name: str, old: Old) -> Old | None:
    """Put back what `write` answered. Raises Refused."""
    audio, family = _load(file, name)
    keys = old.get("keys")
    if old.get("family") != family or not isinstance(keys, dict):
        raise Refused("bad-tags", f"these tags are not of this file: it has {family} tags")
    return _change(audio, file, name, family, keys)


def _change(audio: Any, file: BinaryIO, name: str, family: str, wanted: Mapping[str, Any]) -> Old | None:
    try:
        before = {key: _get(audio.tags, family, key) for key in wanted}
        if before == dict(wanted):
            return None
        if len(repr(before)) > MOST_CHARACTERS or len(repr(wanted)) > MOST_CHARACTERS:
            raise Refused("tags-too-large", f"more than {MOST_CHARACTERS} characters")
        for key, values in wanted.items():
            _set(audio.tags, family, key, values)
        file.seek(0)
        audio.save(_Named(file, name), **_save_options(audio, family))
    except (Refused, OSError):
        raise
    except Exception as error:
        if isinstance(error.__context__, OSError) and error.__context__.errno is not None:
            raise error.__context__ from error  # mutagen wraps what the disk says
        raise Refused("bad-tags", f"{type(error).__name__}: {error}"[:300]) from error
    return {"family": family, "keys": before}


def _load(file: BinaryIO, name: str) -> tuple[Any, str]:
    """mutagen's object, with tags, and their family. A misleading name is not asked a second time."""
    import mutagen

    for called in (name, ""):
        file.seek(0)
        try:
            audio = mutagen.File(_Named(file, called))
        except OSError:
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:300]
            continue
        if audio is None:
            raise Refused("no-tags", "a container whose tags are not known")
        try:
            if audio.tags is None:
                audio.add_tags()
        except Exception as error:
            raise Refused("no-tags", f"this container takes no tags ({type(error).__name__})") from None
        return audio, _family(audio.tags)
    raise Refused("bad-tags", problem)


def _family(tags: Any) -> str:
    from mutagen._vorbis import VComment
    from mutagen.apev2 import APEv2
    from mutagen.asf import ASFTags
    from mutagen.id3 import ID3
    from mutagen.mp4 import MP4Tags

    for family, kind in zip(FAMILIES, (ID3, MP4Tags, VComment, APEv2, ASFTags), strict=True):
        if isinstance(tags, kind):
            return family
    raise Refused("no-tags", f"{type(tags).__name__} is not written")


def _save_options(audio: Any, family: str) -> dict[str, Any]:
    """ID3 keeps its version (2.2 becomes 2.3, which mutagen can write): old players know no 2.4."""
    if family != "id3":
        return {}
    version = getattr(audio.tags, "version", (2, 4, 0))
    if version[:2] >= (2, 4) or version[0] < 2:
        return {}
    audio.tags.update_to_v23()
    return {"v2_version": 3}


def _as_spelled(tags: Any, family: str, key: str) -> str:
    """The key as the file has it, where case does not count."""
    if family not in ("vorbis", "ape"):
        return key
    return next((str(found) for found in tags.keys() if found.lower() == key.lower()), key)  # noqa: SIM118


def _contradicting(tags: Any, family: str, ours: str, key: str) -> list[str]:
    """Other keys of the file that say the same: they go when it is written."""
    if family in ("id3", "mp4"):
        return []
    names = {str(found) for found in tags.keys()}  # noqa: SIM118 - lists of pairs, some of them
    if family == "asf":
        return [name for name in names if name != key and name.lower() == key.lower()]
    return [name for name in names if name.lower() != key.lower() and name.lower() in OTHERS.get(ours, ())]


def _key(ours: str, family: str) -> str:
    if ours in KEYS:
        return KEYS[ours][FAMILIES.index(family)]
    if not FREE_NAME.fullmatch(ours):
        raise Refused("bad-value", f"{ours[:80]!r} is not a tag's name; known are {', '.join(KEYS)}")
    return {"id3": f"TXXX:{ours}", "mp4": f"----:com.apple.iTunes:{ours}"}.get(family, ours)


def _values(family: str, ours: str, values: list[str]) -> Any:
    """Our texts as the family's JSON; None removes the tag."""
    if not values:
        return None
    if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for value in values for c in value):
        raise Refused("bad-value", f"{ours} holds characters that are no text")
    if family == "id3":
        return [{"encoding": 3, "text": values}]
    if family == "mp4":
        return _mp4_values(ours, values)
    if family == "asf":
        return [{"type": 0, "value": value} for value in values]
    return values


def _mp4_values(ours: str, values: list[str]) -> Any:
    if ours in ("track", "disc"):
        match = re.fullmatch(r"(\d{1,4})(?:/(\d{1,4}))?", values[0])
        if match is None or len(values) > 1:
            raise Refused("bad-value", f"{ours} is a number here, such as 3 or 3/12")
        return [[int(match[1]), int(match[2] or 0)]]
    if ours == "bpm":
        match = re.fullmatch(r"(\d{1,3})(?:\.\d+)?", values[0])
        if match is None or len(values) > 1:
            raise Refused("bad-value", "bpm is a number here, such as 128")
        return [round(float(values[0]))]
    if ours not in KEYS or KEYS[ours][1].startswith("----"):
        return [{"data": base64.b64encode(value.encode()).decode(), "format": 1} for value in values]
    return values


def _get(tags: Any, family: str, key: str) -> Any:
    """The values of a key as JSON; None if there is no such tag. Raises Refused for what is no text."""
    if family == "id3":
        frames = tags.getall(key)
        return [{"encoding": int(f.encoding), "text": [str(text) for text in f.text]} for f in frames] or None
    if key not in tags:
        return None
    value = tags[key]
    if family == "mp4":
        return [_mp4_json(part) for part in value]
    if family == "asf":
        return [_asf_json(part) for part in value]
    if family == "ape" and type(value).__name__ != "APETextValue":
        raise Refused("bad-tags", f"{key} is there and is no text")
    return [str(part) for part in value]


def _mp4_json(part: Any) -> Any:
    if isinstance(part, bytes):
        return {"data": base64.b64encode(part).decode(), "format": int(getattr(part, "dataformat", 1))}
    return list(part) if isinstance(part, tuple) else part


def _asf_json(part: Any) -> Any:
    if isinstance(part.value, bytes):
        raise Refused("bad-tags", "a tag is there and is no text")
    return {"type": int(part.TYPE), "value": part.value}


def _set(tags: Any, family: str, key: str, values: Any) -> None:
    if family == "id3":
        _set_id3(tags, key, values)
    elif values is None:
        if key in tags:
            del tags[key]
    elif family == "mp4":
        tags[key] = [_mp4_part(part) for part in values]
    elif family == "asf":
        make: Any = importlib.import_module("mutagen.asf").ASFValue
        tags[key] = [make(part["value"], part["type"]) for part in values]
    else:
        tags[key] = list(values)


def _mp4_part(part: Any) -> Any:
    if isinstance(part, dict):
        free_form: Any = importlib.import_module("mutagen.mp4").MP4FreeForm
        return free_form(base64.b64decode(part["data"]), part["format"])
    return tuple(part) if isinstance(part, list) else part


def _set_id3(tags: Any, key: str, values: Any) -> None:
    from mutagen.id3 import Frames

    name, _, described = key.partition(":")
    more = {"desc": described} if described else {}
    frames = [Frames[name](encoding=part["encoding"], text=part["text"], **more) for part in values or []]
    tags.setall(key, frames)
