"""The catalogue: files, scans, results, and what follows from them, in one SQLite file.

One process writes it, the hub. Others may open it for reading at the same time, or when no hub runs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.sqlite import insert

from agent.hub import (
    batches,
    copies,
    debts,
    derived,
    live_sets,
    others,
    progress,
    recording,
    records,
    scans,
    schema,
    tracks,
    transfers,
    usage,
    work,
)
from agent.hub.batches import Batch
from agent.hub.copies import Group, Location, Pair
from agent.hub.database import CatalogueError, CatalogueUnavailable, Database
from agent.hub.debts import Debt
from agent.hub.duplicates import DuplicateGroups
from agent.hub.file_tasks import OWED_TASKS, SET
from agent.hub.live_sets import LiveSet
from agent.hub.progress import Progress
from agent.hub.recording import Refusal
from agent.hub.records import Recorded
from agent.hub.scans import Asked, Wish
from agent.hub.track_row import SHAPE
from agent.hub.tracks import Track, TrackFilter
from agent.hub.transfers import Chosen, Transfer
from agent.hub.usage import Usage
from agent.hub.work import ScanResult, TaskWork
from agent.kept import in_container
from agent.phoenix.outbox import Entry
from pipelines.files.proposals import BatchPayload

__all__ = ["Catalogue", "CatalogueError", "CatalogueUnavailable", "Refusal", "Track", "TrackFilter"]

if TYPE_CHECKING:
    from agent.hub.library import Library

log = structlog.get_logger()

FILE_NAME = "catalogue.sqlite"
PRINTS_FOLDER = "prints"


REVOKED = ""
"""In the place of a token's hash: no token has it."""


@dataclass(frozen=True)
class KnownAgent:
    """An agent as the catalogue knows it; `beat` is what its last heartbeat said, at `last_beat_at` (Unix seconds)."""

    id: str
    revoked: bool
    last_beat_at: float | None
    beat: dict[str, Any]


