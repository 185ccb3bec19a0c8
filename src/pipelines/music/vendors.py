"""What DJ programs and taggers leave in a file beside the usual tags, as far as its meaning is well known.

    Serato         GEOB `Serato Autotags`: BPM and gains, as text (documented by J. Holzhaus, serato-tags)
    Mixed In Key   TXXX `EnergyLevel`; GEOB and free-form `key`, `energy`: JSON in base64; comments `8A - Energy 7`
    MusicBrainz    ids in UFID, TXXX, Vorbis comments, APEv2, MP4 and ASF (picard.musicbrainz.org, Appendix B)
    ReplayGain     TXXX, Vorbis comments and the like; RVA2; R128_* of Opus (RFC 7845, 5.2.1)
    Traktor, rekordbox   whose frames are told by name alone

Everything else stays raw. Nothing here raises: a frame that is not as documented says nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, Field

from pipelines.music import text

Raw = Mapping[str, Sequence[str]]
Binary = Mapping[str, bytes]

MINOR = ("Abm", "Ebm", "Bbm", "Fm", "Cm", "Gm", "Dm", "Am", "Em", "Bm", "F#m", "C#m")
MAJOR = ("B", "F#", "Db", "Ab", "Eb", "Bb", "F", "C", "G", "D", "A", "E")
"""Camelot 1A to 12A, and 1B to 12B."""

STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11, "H": 11}

MUSICBRAINZ = {
    "recording": ("musicbrainz track id", "musicbrainz_trackid", "musicbrainz/track id"),
    "release_track": ("musicbrainz release track id", "musicbrainz_releasetrackid", "musicbrainz/release track id"),
    "release": ("musicbrainz album id", "musicbrainz_albumid", "musicbrainz/album id"),
    "release_group": ("musicbrainz release group id", "musicbrainz_releasegroupid", "musicbrainz/release group id"),
    "artist": ("musicbrainz artist id", "musicbrainz_artistid", "musicbrainz/artist id"),
    "album_artist": ("musicbrainz album artist id", "musicbrainz_albumartistid", "musicbrainz/album artist id"),
    "work": ("musicbrainz work id", "musicbrainz_workid", "musicbrainz/work id"),
}
"""ours -> the names, in lower case. What files call a track id has been a recording's since 2011."""

UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.I)
DECIBELS = re.compile(r"\s*([+-]?\d{1,3}(?:\.\d+)?)\s*(?:db)?\s*$", re.I)
ENERGY = re.compile(r"\bEnergy(?:\s*Level)?\s*[:-]?\s*(10|[1-9])(?!\d)", re.I)
COMMENT = re.compile(r"\s*(1[0-2]|0?[1-9])([AB])(?:/\S+)?\s*(?:-|$)")
"""How Mixed In Key begins a comment; two keys are parted by a slash."""

R128_TO_REPLAYGAIN = 5.0
"""Decibels: R128 gains aim at -23 LUFS, ReplayGain 2.0 at -18."""

PROGRAMS = {
    "serato": re.compile(r"^geob:serato |^----:com\.serato\.dj:|^serato_", re.I),
    "traktor": re.compile(r"^priv:traktor|^----:com\.native-instruments\.traktor:|^traktor4$", re.I),
    "mixedinkey": re.compile(r"^geob:(key|energy|cuepoints)$|^----:com\.mixedinkey\.|energylevel$", re.I),
    "rekordbox": re.compile(r"^(geob|priv|txxx):.*(rekordbox|pioneer)|^----:.*(rekordbox|pioneer)", re.I),
}
"""Program -> the names of its frames."""


class ReplayGain(BaseModel):
    """Decibels to add for -18 LUFS, and peaks (1.0: full scale), as written; None: not written."""

    track_gain: float | None = None
    track_peak: float | None = None
    album_gain: float | None = None
    album_peak: float | None = None


class Vendors(BaseModel):
    """What one or another program has written, apart from the tags that all write."""

    programs: dict[str, dict[str, float | str]] = Field(default_factory=dict)
    energy: int | None = None
    key: str | None = None
    bpm: float | None = None


def short(name: str) -> str:
    """A frame's own name, in lower case: of `TXXX:EnergyLevel` and `----:com.apple.iTunes:ENERGYLEVEL` the same."""
    return name.lower().rpartition(":")[2] if name[:4].lower() in ("txxx", "----") else name.lower()


def camelot(written: str) -> str | None:
    """A key in any notation that is in use as a Camelot code: `8A`, `08A`, `Am`, `A min`, `a-moll`, `1m` (Open Key).

    None for what is no key, as `o` and `off-key` of Serato and ID3.
    """
    said = written.strip().replace("\u266f", "#").replace("\u266d", "b")
    if wheel := re.fullmatch(r"(1[0-2]|0?[1-9])\s*([ABabmd])", said):
        number, mode = int(wheel[1]), wheel[2].lower()
        if mode in "md":  # Open Key: 1d is C major, Camelot 8B
            number, mode = (number + 6) % 12 + 1, "a" if mode == "m" else "b"
        return f"{number}{mode.upper()}"
    name = re.fullmatch(r"([A-Ha-h])\s*(#|b|is|es|s|sharp|flat)?[\s-]*(m|M|(?i:min|minor|moll|maj|major|dur))?", said)
    if name is None:
        return None
    if name[1].islower() and not name[3]:
        return None  # a minor key to some, a letter to others
    letter, sign, mode = name[1].upper(), name[2] or "", name[3] or ""
    step = (STEPS[letter] + {"#": 1, "is": 1, "sharp": 1, "b": -1, "es": -1, "s": -1, "flat": -1}.get(sign, 0)) % 12
    minor = mode == "m" or mode.lower() in ("min", "minor", "moll")
    names = MINOR if minor else MAJOR
    place = next(n for n, each in enumerate(names) if _step(each) == step)
    return f"{place + 1}{'A' if minor else 'B'}"


