"""`phaze drain`: empty the base queue from before lanes, and know when it is."""

from __future__ import annotations

import asyncio
import math
import time

import click
from redis.asyncio import Redis

from agent.display import plural
from agent.lanes import base_queue_name
from agent.operator.server import run, server
from agent.phoenix import keys
from agent.phoenix.queue import LaneQueue
from agent.queue_activity import QueueActivity, base_queue_activity, get_queue_activity
from agent.redaction import redact_text
from agent.settings import load_settings

NOT_DRAINED = 4
"""Exit code of a wait whose time is over."""

LOOK = 1.0
SAY_AGAIN = 30.0
"""Seconds after which the same numbers are said once more."""

SHOWN = 20
"""Jobs that are named one by one when the time is over."""


@click.group()
def drain() -> None:
    """The base queue from before lanes: what is left on it, and waiting until it is empty."""


@drain.command()
def status() -> None:
    """What is left on the base queue."""
    settings = load_settings()

    async def look() -> QueueActivity:
        async with server(settings) as client:
            await _say_if_unknown(client, settings.agent_id)
            return await base_queue_activity(client, settings.agent_id)

    click.echo(describe(run(look())))


@drain.command()
@click.option("--timeout", type=click.FloatRange(min=0), default=None, help="Seconds to wait at most; else for ever.")
def wait(timeout: float | None) -> None:
    """Wait until the base queue is empty: nothing queued, running, scheduled or parked, twice in a row.

    Exit code 0 then, 4 when the time is over.
    """
    if timeout is not None and not math.isfinite(timeout):
        raise click.BadParameter("must be a number of seconds; leave it out to wait for ever", param_hint="'--timeout'")
    settings = load_settings()

    async def until_empty() -> list[str] | None:
        async with server(settings) as client:
            await _say_if_unknown(client, settings.agent_id)
            if await _empty_in_time(client, settings.agent_id, timeout):
                return None
            return await left_over(client, base_queue_name(settings.agent_id))

    left = run(until_empty())
    if left is None:
        click.echo("drained")
        return
    click.echo(f"not drained in {timeout:g} s; what is left:")
    for line in left:
        click.echo(f"  {line}")
    raise SystemExit(NOT_DRAINED)


async def _say_if_unknown(client: Redis, agent_id: str) -> None:
    """A misspelt name has an empty queue too."""
    rows = await get_queue_activity(client, [agent_id])
    if not any(row.error or row.workers or row.unsettled for row in rows):
        click.echo(
            f"warning: no worker of an agent {agent_id} runs, and no queue of it holds a job; PHAZE_AGENT_ID must be "
            "the name of the one that is drained",
            err=True,
        )


async def _empty_in_time(client: Redis, agent_id: str, timeout: float | None) -> bool:
    deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
    said, said_at, empty = "", 0.0, 0
    while True:
        row = await base_queue_activity(client, agent_id)
        empty = empty + 1 if row.error is None and row.unsettled == 0 else 0
        if empty == 2:
            return True
        words = describe(row)
        if words != said or time.monotonic() - said_at > SAY_AGAIN:
            click.echo(words)
            said, said_at = words, time.monotonic()
        left = deadline - time.monotonic()
        if left <= 0 and not empty:
            return False
        await asyncio.sleep(LOOK if empty else min(LOOK, left))  # what is empty in the end is looked at once more


def describe(row: QueueActivity) -> str:
    """`phaze-agent-local: 12 queued, 2 active, 0 scheduled, 0 parked`, and what is wrong about it."""
    if row.error is not None:
        return f"{row.queue}: its counts cannot be told: {row.error}"
    numbers = f"{row.queued:,} queued, {row.active:,} active, {row.scheduled:,} scheduled, {row.parked:,} parked"
    if row.unsettled and not row.workers:
        numbers += "; nobody consumes it, so that it will never be empty: start a worker with PHAZE_AGENT_LANE unset"
    elif row.paused:
        numbers += f"; {' and '.join(f'{name} is paused: `phaze resume {name}`' for name in row.pauses)}"
    return f"{row.queue}: {numbers}"


async def left_over(client: Redis, name: str) -> list[str]:
    """The jobs that keep a queue from being empty, and what each waits for."""
    queue = LaneQueue(client, name=name)
    ids = await client.zrange(keys.incomplete_key(name), 0, SHOWN - 1, withscores=True)
    lines = []
    for job_id, due in ids:
        job = queue.readable(await client.get(job_id))
        key = job_id.decode("utf-8", "replace").removeprefix(queue.prefix)
        lines.append(f"{key}: {_why(due)}" + (f"; {_last_line(job.error)}" if job is not None and job.error else ""))
    more = await client.zcard(keys.incomplete_key(name)) - len(lines)
    return [*lines, f"and {plural(more, 'job')} more; `phaze why KEY` tells of each"] if more > 0 else lines


def _why(due: float) -> str:
    if due >= keys.FAR_FUTURE:
        return "parked, waits for a circuit or the end of a pause (`phaze why` names it)"
    if due > 0:
        return f"waits {max(0.0, due - time.time()):.0f} s for its next attempt"
    return "waits for a worker, or runs"


def _last_line(error: str) -> str:
    return redact_text(error.strip().splitlines()[-1])[:200]
