"""What the hub does now and then, so that its catalogue does not grow for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from agent.hub.catalogue import Catalogue

log = structlog.get_logger()

EVERY = 6 * 3600.0
"""Seconds from one round to the next."""

BREATH = 0.1
"""Seconds between two days of calls, for whoever else writes."""


async def run(catalogue: Catalogue) -> None:
    """Until cancelled. What fails is tried again in the next round."""
    while True:
        try:
            more = True
            while more:
                more = await asyncio.to_thread(catalogue.roll_up_usage)
                await asyncio.sleep(BREATH)
        except Exception as error:
            log.warning("chores.failed", error=str(error) or repr(error))
        await asyncio.sleep(EVERY)
