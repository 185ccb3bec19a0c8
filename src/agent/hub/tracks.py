"""Reading the tracks: filters, order, and which of them are duplicates of each other."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from agent.hub.derived import values_of
from agent.hub.file_tasks import ANALYSIS, FINGERPRINT, METADATA
from agent.hub.schema import files, tracks
from pipelines.payload import text_path

SORTS: dict[str, tuple[sa.ColumnElement[Any], ...]] = {
    "artist": (sa.func.lower(tracks.c.artist), sa.func.lower(tracks.c.title)),
    "title": (sa.func.lower(tracks.c.title),),
    "duration": (tracks.c.duration,),
    "bpm": (tracks.c.bpm,),
    "key": (sa.cast(tracks.c.camelot, sa.Integer), tracks.c.camelot),  # 2A before 10A
    "loudness": (tracks.c.loudness,),
    "danceability": (tracks.c.danceability,),
    "path": (tracks.c.path,),
}

PITCHES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


class BadFilter(ValueError):
    """A filter or an order that cannot be understood; the message gives an example of what can."""


@dataclass(frozen=True)
class Track:
    """One present file as people see it. Seconds, beats a minute, LUFS; None is not known, or not yet."""

    id: int
    path: str
    artist: str | None
    title: str
    duration: float | None
    bpm: float | None
    bpm_confidence: float | None
    key: str | None
    scale: str | None
    camelot: str | None
    loudness: float | None
    danceability: float | None
    duplicates: str | None
    """Label of the group of files that sound the same, such as `d1`; None for a file alone."""
    problems: list[dict[str, str]]
    """{"service", "outcome", "reason"} of every task that did not end in `done`."""
    pending: list[str]
    """Tasks whose result is still awaited."""
    encoded_path: str = ""
    """Percent-encoded: finds the file again whatever bytes its name holds; `path` is for people."""

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object; `path` has all characters of the name."""
        return {**asdict(self), "path": text_path(self.encoded_path) or self.path}


@dataclass(frozen=True)
class TrackFilter:
    """Which tracks. `parse` reads what people type."""

    bpm: tuple[float, float] | None = None
    """Lowest and highest, both included."""
    camelot: str | None = None
    words: tuple[str, ...] = ()
    """All of them must occur in artist, title, album or path."""
    problems: bool = False
    """Only tracks with a task that did not end in `done`."""

    @classmethod
    def parse(cls, *, bpm: str = "", key: str = "", text: str = "", problems: bool = False) -> TrackFilter:
        """From `120..128`, `8A` or `A minor` or `Am`, and free words. Raises BadFilter."""
        return cls(
            bpm=parse_bpm(bpm) if bpm.strip() else None,
            camelot=parse_key(key) if key.strip() else None,
            words=tuple(text.encode("utf-8", "replace").decode("utf-8").casefold().split()),
            problems=problems,
        )

    def clauses(self) -> list[sa.ColumnElement[bool]]:
        """The same for SQL."""
        found: list[sa.ColumnElement[bool]] = []
        if self.bpm is not None:
            found.append(tracks.c.bpm.between(*self.bpm))
        if self.camelot is not None:
            found.append(tracks.c.camelot == self.camelot)
        if self.problems:
            found.append(tracks.c.has_problem)
        # instr, unlike LIKE, gives % and _ no meaning.
        found += [sa.func.instr(tracks.c.search, word) > 0 for word in self.words]
        return found


def parse_bpm(text: str) -> tuple[float, float]:
    """`120..128`, `120..`, `..128`, or `128` for a tempo that rounds to it. Raises BadFilter."""
    number = r"(\d{1,4}(?:\.\d{1,3})?)"
    if match := re.fullmatch(rf"\s*{number}\s*", text):
        return float(match[1]) - 0.5, float(match[1]) + 0.5
    match = re.fullmatch(rf"\s*{number}?\s*(?:\.\.|-|–)\s*{number}?\s*", text)  # noqa: RUF001
    if match is None or not (match[1] or match[2]):
        raise BadFilter(f"{text!r} is not a tempo; give a range such as 120..128, or one number")
    low, high = float(match[1] or 0), float(match[2] or 9999)
    if low > high:
        raise BadFilter(f"{text!r} is an empty range; give the lower tempo first, such as {high:g}..{low:g}")
    return low, high


