"""Saying things once per period: a line a minute, not a line a failure."""

from __future__ import annotations

import time


class OncePer:
    """`if complain(): log(...)`: true at first, then once `period` seconds have passed since the last true."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._last = -float("inf")

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._period:
            return False
        self._last = now
        return True
