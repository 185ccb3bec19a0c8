"""`phaze usage`: how many tokens calls to models came to, by user, or by record of one user."""

from __future__ import annotations

import datetime
import json
import re
import time
from typing import Any
from urllib.parse import urlencode

import click

from agent.display import plural
from agent.errors import WrongUse
from agent.operator.hub import Hub
from agent.settings import load_settings

UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@click.command()
@click.option("--user", default=None, metavar="ID", help="One user's, by record.")
@click.option("--since", default="", metavar="WHEN", help="24h, 7d, 4w; or a date or time as 2026-11-30 (UTC).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def usage(user: str | None, since: str, as_json: bool) -> None:
    """Show the tokens that calls to models came to, of runs that failed too."""
    hub = Hub(load_settings())
    chosen = {"since": f"{moment(since):.3f}", **({} if user is None else {"user": user})}
    kind = "users" if user is None else "records"
    found: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    page, more = 1, True
    while more:
        found = hub.get(f"/api/usage?{urlencode({**chosen, 'page': page}, errors='surrogatepass')}")
        rows += found[kind]
        page, more = page + 1, bool(found.pop("more"))
    if as_json:
        click.echo(json.dumps({**found, kind: rows}, indent=2))
        return
    for row in rows:
        click.echo(f"{_name(row)}: {numbers(row)}")
    click.echo(f"{plural(len(rows), kind[:-1])}: {numbers(found['total'])}")


def numbers(row: dict[str, Any]) -> str:
    """`1,200 prompt + 80 completion tokens, 3 calls`."""
    tokens = f"{row['prompt_tokens']:,} prompt + {row['completion_tokens']:,} completion tokens"
    return f"{tokens}, {plural(row['calls'], 'call')}"


def _name(row: dict[str, Any]) -> str:
    if "record_id" not in row:
        name = row["user"] or "no user"
    elif row["record_id"]:
        name = f"{row['service']}:{row['record_id']}"
    else:
        name = f"{row['service']}, more than 90 days ago"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def moment(text: str) -> float:
    """Unix seconds of `7d` ago, or of a date in UTC unless it says otherwise; 0 for nothing. Raises WrongUse."""
    if not text:
        return 0.0
    if found := re.fullmatch(r"(\d{1,9})([mhdw])", text):
        return max(0.0, time.time() - int(found[1]) * UNITS[found[2]])
    try:
        when = datetime.datetime.fromisoformat(text)
        return max(0.0, (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp())
    except (ValueError, OverflowError):
        raise WrongUse(f"--since {text} is no time; write 24h, 7d, or a date as 2026-11-30") from None
