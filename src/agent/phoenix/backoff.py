"""How long a failed job waits before it runs again."""

from __future__ import annotations

import random

CAP = 300.0
"""Seconds: the longest wait between two attempts."""


def retry_delay(attempt: int, jitter: float | None = None) -> float:
    """Seconds to wait after attempt number `attempt` (1 is the first).

    min(2^attempt * 2, 300): 4, 8, 16, 32, 64, 128, 256, 300 ..., then equal jitter: half of it fixed, half random, so
    that a herd does not return together. `jitter` in 0..1 replaces the random part. The exponent is bounded before it
    is raised: a float base overflows at attempt 1025.
    """
    ceiling = min(2.0 ** min(max(attempt, 1), 10) * 2, CAP)
    share = random.random() if jitter is None else jitter  # noqa: S311 - spreads load, guards nothing
    return ceiling / 2 + ceiling / 2 * share
