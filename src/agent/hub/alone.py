"""One hub on a catalogue: a second one would queue and count everything beside the first, and take away its address."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.errors import ConfigError

PREDECESSOR = 5.0
"""Seconds for another hub to end that is being replaced."""

LOOK = 0.1


@asynccontextmanager
async def alone_on(folder: Path) -> AsyncIterator[None]:
    """Hold the folder, which is made where there is none, until this process or the body ends.

    It is the folder itself that is locked (flock): nothing of it is left, whoever is killed. Where a file system knows
    no such locks there is none. Raises ConfigError where another hub holds it.
    """
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - what pathlib does blocks as little
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # whoever opens the catalogue says what is wrong with its folder
        yield
        return
    try:
        await _lock(held, folder)
        yield
    finally:
        os.close(held)


async def _lock(held: int, folder: Path) -> None:
    deadline = time.monotonic() + PREDECESSOR
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"another hub runs on {folder}, of which only one may; end that one, or set PHAZE_DATA_DIR to "
                    "another folder"
                ) from None
            await asyncio.sleep(LOOK)
        except OSError:
            return
        else:
            return
