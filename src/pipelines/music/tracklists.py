"""Tracklists that people write: cue sheets and text, in whatever encoding; and cue sheets written back.

Text: a line a track, with a time (`[1:02:33]`, `62:33`, `(00:00)`, `[062]` for minutes) or without, numbered or not:
`01. [00:00] Artist - Title`. Lines that are no track (a heading, a link) are passed over.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.music.text import clean

LARGEST = 1 << 20
"""Bytes of a file that can be a tracklist."""

MOST = 2_000
"""Tracks of one list."""

OURS = ".phaze.cue"
"""How a cue sheet ends that we wrote: never read back as if a person had."""

LEGACY = ["cp932", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1257"]
"""What old programs wrote: Japanese, Central European, Cyrillic, Western, Greek, Turkish, Baltic."""

OTHER_SCRIPTS = ["cp932", "cp1251", "cp1253"]
"""Those whose words hold hardly any ASCII letters."""

LANGUAGES = {
    "cp1252": ("äöüß", "éèêëàâçôîïûùœæ", "áéíóúñü", "ãõáéíóúâêôçàü", "åäöøæéüè", "àèéìíòóùú", "ëïéèöüáó"),
    "cp1250": ("ąćęłńóśźż", "áčďéěíňóřšťúůýžäôľĺŕ", "áéíóöőúüű", "čćđšž"),
    "cp1254": ("çğışöüâîû",),
}
"""Letters beyond ASCII: German, French, Spanish, Portuguese, Nordic, Italian, Dutch; Polish, Czech and Slovak,
Hungarian, Croatian; Turkish. The first in whose letters all words are written is it:
a list of names is too little text for statistics."""

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class Written:
    """One track as somebody wrote it down; seconds from the start, None: no time given."""

    start: float | None
    artist: str | None
    title: str | None


# Bytes to text.


def decode(data: bytes) -> str:
    """By its mark, else UTF-16 where every other byte is 0, else UTF-8, else the likeliest old code page."""
    for mark, encoding in BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    if b"\0" in data[:400]:
        return data.decode("utf-16-le" if data[1:400:2].count(0) >= data[:400:2].count(0) else "utf-16-be", "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _decode_legacy(data)


def _decode_legacy(data: bytes) -> str:
    from charset_normalizer import from_bytes

    # Scripts without ASCII letters are told by their words alone: the keywords of a cue sheet would drown them.
    words = [word for word in re.split(rb"[\s\"]+", data) if any(byte > 127 for byte in word)]
    letters = re.sub(rb"[^A-Za-z\x80-\xff]", b"", b"".join(words))
    if sum(byte > 127 for byte in letters) > 0.6 * len(letters):
        best = from_bytes(b" ".join(words), cp_isolation=OTHER_SCRIPTS).best()
    else:
        for encoding, languages in LANGUAGES.items():
            text = data.decode(encoding, "replace")
            if _is_written_in(languages, text):
                return text
        best = from_bytes(data, cp_isolation=LEGACY).best()
    return data.decode("cp1252" if best is None else best.encoding, "replace")


def _is_written_in(languages: Sequence[str], text: str) -> bool:
    """Whether each word keeps to the letters of one of the languages, and nothing but letters and dashes is foreign."""
    if any(ord(c) > 127 and not c.isalpha() and c not in "–—‘’“”„…·°´«»" for c in text):  # noqa: RUF001
        return False
    words = {frozenset(word) - _ASCII for word in re.findall(r"[^\W\d_]+", text.lower())}
    return all(any(word <= set(letters) for letters in languages) for word in words)


_ASCII = set("abcdefghijklmnopqrstuvwxyz")


# Text to tracks.


def read_tracklist(path: Path) -> list[Written]:
    """The tracks of a cue sheet or a text; empty where it holds none, or is too large to be one. Raises OSError."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    return parse(decode(data)) if len(data) <= LARGEST else []


def parse(text: str) -> list[Written]:
    """A cue sheet where it has INDEX lines, else a text."""
    lines = [line.strip().lstrip("\ufeff") for line in text.splitlines()]
    if any(re.match(r"(?i)TRACK\s+\d+\s+AUDIO", line) for line in lines):
        return list(_cue(lines))[:MOST]
    return _text(lines)[:MOST]


def _cue(lines: Sequence[str]) -> Iterator[Written]:
    """Times go on across FILEs only if they are one recording: a second FILE ends it."""
    album: str | None = None
    current: dict[str, str] | None = None
    files = 0
    for line in lines:
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word == "FILE":
            files += 1
            if files > 1:
                break
        elif word == "TRACK":
            if current is not None:
                yield _cue_track(current, album)
            current = {}
        elif word in ("TITLE", "PERFORMER"):
            if current is None:
                album = _unquoted(rest) if word == "PERFORMER" else album
            else:
                current[word] = _unquoted(rest)
        elif word == "INDEX" and current is not None and re.match(r"0?1\s", rest):
            current["INDEX"] = rest.split(None, 1)[1]
    if current is not None:
        yield _cue_track(current, album)


