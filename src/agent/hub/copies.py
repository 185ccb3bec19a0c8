"""The copies of a recording side by side: what each file is, and which one is the best to keep.

Nothing here changes or deletes anything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from agent.hub.derived import values_of
from agent.hub.duplicates import Relative
from agent.hub.file_tasks import FINGERPRINT, FOUND, METADATA, version_for
from agent.hub.schema import files, results, tracks
from agent.hub.track_row import number, printable
from pipelines.music.duplicates import Copy, best_copy
from pipelines.payload import text_path

SHORT = "short"
"""Reason of a fingerprint that holds clearly less than its file declares."""


@dataclass(frozen=True)
class Member:
    """One file of a group. Seconds, bytes, bit/s; None: not known."""

    id: int
    path: str
    """For people; `encoded_path` (percent-encoded) finds the file again whatever bytes its name holds."""
    encoded_path: str
    artist: str | None
    title: str
    duration: float | None
    size: int
    codec: str | None
    bit_rate: int | None
    channels: int | None
    lossless: bool
    whole: bool
    """False where clearly less could be decoded than the file declares."""
    sha256: str

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object; `path` has all characters of the name."""
        return {**asdict(self), "path": text_path(self.encoded_path)}


@dataclass(frozen=True)
class Group:
    """Files that are one recording; the one to keep comes first."""

    label: str
    kind: str
    """`exact`: all hold the same bytes; `same`: the same recording, some of them encoded otherwise."""
    reason: str
    """The rule by which the first is the best (`pipelines.music.duplicates.best_copy`)."""
    members: list[Member]

    @property
    def spare(self) -> int:
        """Bytes of all but the first."""
        return sum(member.size for member in self.members[1:])

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object."""
        members = [member.as_json() for member in self.members]
        return {**asdict(self), "members": members, "keep": self.members[0].id, "spare_bytes": self.spare}


@dataclass(frozen=True)
class Pair:
    """Two files that share sound and are not one recording; see `duplicates.Relative`."""

    kind: str
    file: Member
    of: Member
    tempo: float
    ber: float
    start: float
    end: float

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object."""
        return {**asdict(self), "file": self.file.as_json(), "of": self.of.as_json()}


def read_groups(connection: sa.Connection, labels: Mapping[str, str], limit: int | None, offset: int) -> list[Group]:
    """The groups of `labels` (file id -> label), by number; a group of which fewer than two are left is none."""
    by_label: dict[str, list[int]] = {}
    for file_id, label in labels.items():
        by_label.setdefault(label, []).append(int(file_id))
    wanted = sorted(by_label, key=lambda label: int(label[1:]))[offset:][:limit]
    members = _members(connection, [file_id for label in wanted for file_id in by_label[label]])
    found = []
    for label in wanted:
        group = [members[file_id] for file_id in sorted(by_label[label]) if file_id in members]
        if len(group) < 2:
            continue
        best, reason = best_copy([_copy(member) for member in group])
        first, rest = group[best], group[:best] + group[best + 1 :]
        rest.sort(key=lambda member: (member.sha256 != first.sha256, -member.size, member.path))
        kind = "exact" if len({member.sha256 for member in group}) == 1 else "same"
        found.append(Group(label, kind, reason, [first, *rest]))
    return found


def read_pairs(connection: sa.Connection, relatives: Sequence[Relative], limit: int | None, offset: int) -> list[Pair]:
    """What `relatives` name, as far as both files are there."""
    wanted = sorted(relatives, key=lambda pair: (pair.kind, pair.of, pair.start, pair.file_id))[offset:][:limit]
    members = _members(connection, {file_id for pair in wanted for file_id in (pair.file_id, pair.of)})
    return [
        Pair(pair.kind, members[pair.file_id], members[pair.of], pair.tempo, pair.ber, pair.start, pair.end)
        for pair in wanted
        if pair.file_id in members and pair.of in members
    ]


def _copy(member: Member) -> Copy:
    return Copy(member.path, member.whole, member.codec, member.duration, member.bit_rate, member.channels)


def _members(connection: sa.Connection, ids: Collection[int]) -> dict[int, Member]:
    print_ = sa.and_(
        results.c.service == FINGERPRINT,
        results.c.record_id == tracks.c.print_record,
        results.c.version == tracks.c.print_version,
    )
    query = (
        sa.select(tracks, files.c.path.label("encoded_path"), files.c.sha256, files.c.size, results.c.reason)
        .add_columns(sa.func.json_extract(results.c.result, "$.duration").label("decoded"))
        .join(files, files.c.id == tracks.c.file_id)
        .outerjoin(results, print_)
        .where(tracks.c.file_id.in_(values_of(sorted(ids))))
    )
    rows = connection.execute(query).all()
    facts = _facts(connection, {row.sha256 for row in rows})
    found = {}
    for row in rows:
        tags = facts.get((row.sha256, str(row.file_id))) or facts.get((row.sha256, "")) or {}
        codec, rate, channels = printable(tags.get("codec")), number(tags.get("bit_rate")), number(tags.get("channels"))
        found[row.file_id] = Member(
            id=row.file_id,
            path=row.path,
            encoded_path=row.encoded_path,
            artist=row.artist,
            title=row.title,
            duration=number(row.decoded) or row.duration,
            size=row.size,
            codec=codec,
            bit_rate=None if rate is None else int(rate),
            channels=None if channels is None else int(channels),
            lossless=Copy("", codec=codec).lossless,
            whole=(row.reason or "").partition(":")[0] != SHORT,
            sha256=row.sha256,
        )
    return found


def _facts(connection: sa.Connection, hashes: Collection[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """(content, record id) -> what the header says; under the record id "" that of any file with this content."""
    versions = [version_for(METADATA, sha256) for sha256 in sorted(hashes)]
    query = sa.select(results.c.version, results.c.record_id, results.c.result).where(
        results.c.service == METADATA, results.c.version.in_(values_of(versions)), results.c.outcome.in_(FOUND)
    )
    found = {}
    for row in connection.execute(query.order_by(results.c.token)):
        said = json.loads(row.result)
        sha256 = row.version.partition(":")[0]
        found[sha256, row.record_id] = found[sha256, ""] = said if isinstance(said, dict) else {}
    return found


@dataclass(frozen=True)
class Location:
    """Where a file of the catalogue lies: percent-encoded root and path."""

    root: str
    path: str


def location(connection: sa.Connection, file_id: int) -> Location | None:
    """Where a file lies; if it is known to be gone, where its bytes have turned up: a page from before it was moved
    still plays it. None if the catalogue knows of neither."""
    other = files.alias("other")
    same = sa.and_(other.c.sha256 == files.c.sha256, other.c.agent_id == files.c.agent_id)
    row = connection.execute(
        sa.select(other.c.root, other.c.path)
        .join(files, sa.or_(other.c.id == files.c.id, sa.and_(files.c.gone, same)))
        .where(files.c.id == file_id, other.c.gone.is_(False))
        .order_by(other.c.first_seen.desc(), other.c.id)
        .limit(1)
    ).one_or_none()
    return None if row is None else Location(row.root, row.path)
