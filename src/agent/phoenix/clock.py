"""The clock by which a worker trusts its leases. It goes on while the machine sleeps, as the server's does."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def lease_clock() -> float:
        """Seconds; Linux' monotonic clock stands still during a suspend, this one does not (clock_gettime(2))."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    lease_clock = time.monotonic
