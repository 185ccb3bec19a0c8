"""`phaze stream status SERVICE`: what waits on a service's stream, who has taken what, and what became of the rest.

One table of what XLEN, XPENDING, XINFO GROUPS, XINFO CONSUMERS and XRANGE say of `phoenix:<service>:input`.
"""

from __future__ import annotations

import json
import time
from typing import Any

import click
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from agent.display import duration_text
from agent.lanes import AGENT_TASKS, lane_for_task, queue_name
from agent.operator.server import run, server
from agent.phoenix import keys
from agent.phoenix.queue import LaneQueue
from agent.redis_client import reply
from agent.settings import load_settings

OLDEST = 5
"""Entries that are shown of those that are pending for longest."""


@click.group()
def stream() -> None:
    """Streams: what services are asked for, entry by entry."""


@stream.command()
@click.argument("service")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(service: str, as_json: bool) -> None:
    """What waits on SERVICE's stream, who has taken what, and how its lane is."""

    async def look() -> dict[str, Any]:
        settings = load_settings()
        async with server(settings) as client:
            return await state_of(client, settings.agent_id, service)

    found = run(look())
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))


async def state_of(client: Redis, agent_id: str, service: str) -> dict[str, Any]:
    """All of it; ages and idle times in seconds. `group` is None while no bridge has been there."""
    name, group = keys.stream_key(service), keys.group_name(service)
    entries = int(await client.xlen(name))
    found: dict[str, Any] = {
        "stream": name,
        "service": service,
        "entries": entries,
        "waiting": entries,
        "group": None,
        "consumers": [],
        "oldest": [],
        "lane": None,
        "dead_letters": int(await reply(client.llen(keys.dead_letters_key(service)))),
        "quarantined": int(await reply(client.llen(keys.quarantine_key(service)))),
    }
    if service in AGENT_TASKS:
        found["lane"] = await _lane(client, agent_id, service)
    groups = {row["name"].decode(): row for row in await _or_none(client.xinfo_groups(name))}
    if group not in groups:
        return found
    row = groups[group]
    found["group"] = {"name": group, "pending": row["pending"], "last_delivered": row["last-delivered-id"].decode()}
    found["waiting"] = max(0, entries - row["pending"])
    found["consumers"] = [
        {"name": who["name"].decode(), "pending": who["pending"], "idle": who["idle"] / 1000}
        for who in await _or_none(client.xinfo_consumers(name, group))
    ]
    pending = await client.xpending_range(name, group, "-", "+", OLDEST)
    found["oldest"] = [await _entry(client, name, row) for row in pending]
    return found


async def _or_none(call: Any) -> list[Any]:
    """The rows; none where there is no such stream or group."""
    try:
        return list(await call)
    except ResponseError as error:
        if str(error).lower().startswith(("no such key", "nogroup")):
            return []
        raise


async def _lane(client: Redis, agent_id: str, service: str) -> dict[str, Any]:
    lane = lane_for_task(service)
    queue = LaneQueue(client, name=queue_name(agent_id, lane))
    counts = {kind: int(await queue.count(kind)) for kind in ("queued", "active", "incomplete")}
    paused = await reply(client.smismember(keys.PAUSED, [lane, service]))
    return {
        "name": lane,
        "queue": queue.name,
        "queued": counts["queued"],
        "running": counts["active"],
        "later": max(0, counts["incomplete"] - counts["queued"] - counts["active"]),
        "paused": any(paused),
    }


async def _entry(client: Redis, name: str, row: Any) -> dict[str, Any]:
    entry = row["message_id"].decode()
    stands = await client.xrange(name, entry, entry)
    fields = stands[0][1] if stands else None
    record = None if fields is None else fields.get(b"record_id", b"").decode("utf-8", "replace")
    return {
        "entry": entry,
        "record_id": record,
        "age": max(0.0, time.time() - int(entry.partition("-")[0]) / 1000),
        "idle": row["time_since_delivered"] / 1000,
        "consumer": row["consumer"].decode(),
        "deleted": fields is None,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    group = found["group"]
    taken = "no bridge has been there yet" if group is None else f"{group['pending']:,} pending in {group['name']}"
    out = [f"{found['stream']}: {_entries(found['entries'])}, {found['waiting']:,} not yet taken, {taken}"]
    out += [
        f"  consumer {who['name']}: {who['pending']:,} pending, idle {duration_text(who['idle'])}"
        for who in found["consumers"]
    ]
    for entry in found["oldest"]:
        record = "deleted" if entry["deleted"] else f"record {entry['record_id']}"
        age, idle = duration_text(entry["age"]), duration_text(entry["idle"])
        out.append(f"  pending {entry['entry']}: {record}, {age} old, touched {idle} ago by {entry['consumer']}")
    if (lane := found["lane"]) is None:
        out.append(f"  lane: {found['service']} is no task of this machine (`phaze doctor` shows those that are)")
    else:
        held = ", paused" if lane["paused"] else ""
        counts = f"{lane['queued']:,} queued, {lane['running']:,} running, {lane['later']:,} later"
        out.append(f"  lane {lane['name']}: {counts}{held}")
    out.append(f"  dead letters: {found['dead_letters']:,}, quarantined: {found['quarantined']:,}")
    return out


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


async def find_entry(client: Redis, service: str, record_id: str, most: int) -> dict[str, Any] | None:
    """The oldest entry for a record among the `most` oldest of its service's stream, if there is one."""
    name, start = keys.stream_key(service), "-"
    while most > 0:
        rows = await client.xrange(name, start, "+", count=min(1000, most))
        for entry, fields in rows:
            if fields.get(b"record_id") == record_id.encode("utf-8", "surrogateescape"):
                taken = await _or_none(client.xpending_range(name, keys.group_name(service), entry, entry, 1))
                return {"entry": entry.decode(), "taken_by": taken[0]["consumer"].decode() if taken else None}
        if not rows:
            return None
        most -= len(rows)
        start = f"({rows[-1][0].decode()}"
    return None
