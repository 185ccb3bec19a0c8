"""scan_live_set: a long recording becomes its tracklist.

    beside it: a cue sheet or text        somebody's word for the order, names and times
    its fingerprint -> the library's index    which tracks are heard from when to when, at which tempo

The index is somewhere else (the hub has it): `ctx.ask("prints", ...)`. Nothing numeric is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import InputRejected, NotAnswered
from pipelines.music.fingerprint import Fingerprint, fingerprint
from pipelines.music.limits import decode_seconds
from pipelines.music.on_file import on_file
from pipelines.music.tracklists import LARGEST, Written, beside, read_tracklist
from pipelines.payload import FilePayload, TaskResult, decode_path, encode_path

IMPOSTORS = 0.367
"""Bit error rate from which another recording cannot be told from the same: no confidence is left there."""

SHORTEST_TRACK = 20.0
"""Seconds under which something heard is a quotation, a loop or an accident, not a track of the set."""

COPY = 0.8
"""Share of the set, heard in one file as long, from which that file is another copy of the set."""

LONGEST_TRACK = 20 * 60.0
"""Seconds above which a file of the library is a set of its own: it names a stretch only where no track does."""

SHORTEST_GAP = 15.0
"""Seconds between two tracks that are worth a line."""

SEAM = 10.0
"""Seconds before (after) what was heard in which a track may have begun (ended), hidden under another one."""

MATCHED = 30.0
"""Seconds by which a written time may miss what is heard: people note when the blend begins, or when they notice."""


class LiveSetPayload(FilePayload):
    """One recording of a set. `version` is its sha256 plus the profile's name."""

    tracklist: str | None = None
    """Percent-encoded path of a .cue or text tracklist; None: look beside the recording."""


class Heard(BaseModel):
    """One stretch of a set that is a stretch of a file of the library. Seconds."""

    file_id: int
    start: float
    """In the set."""
    end: float
    begin: float
    """In the file."""
    finish: float
    length: float
    """Of the whole file."""
    ber: float
    """Bit error rate of the fingerprints: 0 is the same, 0.30 the limit."""
    artist: str | None = None
    title: str | None = None
    path: str = ""
    """Percent-encoded."""


class Hearing(BaseModel):
    """What the index answers. `indexed`: how many prints it knows; `waiting`: how many it has yet to read."""

    heard: list[Heard]
    indexed: int = 0
    waiting: int = 0


class IndexAway(ConnectionError):
    """The library's index does not answer, or not yet; says why. No fault of the set."""


class SetTrack(BaseModel):
    """One track of a set; seconds from its start."""

    start: float = Field(ge=0)
    end: float = Field(ge=0)
    artist: str | None = None
    title: str | None = None
    confidence: float = Field(ge=0, le=1)
    """1: bit for bit; 0: as different as other music. 0.5 for what is only written."""
    source: Literal["heard", "written", "both"] = "heard"
    file_id: int | None = None
    path: str | None = None
    """Percent-encoded: the library's file."""
    tempo: float | None = None
    """How fast the set plays the library's file: 1.04 is 4 % faster."""


class WrittenTrack(BaseModel):
    """One track of the list that somebody wrote; `start` in seconds, None where no time is given."""

    start: float | None = None
    artist: str | None = None
    title: str | None = None


class Gap(BaseModel):
    """Where no track is known; seconds from the set's start."""

    start: float
    end: float


class Tracklist(TaskResult):
    """The tracks of a set in order of their starts; they overlap where they are blended.

    `partial`: `no-tracks` (nothing is heard and nothing is written), or what the fingerprint says (`short`).
    """

    duration: float = 0.0
    tracks: list[SetTrack] = Field(default_factory=list)
    gaps: list[Gap] = Field(default_factory=list)
    written: list[WrittenTrack] = Field(default_factory=list, description="the list as it was read, all of it")
    tracklist: str | None = Field(default=None, description="the list beside it that was read, percent-encoded")
    indexed: int = Field(default=0, description="fingerprints that the set was compared with")
    warnings: list[str] = Field(default_factory=list)


@task(Policy(timeout=decode_seconds, dependency=lambda _payload: "hub:prints"))
async def scan_live_set(ctx: TaskContext, payload: LiveSetPayload) -> Tracklist:
    """The tracks of one set. Raises what `fingerprint` does, IndexAway (retried; the circuit counts it), NotGranted."""
    given = None if payload.tracklist is None else decode_path(payload.tracklist)
    path = decode_path(payload.path)
    found, written, used = await ctx.child(on_file, payload, read_set, path, given, payload.version)
    await ctx.progress(0.8, f"{found.items} items")
    hearing = await hear(ctx, found.raw) if found.items else Hearing(heard=[])
    return tracklist_of(hearing, written, found, used=used, file_id=ctx.record_id)


async def hear(ctx: TaskContext, raw: str) -> Hearing:
    """Where the library's files occur in a fingerprint (`prints.encode_items`). Raises IndexAway, NotGranted."""
    try:
        return Hearing.model_validate(await ctx.ask("prints", {"raw": raw}))
    except NotAnswered as error:
        raise IndexAway(str(error)) from None
    except ValidationError:
        raise IndexAway("the hub's answer is none of an index; is it of this version?") from None


