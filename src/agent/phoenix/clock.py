"""Clocks that part: while a machine sleeps its monotonic clock stands still, and anybody may set the server's."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def lease_clock() -> float:
        """Seconds, by which a worker trusts its leases: this one goes on during a suspend (clock_gettime(2))."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    lease_clock = time.monotonic


class Leaps:
    """Notices when the server's clock went ahead of this machine's: then leases are over that nobody could renew.

    Args:
        most: seconds by which it may go ahead between two looks.
        wait: seconds that those whose leases these are get to renew them.
    """

    def __init__(self, most: float, wait: float) -> None:
        self._most = most
        self._wait = wait
        self._ahead: float | None = None
        self._leapt = float("-inf")

    def settled(self, server_time: float) -> bool:
        """Whether no leap was seen for `wait` seconds, now that the server says this time (Unix seconds)."""
        now = time.monotonic()
        ahead = server_time - now
        if self._ahead is not None and ahead - self._ahead > self._most:
            self._leapt = now
        self._ahead = ahead
        return now - self._leapt > self._wait
