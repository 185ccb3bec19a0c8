"""`phaze lanes`: how much waits and runs on each queue of an agent."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from agent.display import duration_text
from agent.operator.server import run, server
from agent.queue_activity import QueueActivity, get_queue_activity
from agent.settings import load_settings

NUMBERS = ("queued", "active", "scheduled", "parked")
REFRESH = 1.0
"""Seconds between two looks of --watch."""

PIPE_WIDTH = 200
"""Characters of a line that is not for a terminal: whoever searches it finds a remark on its lane's line."""


@click.command()
@click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: one list, with --watch a line a look.")
def lanes(watch: bool, as_json: bool) -> None:
    """What waits and runs on each lane of this agent, and on its base queue from before lanes."""
    settings = load_settings()

    async def look() -> None:
        async with server(settings) as client:
            with _screen(watch=watch, as_json=as_json) as show:
                while True:
                    show(await get_queue_activity(client, [settings.agent_id]))
                    if not watch:
                        return
                    await asyncio.sleep(REFRESH)

    try:
        run(look())
    except KeyboardInterrupt:
        return


@contextmanager
def _screen(*, watch: bool, as_json: bool) -> Iterator[Callable[[list[QueueActivity]], None]]:
    """What shows the rows: on a terminal in place of those before, into a pipe after them, as JSON a line a look."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if as_json:
        indent = None if watch else 2
        yield lambda rows: click.echo(json.dumps([asdict(row) for row in rows], indent=indent))
    elif watch and sys.stdout.isatty():
        with Live(console=console, auto_refresh=False) as live:
            yield lambda rows: live.update(table(rows), refresh=True)
    else:
        yield lambda rows: console.print(table(rows))


def table(rows: Iterable[QueueActivity]) -> Table:
    """The rows as people read them; a base queue, or a lane for documents, that nobody uses is left out."""
    shown = Table("lane", *NUMBERS, "oldest", "workers", "", box=None, header_style="bold")
    for column in shown.columns[1:7]:
        column.justify = "right"
    for row in rows:
        if not row.is_used:
            continue
        numbers = [f"{getattr(row, name):,}" for name in NUMBERS]
        oldest = duration_text(row.oldest)
        shown.add_row(row.lane or "(base queue)", *numbers, oldest, str(row.workers), row.error or row.remark)
    return shown