class Catalogue:
    """`with Catalogue(settings.data_dir) as catalogue: ...`. Every method may be called from any thread.

    What writes is durable when it returns. Every method raises CatalogueUnavailable when the file cannot be read or
    written right now; nothing was written then.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        """Open, create or migrate `folder / "catalogue.sqlite"`. Raises CatalogueError."""
        self.path = path = folder / FILE_NAME
        if read_only and not path.exists():
            remedy = "it is the hub's: ask in its container (docker compose exec hub phaze ...)"
            raise CatalogueError(
                f"there is no catalogue at {path} yet; {remedy if in_container() else 'make one with `phaze up PATH`'}"
            )
        if not read_only:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CatalogueError(
                    f"{folder} cannot be made ({error.strerror}); set PHAZE_DATA_DIR to a folder of yours"
                ) from None
        self._database = Database(path, read_only=read_only)
        self.duplicates = DuplicateGroups(self._database.read, folder / PRINTS_FOLDER)
        try:
            schema.prepare(self._database)
            if not read_only:
                self._follow_profiles()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow_profiles(self) -> None:
        """Compute everything derived again if this program derives something else than the one that wrote it."""
        tasks = {service: [task.profile, task.shortest] for service, task in OWED_TASKS.items()}
        wanted = json.dumps({"shape": SHAPE, **tasks})
        with self._database.read() as connection:
            name = schema.state.c.name == "derived_for"
            if connection.scalar(sa.select(schema.state.c.value).where(name)) == wanted:
                return
        with self._database.write() as connection:
            derived.refresh_all(connection)
            _put_state(connection, "derived_for", wanted)

    # Agents.

    def register_agent(self, agent_id: str, token: str) -> None:
        """Let the agent in with this token, and no longer with an earlier one. Only its hash is kept."""
        row = {"id": agent_id, "token_sha256": _digest(token)}
        with self._database.write() as connection:
            statement = insert(schema.agents).values(row)
            connection.execute(
                statement.on_conflict_do_update(index_elements=["id"], set_={"token_sha256": row["token_sha256"]})
            )

    def knows(self, agent_id: str, token: str) -> bool:
        """Whether this is that agent's token."""
        with self._database.read() as connection:
            stored = connection.scalar(sa.select(schema.agents.c.token_sha256).where(schema.agents.c.id == agent_id))
        return hmac.compare_digest(str(stored), _digest(token))

    def agent_with(self, token: str) -> str | None:
        """The agent whose token this is."""
        mine = schema.agents.c.token_sha256 == _digest(token)
        with self._database.read() as connection:
            return connection.scalar(sa.select(schema.agents.c.id).where(mine))

    def revoke_agent(self, agent_id: str) -> bool:
        """Let the agent in no longer, from now on; False where there is none. What it has recorded stays."""
        one = sa.update(schema.agents).where(schema.agents.c.id == agent_id)
        with self._database.write() as connection:
            return connection.execute(one.values(token_sha256=REVOKED)).rowcount == 1

    def known_agents(self) -> list[KnownAgent]:
        """All agents that were ever let in."""
        columns = schema.agents.c
        with self._database.read() as connection:
            return [
                KnownAgent(row.id, row.token_sha256 == REVOKED, row.last_beat_at, _beat_in(row.beat))
                for row in connection.execute(sa.select(schema.agents).order_by(columns.id))
            ]

    def agents(self) -> list[str]:
        """The agents' ids."""
        with self._database.read() as connection:
            return list(connection.scalars(sa.select(schema.agents.c.id).order_by(schema.agents.c.id)))

    def beat(self, agent_id: str, beat: Mapping[str, Any]) -> None:
        """Keep the agent's last heartbeat."""
        with self._database.write() as connection:
            mine = sa.update(schema.agents).where(schema.agents.c.id == agent_id)
            connection.execute(mine.values(last_beat_at=time.time(), beat=json.dumps(dict(beat))))

    # What comes in.

    def record(self, agent_id: str, entries: Sequence[Entry]) -> list[Refusal | None]:
        """Record a delivery of an agent: all that can be recorded in one transaction; one answer per entry."""
        try:
            with self._database.write() as connection:
                return recording.record(connection, agent_id, list(entries))
        except CatalogueError:
            raise
        except Exception:
            # Refused as a whole it would come back for ever, and hold up all that follows it in the outbox.
            log.exception("catalogue.delivery_failed", agent=agent_id, entries=len(entries))
            return [self._record_alone(agent_id, entry) for entry in entries]

    def _record_alone(self, agent_id: str, entry: Entry) -> Refusal | None:
        try:
            with self._database.write() as connection:
                return recording.record(connection, agent_id, [entry])[0]
        except CatalogueError:
            raise
        except Exception as error:
            log.exception("catalogue.entry_failed", agent=agent_id, task=entry.service, record_id=entry.record_id)
            return Refusal(f"the hub failed on it ({type(error).__name__}); its log says more")

    def request_scans(self, agent_id: str, roots: Sequence[str | Wish]) -> list[str]:
        """Ask for scans (a root, percent-encoded and absolute, is all of it); their ids. Raises ScanRefused."""
        wishes = [Wish(root=wish) if isinstance(wish, str) else wish for wish in roots]
        with self._database.write() as connection:
            asked = [scans.request(connection, agent_id, wish) for wish in wishes]
            return [scan_id for scan_id in asked if scan_id is not None]

    def unchanged(self, agent_id: str, asked: Collection[Asked]) -> dict[str, str]:
        """See `scans.unchanged`."""
        with self._database.read() as connection:
            return scans.unchanged(connection, agent_id, asked)

    def request_batch(
        self, agent_id: str, document: dict[str, Any], *, undoes: str | None = None, dry_run: bool = False
    ) -> tuple[str | None, BatchPayload]:
        """Ask for a batch (see `batches.filled`), or for what undoes one; its id, None for a dry run, and all of it.

        Raises BatchRefused.
        """
        with self._database.read() if dry_run else self._database.write() as connection:
            if undoes is None:
                payload = batches.filled(connection, agent_id, document)
            else:
                payload = batches.inverse(connection, agent_id, undoes)
            return None if dry_run else batches.request(connection, agent_id, payload, undoes), payload

    # What is owed (for the reconciler).

    def owed_kinds(self) -> list[tuple[str, str]]:
        """See `debts.kinds`."""
        with self._database.read() as connection:
            return debts.kinds(connection)

    def owed(self, agent_id: str, service: str, limit: int, *, indexed: float = 0.0) -> list[Debt]:
        """See `debts.unqueued`; of sets those whose tracks may be looked for now (`live_sets.ripe`)."""
        with self._database.read() as connection:
            ripe = [live_sets.ripe(connection, indexed)] if service == SET else []
            return debts.unqueued(connection, agent_id, service, limit, *ripe)

    def unchecked(self, older_than: float, limit: int) -> list[Debt]:
        """See `debts.unchecked`."""
        with self._database.read() as connection:
            return debts.unchecked(connection, older_than, limit)

    def mark(self, *, queued: Sequence[Debt] = (), checked: Sequence[Debt] = ()) -> None:
        """See `debts.mark_queued`, `debts.mark_checked`."""
        with self._database.write() as connection:
            debts.mark_queued(connection, queued)
            debts.mark_checked(connection, checked)

    def forget(self, lost: Sequence[Debt]) -> int:
        """See `debts.mark_lost`."""
        with self._database.write() as connection:
            return debts.mark_lost(connection, lost)

    # What people look at.

    def tracks(
        self, chosen: TrackFilter | None = None, *, sort: str = "", limit: int | None = None, offset: int = 0
    ) -> list[Track]:
        """The present files as tracks (see `tracks.read`). Duplicates are as of the last `compare_prints`."""
        with self._database.read() as connection:
            labels = self.duplicates.labels
            return tracks.read(connection, labels, chosen or TrackFilter(), sort=sort, limit=limit, offset=offset)

    def tracks_of(self, ids: Collection[int]) -> list[Track]:
        """The tracks of these files, as far as they are present."""
        with self._database.read() as connection:
            return tracks.read_some(connection, self.duplicates.labels, ids)

    def named(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What an index found (`Library.find`), with artist, title and path; without files that are gone meanwhile."""
        known = {track.id: track for track in self.tracks_of({row["file_id"] for row in rows})}
        return [
            {**row, "artist": track.artist, "title": track.title, "path": track.encoded_path}
            for row in rows
            if (track := known.get(row["file_id"])) is not None
        ]

    def library(self) -> Library:
        """The index of all prints, brought up to date in this process and written nowhere. Imports numpy."""
        from agent.hub.library import Library

        found = Library(self._database.read, self.path.with_name(PRINTS_FOLDER), read_only=True)
        while found.sync():
            pass
        return found

    def groups(self, limit: int | None = None, offset: int = 0) -> list[Group]:
        """See `copies.read_groups`; as of the last `compare_prints`."""
        with self._database.read() as connection:
            return copies.read_groups(connection, self.duplicates.labels, limit, offset)

    def relatives(self, limit: int | None = None, offset: int = 0) -> list[Pair]:
        """See `copies.read_pairs`; as of the last `compare_prints`."""
        with self._database.read() as connection:
            return copies.read_pairs(connection, self.duplicates.relatives, limit, offset)

    def location(self, file_id: int) -> Location | None:
        """See `copies.location`."""
        with self._database.read() as connection:
            return copies.location(connection, file_id)

    def count_tracks(self, chosen: TrackFilter | None = None) -> int:
        """How many tracks pass the filter."""
        with self._database.read() as connection:
            return tracks.count(connection, chosen or TrackFilter())

    def compare_prints(self, *, at_once: bool = False) -> None:
        """Bring the duplicate groups up to date (see `DuplicateGroups.compare`)."""
        self.duplicates.compare(at_once=at_once)

    def batch(self, batch_id: str) -> Batch | None:
        """One approved batch; None if there is none."""
        with self._database.read() as connection:
            return batches.read(connection, batch_id)

    def batches(self, limit: int) -> list[Batch]:
        """The last batches, the newest first."""
        with self._database.read() as connection:
            return batches.newest(connection, limit)

    def progress(self, agent_id: str | None = None) -> Progress:
        """How far one agent is, or everything."""
        with self._database.read() as connection:
            return progress.read(connection, agent_id)

    def work_since(self, moment: float) -> list[TaskWork]:
        """See `work.since`."""
        with self._database.read() as connection:
            return work.since(connection, moment)

    def decoded(self, ids: Collection[int]) -> dict[int, float]:
        """See `work.decoded`."""
        with self._database.read() as connection:
            return work.decoded(connection, ids)

    def scans_since(self, moment: float) -> list[ScanResult]:
        """See `work.scans_since`."""
        with self._database.read() as connection:
            return work.scans_since(connection, moment)

    def last_scans(self) -> list[ScanResult]:
        """See `work.last_scans`."""
        with self._database.read() as connection:
            return work.last_scans(connection)

    def results(
        self, service: str, record_id: str | None = None, *, limit: int = 1000, offset: int = 0
    ) -> list[dict[str, Any]]:
        """See `others.results_of`."""
        with self._database.read() as connection:
            return others.results_of(connection, service, record_id, limit=limit, offset=offset)

    def record_stages(self, record_id: str) -> list[Recorded]:
        """See `records.of_record`."""
        with self._database.read() as connection:
            return records.of_record(connection, record_id)

    def latest_records(self, limit: int) -> list[Recorded]:
        """See `records.latest`."""
        with self._database.read() as connection:
            return records.latest(connection, limit)

    def usage(
        self, *, by: tuple[str, ...], user: str | None = None, since: float = 0.0, limit: int = 1000, offset: int = 0
    ) -> list[Usage]:
        """See `usage.sums`."""
        with self._database.read() as connection:
            return usage.sums(connection, by=by, user=user, since=since, limit=limit, offset=offset)

    def roll_up_usage(self) -> bool:
        """See `usage.roll_up`: a day at a time, so that nobody waits long for it."""
        with self._database.write() as connection:
            return usage.roll_up(connection, time.time())

    def owed_versions(
        self, limit: int, agent_id: str | None = None, *, without: Collection[str] = ()
    ) -> dict[tuple[str, str], str]:
        """See `debts.versions`."""
        with self._database.read() as connection:
            return debts.versions(connection, limit, agent_id, without=without)

    def choose_files(self, agent_id: str, wanted: TrackFilter, paths: Sequence[str]) -> list[Chosen]:
        """See `transfers.choose`."""
        with self._database.read() as connection:
            return transfers.choose(connection, agent_id, wanted, paths)

    def live_sets(self, limit: int | None = None, offset: int = 0) -> list[LiveSet]:
        """See `live_sets.read`."""
        with self._database.read() as connection:
            return live_sets.read(connection, limit, offset)

    def count_live_sets(self) -> tuple[int, int]:
        """See `live_sets.counts`."""
        with self._database.read() as connection:
            return live_sets.counts(connection)

    def tracklist_of(self, agent_id: str, path: str, size: int, mtime_ns: int) -> dict[str, Any] | None:
        """See `live_sets.of_file`."""
        with self._database.read() as connection:
            return live_sets.of_file(connection, agent_id, path, size, mtime_ns)

    def transfers(self, limit: int) -> list[Transfer]:
        """See `transfers.recorded`."""
        with self._database.read() as connection:
            return transfers.recorded(connection, limit)

    def path_of_file(self, agent_id: str, record_id: str) -> str | None:
        """The percent-encoded path of a file of that agent, by its id; None if it has none such."""
        file_id = derived.file_id_of(record_id)
        mine = (schema.files.c.id == (-1 if file_id is None else file_id), schema.files.c.agent_id == agent_id)
        with self._database.read() as connection:
            path: str | None = connection.scalar(sa.select(schema.files.c.path).where(*mine))
        return path

    def paths(self, jobs: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """(service, record id) -> the file or root it is about, for people; those without one are left out."""
        with self._database.read() as connection:
            return progress.paths(connection, jobs)


def _beat_in(text: str | None) -> dict[str, Any]:
    """What a beat said; nothing, where it nests deeper than can be read here. Whoever took it had more of the stack."""
    try:
        return dict(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _put_state(connection: sa.Connection, name: str, value: str) -> None:
    statement = insert(schema.state).values(name=name, value=value)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": value}))
