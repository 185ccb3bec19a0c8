"""Fingerprints are compared in a process of its own, which can be ended at any moment.

    hub: compare_aside --starts--> `python -m agent.hub.comparing CATALOGUE HUB_PID` --a Comparison as JSON--> hub

Minutes of pure computing in a thread of the hub would slow every answer down (one interpreter runs one thread at a
time) and outlast a SIGTERM. The process reads the catalogue itself, writes nothing, and ends with the hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import structlog

from agent.hub.database import Database
from agent.hub.duplicates import Comparison, DuplicateGroups, compare
from agent.throttle import OncePer
from pipelines.lifeline import die_with_parent

log = structlog.get_logger()

PERIOD = 2.0
"""Seconds between looks for new fingerprints."""

NICENESS = 10
"""Nobody waits for it: analyses and answers come first."""


async def compare_aside(catalogue: Path, groups: DuplicateGroups) -> None:
    """Keep `groups` up to date until cancelled; what fails is tried again after a rest, and said once a minute."""
    complain = OncePer(60.0)
    while True:
        started = time.monotonic()
        try:
            if await asyncio.to_thread(groups.due):
                groups.take(await _compare(catalogue))
        except Exception as error:
            groups.rest(time.monotonic() - started)
            if complain():
                log.warning("duplicates.waiting", error=str(error) or repr(error))
        await asyncio.sleep(PERIOD)


async def _compare(catalogue: Path) -> Comparison:
    """Raises RuntimeError with the process's last words."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(catalogue), str(os.getpid())),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for the hub, which ends it
    )
    try:
        said, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
    if process.returncode != 0:
        last = complaints.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"comparing fingerprints ended with {process.returncode}: {last}")
    return Comparison(**json.loads(said))


def main() -> None:
    """Compare, and write the Comparison to standard output."""
    catalogue, parent = sys.argv[1:]
    die_with_parent(int(parent))
    os.nice(NICENESS)
    database = Database(Path(catalogue), read_only=True)
    try:
        json.dump(asdict(compare(database.read)), sys.stdout)
    finally:
        database.close()


if __name__ == "__main__":
    main()
