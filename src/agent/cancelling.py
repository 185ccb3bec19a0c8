"""Ending background tasks for certain.

A single cancel may be lost: a library that catches CancelledError while it puts a connection away, or a wait that is
fulfilled in the same moment, goes on as if nothing had been said. So it is said again until the task has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import structlog

log = structlog.get_logger()

AGAIN = 0.25
"""Seconds between two cancels of the same task."""


async def end(tasks: Iterable[asyncio.Task[Any]], within: float = 10.0) -> bool:
    """Cancel `tasks` until they have ended, for `within` seconds at most. Their exceptions are logged, not raised."""
    pending = set(tasks)
    deadline = time.monotonic() + within
    while pending and time.monotonic() < deadline:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=AGAIN)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("task.failed", name=task.get_name(), error=f"{type(error).__name__}: {error}")
    for task in pending:
        log.error("task.did_not_end", name=task.get_name(), within=within)
    return not pending
