"""`phaze health`: the answer to a container's health check, in the exit code.

It imports next to nothing, because it runs every few seconds beside each worker.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from pathlib import Path

import click

from agent.errors import ConfigError, UserError

STALE = 10.0
"""Seconds after the last touch; a healthy worker touches its file every second."""

NEEDED = "the queue server (a worker), or its folders and the hub (a watcher)"

ANSWER = 4.0
"""Seconds for a URL to answer."""


@click.command()
@click.argument("url", required=False)
def health(url: str | None) -> None:
    """Whether the process of PHAZE_HEALTH_FILE is healthy; with URL, whether that answers. Exit code 1 if not.

    A worker is healthy while it reaches the queue server and its loops turn, a watcher while it watches all its folders
    and the hub takes what it tells.
    """
    if url is not None:
        _answers(url)
        return
    place = os.environ.get("PHAZE_HEALTH_FILE")
    if not place:
        raise UserError("PHAZE_HEALTH_FILE is not set; set it to the file that the worker or watcher touches")
    try:
        age = time.time() - Path(place).stat().st_mtime
    except OSError:
        raise UserError(f"unhealthy: it has not yet reached {NEEDED}") from None
    if age > STALE:
        raise UserError(f"unhealthy: it last reached {NEEDED}, all its loops turning, {age:.0f} s ago")
    click.echo("healthy")


def must_be_writable(file: Path | None) -> None:
    """Raises ConfigError for a PHAZE_HEALTH_FILE that can never be touched: its process would count as ill for ever."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"PHAZE_HEALTH_FILE={file} cannot be written; name a file in a folder that this user may write"
        )


def _answers(url: str) -> None:
    if not url.startswith("http://"):
        raise UserError(f"{url} is not an http:// address")
    try:
        with urllib.request.urlopen(url, timeout=ANSWER):  # noqa: S310 - the scheme was looked at
            click.echo("healthy")
    except (OSError, ValueError) as error:
        raise UserError(f"unhealthy: {url} does not answer ({getattr(error, 'reason', error)})") from None
