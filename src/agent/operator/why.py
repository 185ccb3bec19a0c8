"""`phaze why KEY` and `phaze forget KEY`: where a job is and what it waits for; what is remembered of a record."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import click
from redis.asyncio import Redis

from agent.display import duration_text, plural
from agent.errors import WrongUse
from agent.lanes import AGENT_TASKS, lane_for_task, queue_name, record_id_of
from agent.operator.server import run, server
from agent.operator.streams import find_entry
from agent.phoenix import keys
from agent.phoenix.endings import UNKNOWN_SERVICE
from agent.phoenix.letters import Letters, places
from agent.phoenix.outbox import ENTRY_FIELD, refused_key
from agent.phoenix.queue import LaneQueue
from agent.redis_client import reply
from agent.settings import load_settings

LOOKED_AT = 10_000
"""Ids at the head of a queue among which a job's place is looked for."""


def _parts(key: str) -> tuple[str, str]:
    service, record_id = key.partition(":")[0], record_id_of(key)
    if service not in AGENT_TASKS or record_id == key:
        raise WrongUse(f"{key} is not <task>:<record id>; the tasks are {', '.join(AGENT_TASKS)}")
    return service, record_id


@click.command()
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def why(key: str, as_json: bool) -> None:
    """Say where the job KEY (<task>:<record id>) is and what it waits for."""

    async def look() -> dict[str, Any]:
        settings = load_settings()
        async with server(settings) as client:
            return await where(client, settings.agent_id, key)

    found = run(look())
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))


async def where(client: Redis, agent_id: str, key: str) -> dict[str, Any]:
    """What is known of a job: `place`, and by place its details; the lock and the marker."""
    if key.partition(":")[0] not in AGENT_TASKS and (letter := await _set_aside(client, key, await places(client, ()))):
        return letter
    service, record_id = _parts(key)
    queue = LaneQueue(client, name=queue_name(agent_id, lane_for_task(service)))
    job_id = queue.job_id(key)
    async with client.pipeline(transaction=True) as pipe:
        pipe.get(job_id)
        pipe.zscore(queue.keys[2], job_id)
        pipe.zscore(queue.keys[1], job_id)
        pipe.get(keys.lock_key(service, record_id))
        pipe.get(keys.marker_key(service, record_id))
        pipe.smembers(queue.keys[6])
        pipe.hget(queue.keys[4], job_id)
        pipe.time()
        text, due, lease, lock, marker, circuits, deaths, (seconds, _) = await pipe.execute()
    job = queue.readable(text)
    found: dict[str, Any] = {
        "key": key,
        "queue": queue.name,
        "place": "nowhere",
        "attempts": job.attempts if job else None,
        "error": (job.error or "").strip().splitlines()[-1:] if job else [],
        "lock": _read(lock),
        "marker": _read(marker),
        "refused": await _refused(client, queue.name, service, record_id) if marker else None,
        "deaths": deaths.decode() if deaths else None,
    }
    if lease is not None:
        found |= {"place": "running" if lease / 1000 > seconds else "orphaned", "lease_ends_in": lease / 1000 - seconds}
    elif due == 0:
        place = await _position(client, queue.keys[0], job_id)
        names = list(dict.fromkeys((lane_for_task(service), service)))
        held = [name for name in names if await reply(client.sismember(keys.PAUSED, name))]
        found |= {"place": "queued", "before_it": place, "paused": bool(held), "pauses": held}
    elif due is not None and due >= keys.FAR_FUTURE:
        found["place"] = "parked"
        for name in sorted(name.decode() for name in circuits):
            if await _position(client, keys.parked_key(name), job_id) is not None:
                found["waits_for"] = name
    elif due is not None:
        found |= {"place": "scheduled", "due_in": due - seconds}
    else:
        letter = await _set_aside(client, key, [service, UNKNOWN_SERVICE])
        found |= {name: letter[name] for name in ("place", "error") if letter}
        if found["place"] == "nowhere" and (entry := await find_entry(client, service, record_id, LOOKED_AT)):
            found |= {"place": "stream", **entry}
        if found["place"] == "nowhere" and job is not None:
            found["place"] = job.status.value
    return found


async def _set_aside(client: Redis, key: str, services: Iterable[str]) -> dict[str, Any]:
    """What is known of a job by its letter, of whatever task it is; {} where there is none."""
    found: dict[str, Any] = {}
    for place, place_of in (("dead letter", keys.dead_letters_key), ("quarantine", keys.quarantine_key)):
        for letter in await Letters(client, place_of, services).all():
            if letter.key == key:
                found = {"key": key, "queue": letter.queue, "place": place, "error": [letter.error],
                         "attempts": None, "lock": None, "marker": None, "deaths": None}  # fmt: skip
    return found