def read_set(path: Path, given: Path | None, version: str = "") -> tuple[Fingerprint, list[Written], str | None]:
    """The print of a set, the tracks written down for it, and the list that they come from (percent-encoded).

    Raises what `fingerprint` raises, and InputRejected for a list that was named and cannot be read.
    """
    written: list[Written] = []
    used: Path | None = None
    if given is not None and not (given.is_file() and given.stat().st_size <= LARGEST):
        raise InputRejected("bad-tracklist", "the tracklist is no file, or too large to be one")
    for used in [given] if given is not None else beside(path):
        if written := read_tracklist(used):
            break
    return fingerprint(path, version), written, encode_path(used) if written and used is not None else None


def tracklist_of(
    hearing: Hearing, written: Sequence[Written], found: Fingerprint, *, used: str | None = None, file_id: str = ""
) -> Tracklist:
    """What is heard and what is written, put together. `file_id` is the set's own, which it is not a track of."""
    duration = found.duration or 0.0
    heard = [row for row in hearing.heard if str(row.file_id) != file_id]
    tracks = merge(choose(heard, duration), written, duration)
    result = Tracklist(
        outcome=found.outcome,
        reason=found.reason,
        duration=duration,
        tracks=tracks,
        gaps=gaps(tracks, duration),
        written=[WrittenTrack(start=row.start, artist=row.artist, title=row.title) for row in written],
        tracklist=used,
        indexed=hearing.indexed,
        warnings=list(found.warnings),
    )
    if hearing.waiting:
        result.warnings.append(f"index-behind: {hearing.waiting} fingerprints were not indexed yet")
    if not tracks and result.outcome == "done":
        result.outcome, result.reason = "partial", "no-tracks"
    return result


def choose(heard: Iterable[Heard], duration: float) -> list[SetTrack]:
    """The stretches that are tracks: of several accounts of the same moment the surest one stays.

    Copies of the whole set, and sets that share a part with it, give way to the tracks themselves.
    """
    rows = [
        row
        for row in heard
        if row.end - row.start >= SHORTEST_TRACK and min(row.length, row.end - row.start) < COPY * duration
    ]
    rows.sort(key=lambda row: (row.length > LONGEST_TRACK, -(row.end - row.start) * (1 - row.ber / IMPOSTORS)))
    kept: list[Heard] = []
    for row in rows:
        shared = sum(max(0.0, min(row.end, mine.end) - max(row.start, mine.start)) for mine in kept)
        if shared <= (0.5 if row.length <= LONGEST_TRACK else 0.1) * (row.end - row.start):
            kept.append(row)
    kept.sort(key=lambda row: row.start)
    tracks = [_track(row, duration) for row in kept]
    for track, following in pairwise(tracks):
        if 0 < following.start - track.end < SHORTEST_GAP:  # a blend in which neither is itself
            track.end = following.start
    return tracks


def _track(row: Heard, duration: float) -> SetTrack:
    """Its start and end in the set, drawn out over a blend to the file's own where that is near."""
    tempo = (row.finish - row.begin) / (row.end - row.start)
    before, after = row.begin / tempo, (row.length - row.finish) / tempo
    start = row.start - (before if before <= SEAM else 0.0)
    end = row.end + (after if after <= SEAM else 0.0)
    return SetTrack(
        start=round(max(0.0, start), 1),
        end=round(min(end, duration) if duration else end, 1),
        artist=row.artist,
        title=row.title,
        confidence=round(max(0.0, 1 - row.ber / IMPOSTORS), 3),
        file_id=row.file_id,
        path=row.path or None,
        tempo=1.0 if abs(tempo - 1) < 0.004 else round(tempo, 3),
    )


def merge(heard: Sequence[SetTrack], written: Sequence[Written], duration: float) -> list[SetTrack]:
    """What is written fills in what is not heard; where both speak of one moment, times are heard, names the library's.

    A written name stands in where the library's file has none. Tracks without a time have no place among them.
    """
    rows = sorted((row for row in written if row.start is not None), key=lambda row: row.start or 0.0)
    rows = [row for row in rows if not duration or (row.start or 0.0) < duration]
    merged = list(heard)
    told: set[int] = set()
    for place, row in enumerate(rows):
        start = row.start or 0.0
        end = (rows[place + 1].start or 0.0) if place + 1 < len(rows) else duration or start
        end = min([end, *(track.start for track in heard if track.start > start)])
        near = min(range(len(heard)), key=lambda n: abs(heard[n].start - start), default=None)
        if near is not None and near not in told and abs(heard[near].start - start) <= MATCHED:
            told.add(near)
            mine = merged[near]
            names = {"artist": mine.artist or row.artist, "title": mine.title or row.title}
            merged[near] = mine.model_copy(update={**names, "source": "both"})
        elif not any(track.start <= start + MATCHED and end - MATCHED <= track.end for track in heard):
            names = {"artist": row.artist, "title": row.title}
            merged.append(SetTrack(start=start, end=max(start, end), confidence=0.5, source="written", **names))
    return sorted(merged, key=lambda track: (track.start, track.end))


def gaps(tracks: Sequence[SetTrack], duration: float) -> list[Gap]:
    """What no track covers."""
    found, reached = [], 0.0
    for start, end in [*((track.start, track.end) for track in tracks), (duration, duration)]:
        if start - reached >= SHORTEST_GAP:
            found.append(Gap(start=round(reached, 1), end=round(start, 1)))
        reached = max(reached, end)
    return found
