"""Asking the hub for scans. What it cannot take now stays with whoever asks, who comes again."""

from __future__ import annotations

import time
from typing import Any

import structlog

from agent.errors import UserError
from agent.operator.hub import Hub, HubRefused
from agent.settings import Settings
from agent.throttle import OncePer

log = structlog.get_logger()

ANSWER = 15.0
"""Seconds for one answer."""

FIRST_BACKOFF, MAX_BACKOFF = 0.5, 30.0

HOPELESS = frozenset({400, 413, 422})
"""What no repetition makes better."""


class Delivery:
    """`send` until it is True. `well`: whether the last one was taken."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._hub: Hub | None = None
        self._failures = 0
        self._next = 0.0
        self._complain = OncePer(60.0)

    @property
    def well(self) -> bool:
        """Whether nothing has failed since something was taken."""
        return self._failures == 0

    def send(self, body: dict[str, Any]) -> bool:
        """Whether the hub has taken a request for scans, or would not however often it came; False soon after a
        failure."""
        if time.monotonic() < self._next:
            return False
        try:
            if self._hub is None:
                self._hub = Hub(self._settings, ANSWER)  # anew after a failure: it may have another address by now
            self._hub.post("/api/scans", body)
        except HubRefused as error:
            if error.status in HOPELESS:
                log.error("watch.refused", error=str(error), remedy="the next scan of everything makes up for it")
                return True
            return self._failed(error)
        except UserError as error:
            return self._failed(error)
        if self._failures:
            log.info("watch.hub_answers", failures=self._failures)
        self._failures = 0
        return True

    def _failed(self, error: UserError) -> bool:
        self._failures += 1
        self._next = time.monotonic() + min(FIRST_BACKOFF * 2**self._failures, MAX_BACKOFF)
        if self._hub is not None:
            self._hub.close()
            self._hub = None
        if self._complain():
            log.warning("watch.hub_away", error=str(error), failures=self._failures,
                        meaning="nothing is lost; it is told when it answers")  # fmt: skip
        return False

    def close(self) -> None:
        """Close the connection."""
        if self._hub is not None:
            self._hub.close()