def _read(text: bytes | None) -> dict[str, Any] | None:
    """A lock or a marker without its result; somebody may have written over it."""
    if text is None:
        return None
    try:
        return {name: value for name, value in json.loads(text).items() if name != "result"}
    except (ValueError, AttributeError):
        return {"outcome": "not readable: somebody wrote over it", "owner": "?"}


async def _refused(client: Redis, queue: str, service: str, record_id: str) -> str | None:
    """Why the control plane did not take the result, if it did not."""
    # Forwards, as the least ACL rule allows: that is more of them than the relay keeps.
    for _, fields in reversed(await client.xrange(refused_key(queue), count=2 * LOOKED_AT)):
        entry = _read(fields.get(ENTRY_FIELD)) or {}
        if (entry.get("service"), entry.get("record_id")) == (service, record_id):
            return str(fields.get(b"reason", b"").decode("utf-8", "replace"))
    return None


async def _position(client: Redis, key: str, job_id: str) -> int | None:
    """How many ids stand before this one, if it is among the first `LOOKED_AT`."""
    call: Any = client.lpos(key, job_id, maxlen=LOOKED_AT)
    place: int | None = await call
    return place


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    place = found["place"]
    said = {
        "running": f"it runs, on {(found['lock'] or {}).get('owner', '?')}; its lease ends in "
        f"{found.get('lease_ends_in', 0):.0f} s unless it is renewed",
        "orphaned": "its worker died; another one takes it over within seconds, if one runs on this lane",
        "queued": "it is queued" + _before(found) + _paused(found),
        "parked": _parked(found.get("waits_for", "a circuit")),
        "scheduled": f"it waits for its time, in {duration_text(max(0.0, found.get('due_in', 0.0)))}",
        "dead letter": "it is a dead letter: its record was not there (`phaze dlq`)",
        "quarantine": "it is in quarantine (`phaze quarantine`)",
        "stream": _on_stream(found),
        "nowhere": "no queue knows it",
    }.get(place, f"it is over: {place}")
    out = [f"{found['key']} on {found['queue']}: {said}"]
    if found["attempts"] and found["error"]:
        out.append(f"  failed {plural(found['attempts'], 'time')}: {' '.join(found['error'])}")
    elif found["error"]:
        out.append(f"  {' '.join(found['error'])}")
    if found["deaths"]:
        takeovers, _, own = found["deaths"].partition(":")
        out.append(f"  taken over {plural(int(takeovers), 'time')}, {plural(int(own), 'death')} of its own")
    if (marker := found["marker"]) is not None:
        age = duration_text(time.time() - float(marker.get("timestamp", 0) or 0))
        out.append(f"  recorded {age} ago: {marker.get('outcome')}, version {marker.get('version')}")
    if found.get("refused"):
        out.append(f"  but the control plane did not take it: {found['refused']}; `phaze forget` lets it run again")
    return out


def _paused(found: dict[str, Any]) -> str:
    service = found["key"].partition(":")[0]
    return "".join(f"; {'the lane' if name != service else name} is paused" for name in found.get("pauses", []))


def _parked(name: str) -> str:
    """`name` of the list it is in: a circuit's, or that of a paused task."""
    task = name.removeprefix(keys.PAUSED_PREFIX)
    return f"it waits for {name}" if task == name else f"it waits until `phaze resume {task}`: {task} is paused"


def _on_stream(found: dict[str, Any]) -> str:
    service, who = found["key"].partition(":")[0], found.get("taken_by")
    said = f"it is entry {found.get('entry')} of {keys.stream_key(service)}"
    if who is None:
        return f"{said}, which no bridge has taken yet"
    return f"{said}, taken by {who}; its job is made within seconds, or by another bridge after 5 minutes"


def _before(found: dict[str, Any]) -> str:
    place = found.get("before_it")
    return f", with more than {LOOKED_AT:,} before it" if place is None else f", with {place:,} before it"


@click.command()
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(key: str, yes: bool) -> None:
    """Forget that KEY (<task>:<record id>) is done: the same version runs again when it is next asked for."""
    service, record_id = _parts(key)
    if not yes:
        click.confirm(f"{key} may run again, with whatever it does outside. Forget it?", abort=True)

    async def clear() -> bool:
        async with server(load_settings()) as client:
            return bool(await client.delete(keys.marker_key(service, record_id)))

    click.echo(f"{key} is forgotten" if run(clear()) else f"nothing was remembered of {key}")
