"""Settling: a job's result, its marker and its outbox entry appear together, or not at all.

Key: `processed:<service>:<record_id>`, the marker: JSON of what was recorded last and for which version.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from agent.phoenix import outbox
from agent.phoenix.outbox import Entry

if TYPE_CHECKING:
    from redis.asyncio import Redis

MARKER_TTL = 7 * 24 * 3600
"""Seconds that a marker stays after its last use; after that the catalogue says what is done."""


def marker_key(service: str, record_id: str) -> str:
    """`processed:<service>:<record_id>`: the version that was recorded, and its result."""
    return f"processed:{service}:{record_id}"


async def find_marker(redis: Redis, service: str, record_id: str, version: str) -> Entry | None:
    """The recorded result of just this version, or None. Each look keeps the marker for another `MARKER_TTL`."""
    stored = await redis.getex(marker_key(service, record_id), ex=MARKER_TTL)
    if stored is None:
        return None
    entry = Entry.model_validate(json.loads(stored))
    return entry if entry.version == version else None


async def settle(redis: Redis, queue: str, entry: Entry) -> None:
    """Write the marker and the outbox entry of a finished job in one step."""
    marker = json.dumps({"timestamp": time.time(), **entry.model_dump(mode="json")})
    async with redis.pipeline(transaction=True) as pipe:
        pipe.set(marker_key(entry.service, entry.record_id), marker, ex=MARKER_TTL)
        outbox.append(pipe, queue, entry)
        await pipe.execute()


async def hand_over(redis: Redis, queue: str, entry: Entry) -> None:
    """Put a part, or a result that was recorded before and is asked for again, into the outbox alone."""
    async with redis.pipeline(transaction=True) as pipe:
        outbox.append(pipe, queue, entry)
        await pipe.execute()