def _step(name: str) -> int:
    return (STEPS[name[0]] + name.count("#") - name[1:].count("b")) % 12


def read_vendors(raw: Raw, binary: Binary) -> Vendors:
    """What is understood of all that is there."""
    found = Vendors(programs={program: {} for program, names in PROGRAMS.items() if _has(names, raw, binary)})
    if (tags := binary.get("GEOB:Serato Autotags")) is not None:
        found.programs["serato"] |= _autotags(tags)
    key, energy = _mixed_in_key(raw, binary)
    if key or energy:
        said = {name: value for name, value in (("key", key), ("energy", energy)) if value is not None}
        found.programs["mixedinkey"] = {**found.programs.get("mixedinkey", {}), **said}
    found.key, found.energy = key, energy
    bpm = found.programs.get("serato", {}).get("bpm")
    found.bpm = bpm if isinstance(bpm, float) else None
    return found


def _has(names: re.Pattern[str], raw: Raw, binary: Binary) -> bool:
    return any(names.search(name) for name in (*raw, *binary))


def _autotags(data: bytes) -> dict[str, float | str]:
    """Two bytes of version, then three numbers as text, each ended by a zero: BPM, automatic gain, gain in dB."""
    if data[:2] != b"\x01\x01":
        return {}
    words = data[2:].split(b"\0")[:3]
    numbers = [float(word) if re.fullmatch(rb"-?\d{1,3}(\.\d{1,6})?", word) else None for word in words]
    named = dict(zip(("bpm", "auto_gain", "gain"), numbers, strict=False))
    return {name: value for name, value in named.items() if value is not None and (name != "bpm" or 20 <= value < 1000)}


def _mixed_in_key(raw: Raw, binary: Binary) -> tuple[str | None, int | None]:
    """Key and energy (1 to 10): from its own frames, else from the comment that it writes."""
    key: str | None = None
    energy: int | None = None
    for name, values in raw.items():
        if short(name) == "energylevel" and (level := text.leading_number(values[0])) is not None and level <= 10:
            energy = level
    documents = [*(data for name, data in binary.items() if name in ("GEOB:Key", "GEOB:Energy"))]
    documents += [values[0].encode() for name, values in raw.items() if name.lower().startswith("----:com.mixedinkey.")]
    for document in map(_json, documents):
        if key is None and isinstance(said := document.get("key"), str):
            key = camelot(said) and text.clean(said)
        if energy is None and type(said := document.get("energyLevel")) is int and 1 <= said <= 10:
            energy = said
    for comment in _comments(raw):
        if energy is None and (match := ENERGY.search(comment)):
            energy = int(match[1])
        if key is None and (match := COMMENT.match(comment)):
            key = f"{int(match[1])}{match[2]}"
    return key, energy


def _json(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(base64.b64decode(data, validate=False))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _comments(raw: Raw) -> Iterable[str]:
    for name, values in raw.items():
        if name.lower().startswith("comm:") or name.lower() in ("\u00a9cmt", "comment", "description"):
            yield from values


def musicbrainz(raw: Raw, binary: Binary) -> dict[str, str]:
    """ours -> UUID, of those that are one."""
    by_name = {short(name): values[0] for name, values in raw.items() if values}
    found = {ours: by_name[name] for ours, names in MUSICBRAINZ.items() for name in names if name in by_name}
    if (ufid := binary.get("UFID:http://musicbrainz.org")) is not None:
        found["recording"] = ufid.decode("ascii", "replace")
    return {ours: value.strip().lower() for ours, value in found.items() if UUID.fullmatch(value.strip())}


def replay_gain(raw: Raw, adjustments: Mapping[str, tuple[float, float]]) -> ReplayGain | None:
    """From text, else from RVA2 (`adjustments`: its name -> gain in dB, peak), else from Opus; None: nothing there."""
    by_name = {short(name): values[0] for name, values in raw.items() if values}
    found = ReplayGain()
    for kind in ("track", "album"):
        gain = _number(by_name.get(f"replaygain_{kind}_gain"))
        peak = _number(by_name.get(f"replaygain_{kind}_peak"))
        if gain is None and kind in adjustments:
            gain, peak = adjustments[kind]
        if gain is None and (r128 := by_name.get(f"r128_{kind}_gain")) and re.fullmatch(r"-?\d{1,5}", r128.strip()):
            gain = int(r128) / 256 + R128_TO_REPLAYGAIN
        setattr(found, f"{kind}_gain", None if gain is None or abs(gain) > 100 else round(gain, 2))
        setattr(found, f"{kind}_peak", None if peak is None or not 0 <= peak < 100 else round(peak, 6))
    return found if found != ReplayGain() else None


def _number(written: str | None) -> float | None:
    match = DECIBELS.match(written) if written else None
    return float(match[1]) if match else None
