"""`phaze agents`: who may report to this hub. It changes the catalogue itself, so that a running hub knows at once."""

from __future__ import annotations

import json
import secrets
import time

import click
from rich.console import Console
from rich.table import Table

from agent import kept
from agent.display import duration_text
from agent.errors import WrongUse
from agent.forms import usable_agent_id
from agent.hub.beats import state_of
from agent.hub.catalogue import Catalogue, KnownAgent
from agent.settings import Settings, load_settings, secret_file


@click.group()
def agents() -> None:
    """Who may report to the hub on this data folder. A token is shown once: only its hash is kept."""


@agents.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, one list.")
def listed(as_json: bool) -> None:
    """Every agent, and when it was heard of last."""
    with Catalogue(load_settings().data_dir, read_only=True) as catalogue:
        known, now = catalogue.known_agents(), time.time()
    if as_json:
        rows = [{"id": one.id, "state": _state(one, now), "last_beat_at": one.last_beat_at} for one in known]
        click.echo(json.dumps(rows, indent=2))
        return
    shown = Table("agent", "state", "last beat", "host", box=None, header_style="bold")
    for one in known:
        age = "" if one.last_beat_at is None else f"{duration_text(max(0.0, now - one.last_beat_at))} ago"
        shown.add_row(one.id, _state(one, now), age, ascii(one.beat.get("hostname", ""))[1:-1][:60])
    Console().print(shown)


@agents.command()
@click.argument("agent_id", metavar="ID")
def add(agent_id: str) -> None:
    """Let a new agent in; prints its token, for its PHAZE_AGENT_TOKEN."""
    try:
        usable_agent_id(agent_id)
    except ValueError as error:
        raise WrongUse(f"{agent_id!r} {error}") from None
    settings = load_settings()
    with Catalogue(settings.data_dir) as catalogue:
        if _find(catalogue, agent_id) is not None:
            raise WrongUse(f"{agent_id} is known already; for a new token: phaze agents rotate {agent_id}")
        _give_token(settings, catalogue, agent_id)


@agents.command()
@click.argument("agent_id", metavar="ID")
def rotate(agent_id: str) -> None:
    """A new token for an agent, also for a revoked one; the old one ends at once. Prints the new one."""
    settings = load_settings()
    with Catalogue(settings.data_dir) as catalogue:
        _must_know(catalogue, agent_id)
        _give_token(settings, catalogue, agent_id)


@agents.command()
@click.argument("agent_id", metavar="ID")
def revoke(agent_id: str) -> None:
    """Let an agent in no longer, from this moment. What it has recorded stays."""
    with Catalogue(load_settings().data_dir) as catalogue:
        _must_know(catalogue, agent_id)
        catalogue.revoke_agent(agent_id)
    click.echo(f"{agent_id} is let in no longer; to let it in again: phaze agents rotate {agent_id}")


def _give_token(settings: Settings, catalogue: Catalogue, agent_id: str) -> None:
    token = secrets.token_urlsafe(kept.BYTES)
    catalogue.register_agent(agent_id, token)
    click.echo(token)
    if agent_id == settings.agent_id:
        file = secret_file("agent_token") or settings.data_dir / kept.AGENT_TOKEN
        click.echo(
            f"{agent_id} is the hub's own agent: give this token to the hub as well (PHAZE_AGENT_TOKEN, or the file "
            f"{file}), else its next start brings back the token it was given",
            err=True,
        )


def _find(catalogue: Catalogue, agent_id: str) -> KnownAgent | None:
    return next((one for one in catalogue.known_agents() if one.id == agent_id), None)


def _must_know(catalogue: Catalogue, agent_id: str) -> None:
    if _find(catalogue, agent_id) is None:
        known = ", ".join(one.id for one in catalogue.known_agents()) or "none yet"
        raise WrongUse(f"there is no agent {agent_id!r}; there are {known}")


def _state(one: KnownAgent, now: float) -> str:
    return "revoked" if one.revoked else state_of(one.last_beat_at, now)