def _cue_track(found: dict[str, str], album: str | None) -> Written:
    time = re.fullmatch(r"(\d{1,4}):(\d{1,2})(?::(\d{1,2}))?", found.get("INDEX", "").strip())
    start = None
    if time:
        start = round(int(time[1]) * 60 + int(time[2]) + int(time[3] or 0) / 75, 3)  # 75 frames a second
    return Written(start, clean(found.get("PERFORMER") or album or "") or None, clean(found.get("TITLE", "")) or None)


def _unquoted(text: str) -> str:
    match = re.match(r'"(.*)"', text)
    return match[1] if match else text


_TIME = r"(?:(\d{1,2}):)?(\d{1,3}):([0-5]\d)(?:[.,]\d+)?"
_NUMBER = r"(?:\#?\d{1,3}\s*[.):\]-]\s+|\#?\d{1,3}[.)]\s*)"
_LINE = re.compile(rf"(?:{_NUMBER})?[\[(<]?\s*{_TIME}\s*[\])>]?\s*(?:[-–—|:.]\s+)?(?:{_NUMBER})?(.+)")  # noqa: RUF001
_AFTER = re.compile(rf"(?:{_NUMBER})?(.+?)\s*[\[(]?\s*{_TIME}\s*[\])]?")
_MINUTES = re.compile(r"\[(\d{2,3})\]\s+(.+)")
_PLAIN = re.compile(rf"(?:{_NUMBER})(.+)")
_SPLIT = re.compile(r"\s+[-–—~]\s+|\s*[–—]\s*")  # noqa: RUF001


def _text(lines: Sequence[str]) -> list[Written]:
    timed = [row for line in lines if (row := _timed(line))]
    if len(timed) >= 2:
        return timed
    minutes = [(int(match[1]), match[2]) for line in lines if (match := _MINUTES.fullmatch(line))]
    if len(minutes) >= 2 and [row[0] for row in minutes] == sorted(row[0] for row in minutes):
        return [_track(60.0 * row[0], row[1]) for row in minutes]
    numbered = [_track(None, match[1]) for line in lines if (match := _PLAIN.fullmatch(line))]
    if len(numbered) >= 2:
        return numbered
    plain = [_track(None, line) for line in lines if _SPLIT.search(line) and not re.search(r"https?://", line)]
    return [row for row in [*timed, *plain] if row.artist] if len(plain) >= 2 else timed


def _timed(line: str) -> Written | None:
    if match := _LINE.fullmatch(line):
        hours, minutes, seconds, rest = match.groups()
    elif match := _AFTER.fullmatch(line):
        rest, hours, minutes, seconds = match.groups()
    else:
        return None
    if not re.search(r"\w", rest):
        return None
    return _track(float(int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)), rest)


def _track(start: float | None, text: str) -> Written:
    text = re.sub(r"(?i)^\(?(?:w/|with|mixed with)\)?\s+", "", text.strip())
    parts = _SPLIT.split(text, maxsplit=1)
    artist, title = (parts[0], parts[1]) if len(parts) == 2 else ("", text)
    return Written(start, clean(artist) or None, clean(title) or None)


# Back to a cue sheet.


def cue_sheet(file: str, tracks: Sequence[Written], title: str = "") -> str:
    """A cue sheet of one FILE in UTF-8; tracks without a time are left out."""
    rows = [track for track in tracks if track.start is not None]
    kind = "MP3" if file.lower().endswith(".mp3") else "AIFF" if file.lower().endswith((".aif", ".aiff")) else "WAVE"
    lines = [f'TITLE "{_quotable(title)}"'] if title else []
    lines.append(f'FILE "{_quotable(file)}" {kind}')
    for number, track in enumerate(rows, 1):
        assert track.start is not None
        frames = round(track.start * 75)
        lines.append(f"  TRACK {number:02d} AUDIO")
        lines.append(f'    TITLE "{_quotable(track.title or "ID")}"')
        lines.append(f'    PERFORMER "{_quotable(track.artist or "ID")}"')
        lines.append(f"    INDEX 01 {frames // 4500:02d}:{frames // 75 % 60:02d}:{frames % 75:02d}")
    return "\n".join(lines) + "\n"


def _quotable(text: str) -> str:
    """A cue sheet knows no escape: quotes become single ones, and a line stays a line."""
    return " ".join(text.replace('"', "'").split())


def beside(path: Path) -> list[Path]:
    """The cue sheets and texts that may belong to a recording: the same name, the likeliest first."""
    names = [path.with_suffix(".cue"), path.with_name(f"{path.name}.cue"), path.with_suffix(".CUE")]
    names += [path.with_suffix(".txt"), path.with_name(f"{path.name}.txt"), path.with_suffix(".tracklist")]
    names += [path.with_name(f"{path.stem} {word}.txt") for word in ("tracklist", "Tracklist", "tracks")]
    return [name for name in names if not name.name.endswith(OURS) and name.is_file()]
