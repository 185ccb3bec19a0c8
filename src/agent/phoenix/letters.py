"""Dead letters and quarantine: jobs that were set aside with the reason, to be looked at, replayed or dropped."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.phoenix import keys
from agent.phoenix.endings import UNKNOWN_SERVICE
from agent.phoenix.scripts import Scripts
from agent.phoenix.streams import as_fields
from agent.redis_client import reply

if TYPE_CHECKING:
    from redis.asyncio import Redis

PAGE = 500
"""Letters read at once."""


@dataclass(frozen=True)
class Letter:
    """One job that was set aside. `first` and `last`: Unix seconds of its enqueueing and of its end."""

    place: str
    """The list's key."""
    raw: bytes
    """As it stands there."""
    said: dict[str, Any]

    @property
    def key(self) -> str:
        """The job's key: `<task>:<record id>`; of an entry that says no record its id stands there instead."""
        if "id" not in self.said and "entry" in self.said:
            return f"{self.said.get('service')}:{self.said.get('record_id') or self.said['entry']}"
        return str(self.said.get("id", "")).removeprefix(keys.job_prefix(self.queue))

    @property
    def queue(self) -> str:
        """The name of its queue. A letter without one is of a time when no name held a colon."""
        named = self.said.get("queue")
        return str(named or str(self.said.get("id", "")).removeprefix(keys.JOB_PREFIX).partition(":")[0])

    @property
    def arguments(self) -> dict[str, Any]:
        """What the job was given; empty where nobody can read it."""
        try:
            found = json.loads(base64.b64decode(self.said["job"]))["kwargs"]
        except (ValueError, TypeError, LookupError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def error(self) -> str:
        """Its type and text, in one line."""
        return " ".join(str(self.said.get("error", "")).split())


async def places(redis: Redis, own: Iterable[str]) -> tuple[str, ...]:
    """Whose letters there may be: `own` tasks, those of all workers here, and the jobs of no task."""
    others = {name.decode("utf-8", "replace") for name in await reply(redis.smembers(keys.TASKS))}
    return tuple(dict.fromkeys([*own, *sorted(others), UNKNOWN_SERVICE]))


class Letters:
    """The letters of one kind: `place_of` is keys.dead_letters_key or keys.quarantine_key; see places()."""

    def __init__(self, redis: Redis, place_of: Callable[[str], str], services: Iterable[str]) -> None:
        self._redis = redis
        self._scripts = Scripts(redis)
        self._places = {service: place_of(service) for service in services}

    async def all(self, service: str | None = None) -> list[Letter]:
        """Every letter of one service, or of all of them, the oldest first. A service that is none has its letters
        among those of no task."""
        found: list[Letter] = []
        for name, place in self._places.items():
            if service not in (None, name) and name != UNKNOWN_SERVICE:
                continue
            start = 0
            while rows := await reply(self._redis.lrange(place, start, start + PAGE - 1)):
                letters = [Letter(place, row, _said(row)) for row in rows]
                found += [one for one in letters if service in (None, name, one.said.get("service"))]
                start += PAGE
        return found

    async def counts(self) -> dict[str, int]:
        """service -> letters, where there are any."""
        counts = {name: int(await reply(self._redis.llen(place))) for name, place in self._places.items()}
        return {name: count for name, count in counts.items() if count}

    async def replay(self, letter: Letter) -> str:
        """Queue it again, as new: `queued`, `gone` or `waiting` (see replay.lua). What came from a stream goes back
        there: `queued` or `gone` (see resend.lua)."""
        if (stream := letter.said.get("stream")) and isinstance(fields := letter.said.get("fields"), dict):
            answer = await self._scripts("resend", [letter.place, stream], [letter.raw, *as_fields(fields)])
            return str(answer.decode())
        text = base64.b64decode(letter.said["job"])
        queue = letter.queue
        places = [letter.place, keys.queued_key(queue), keys.incomplete_key(queue), keys.deaths_key(queue)]
        answer = await self._scripts("replay", places, [letter.raw, letter.said["id"], _as_new(text)])
        return str(answer.decode())

    async def drop(self, letter: Letter) -> bool:
        """Throw it away; False if it is gone already."""
        return bool(await reply(self._redis.lrem(letter.place, 1, letter.raw)))  # type: ignore[arg-type]  # bytes work


def _said(row: bytes) -> dict[str, Any]:
    try:
        said = json.loads(row)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _as_new(text: bytes) -> bytes:
    """A job's text without its past; what nobody can decode stays as it is."""
    try:
        job = json.loads(text)
        for name in ("attempts", "error", "started", "completed", "result", "progress", "worker_id", "group_key"):
            job.pop(name, None)
        return json.dumps({**job, "status": "queued"}).encode()
    except (ValueError, AttributeError, TypeError):
        return text
