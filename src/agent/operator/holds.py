"""`phaze breaker`, `phaze pause`, `phaze resume`: what is held, by whom, and how to let it go."""

from __future__ import annotations

import time

import click

from agent.display import plural
from agent.errors import WrongUse
from agent.lanes import AGENT_TASKS, LANES
from agent.operator.server import run, server
from agent.phoenix import keys
from agent.phoenix.breaker import OPEN_MS, Breakers, Circuit, Forced
from agent.phoenix.scripts import Scripts
from agent.queue_activity import BASE_QUEUE
from agent.redis_client import reply
from agent.settings import load_settings

RELEASE = 1_000
"""Jobs that one step lets go."""


@click.group()
def breaker() -> None:
    """Circuit breakers: list them, hold one open or closed, or give it back to itself."""


@breaker.command("list")
def list_() -> None:
    """Every circuit that was ever used: its state, failures, and how many jobs wait for it."""

    async def look() -> list[Circuit]:
        async with server(load_settings()) as client:
            return await Breakers(Scripts(client), client).all(users=True)

    circuits = run(look())
    for circuit in circuits:
        click.echo(describe(circuit))
    click.echo(plural(len(circuits), "circuit"))


def describe(circuit: Circuit) -> str:
    """`s3.example: open for 12 s, tried again in 48 s, 40 jobs wait`."""
    said = [circuit.state.replace("_", " ")]
    if circuit.state == "open" and circuit.forced == "none":
        since = time.time() - circuit.opened
        said = [f"open for {since:.0f} s", f"tried again in {max(0.0, OPEN_MS / 1000 - since):.0f} s"]
    if circuit.forced != "none":
        said[0] = f"forced {circuit.forced} ({circuit.reason})"
    if circuit.failures:
        said.append(f"{plural(circuit.failures, 'failure')} in a row")
    if circuit.parked:
        said.append(f"{plural(circuit.parked, 'job')} wait")
    return f"{circuit.name}: {', '.join(said)}"


def _force(name: str, forced: Forced, reason: str) -> None:
    async def force() -> Circuit:
        async with server(load_settings()) as client:
            breakers = Breakers(Scripts(client), client)
            if not await reply(client.sismember(keys.circuits_key(name), name)):
                raise WrongUse(f"there is no circuit {name}; `phaze breaker list` shows them")
            await breakers.force(name, forced, reason)
            return await breakers.look(name)

    click.echo(describe(run(force())))


@breaker.command("open")
@click.argument("circuit")
@click.option("--reason", required=True, help="Why; shown to whoever looks.")
def open_(circuit: str, reason: str) -> None:
    """Hold a circuit open: its jobs wait until it is reset, and cost nothing."""
    _force(circuit, "open", reason)


@breaker.command()
@click.argument("circuit")
@click.option("--reason", required=True, help="Why; shown to whoever looks.")
def close(circuit: str, reason: str) -> None:
    """Hold a circuit closed: its jobs run whatever happens."""
    _force(circuit, "closed", reason)


@breaker.command()
@click.argument("circuit")
def reset(circuit: str) -> None:
    """Give a circuit back to itself, closed and without a past."""
    _force(circuit, "none", "")


def _known(name: str) -> str:
    known = dict.fromkeys((*LANES, *AGENT_TASKS))  # a lane of one task may have its name
    if name not in known and name != BASE_QUEUE:
        said = ", ".join(known)
        raise WrongUse(f"{name} is neither a lane nor a task; there are {said}, and {BASE_QUEUE} for the base queue")
    return name


@click.command()
@click.argument("name", metavar="LANE|TASK")
def pause(name: str) -> None:
    """Take no more jobs of a lane or a task; what runs goes on, what waits stays."""

    async def hold() -> None:
        async with server(load_settings()) as client:
            await reply(client.sadd(keys.PAUSED, _known(name)))

    run(hold())
    click.echo(f"{name} is paused; `phaze resume {name}` lets it go on")


@click.command()
@click.argument("name", metavar="LANE|TASK")
def resume(name: str) -> None:
    """Let a paused lane or task go on."""

    async def release() -> tuple[bool, int]:
        async with server(load_settings()) as client:
            was = bool(await reply(client.srem(keys.PAUSED, _known(name))))
            scripts, taken, moved = Scripts(client), RELEASE, 0
            while taken:
                taken, queued = await scripts("unpark", [keys.parked_key(f"paused:{name}")], [RELEASE])
                moved += queued
            return was, moved

    was, moved = run(release())
    click.echo(
        f"{name} {'goes on' if was else 'was not paused'}" + (f"; {plural(moved, 'job')} queued" if moved else "")
    )