def parse_key(text: str) -> str:
    """The Camelot code of `8A`, `A minor`, `Am`, `F# major`, `Bb` and the like. Raises BadFilter.

    A step round the wheel is a fifth; 8B is C major and 8A its relative minor.
    """
    if match := re.fullmatch(r"\s*(1[0-2]|[1-9])\s*([ABab])\s*", text):
        return f"{match[1]}{match[2].upper()}"
    match = re.fullmatch(r"\s*([A-Ga-g])([#♯b♭]?)\s*(m|min|minor|maj|major)?\s*", text, re.IGNORECASE)
    if match is None:
        raise BadFilter(f"{text!r} is not a key; give a Camelot code such as 8A, or a key such as A minor or F#")
    mode = match[3] or ""
    minor = mode == "m" or mode.lower() in ("min", "minor")
    pitch = PITCHES[match[1].upper()] + {"": 0, "#": 1, "♯": 1, "b": -1, "♭": -1}[match[2].lower()]
    fifths = (pitch + (3 if minor else 0)) * 7 % 12
    return f"{(fifths + 7) % 12 + 1}{'A' if minor else 'B'}"


def count(connection: sa.Connection, chosen: TrackFilter) -> int:
    """How many tracks pass the filter."""
    return int(connection.scalar(sa.select(sa.func.count()).select_from(tracks).where(*chosen.clauses())) or 0)


def read(
    connection: sa.Connection,
    groups: Mapping[str, str],
    chosen: TrackFilter,
    *,
    sort: str = "",
    limit: int | None = None,
    offset: int = 0,
) -> list[Track]:
    """The tracks in order. `sort`: one of SORTS or `duplicates`, `-` before it for descending; unknowns come last."""
    query = sa.select(tracks, files.c.path.label("encoded_path")).join(files, files.c.id == tracks.c.file_id)
    query = query.where(*chosen.clauses()).order_by(*order(sort, groups)).offset(offset)
    rows = connection.execute(query if limit is None else query.limit(limit))
    return [_track(row, groups.get(str(row.file_id))) for row in rows]


def read_some(connection: sa.Connection, groups: Mapping[str, str], ids: Collection[int]) -> list[Track]:
    """The tracks of these files, as far as they are there, in no order."""
    query = sa.select(tracks, files.c.path.label("encoded_path")).join(files, files.c.id == tracks.c.file_id)
    wanted = tracks.c.file_id.in_(values_of(sorted(ids)))
    return [_track(row, groups.get(str(row.file_id))) for row in connection.execute(query.where(wanted))]


def order(sort: str, groups: Mapping[str, str]) -> list[sa.ColumnElement[Any]]:
    """ORDER BY of a sort's name. Raises BadFilter."""
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name == "duplicates":
        place = {str(file_id): int(label[1:]) for file_id, label in groups.items()}
        table = sa.func.json_extract(json.dumps(place), sa.func.printf('$."%d"', tracks.c.file_id))
        columns: Sequence[sa.ColumnElement[Any]] = (table,)
    elif not name:
        columns = SORTS["artist"]
    elif name in SORTS:
        columns = SORTS[name]
    else:
        raise BadFilter(f"{name!r} is not a column to sort by; there are {', '.join(SORTS)}, duplicates")
    ordered = [(column.desc() if descending else column.asc()).nulls_last() for column in columns]
    return [*ordered, tracks.c.path.asc(), tracks.c.file_id.asc()]


def _track(row: sa.Row[Any], group: str | None) -> Track:
    outcomes = {
        METADATA: row.metadata_outcome,
        FINGERPRINT: row.fingerprint_outcome,
        ANALYSIS: row.analysis_outcome,
    }
    shown = ("path", "encoded_path", "artist", "title", "duration", "bpm", "bpm_confidence", "key", "scale", "camelot")
    return Track(
        id=row.file_id,
        **{name: row._mapping[name] for name in (*shown, "loudness", "danceability")},
        duplicates=group,
        problems=json.loads(row.problems),
        pending=[service for service, outcome in outcomes.items() if outcome is None],
    )
