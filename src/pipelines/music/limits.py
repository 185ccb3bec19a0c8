"""How long a file may take, and how short is too short. Seconds unless said otherwise.

Scaled to the file's bytes, because that is all a producer knows. The worst sound per byte is speech at 8 kbit/s:
1 MB is 17 minutes, which cost 19 CPU-seconds to analyse and 2 to decode. Lanes share cores, so four times that.
"""

from __future__ import annotations

from pipelines.music.stream import Budget
from pipelines.payload import FilePayload

LONGEST = 12 * 3600.0
"""Seconds that any one run may take."""

MOST_AUDIO = 24 * 3600
"""Seconds of sound that one file may decode to; more is a bomb, or a stream that never ends."""


def analyze_seconds(payload: FilePayload, *, models: bool = False) -> float:
    """120 s, and 60 s for each MB; four times that where models listen."""
    return min(LONGEST, (4 if models else 1) * (120 + payload.size / 1e6 * 60))


def decode_seconds(payload: FilePayload) -> float:
    """For passes that decode and little else: 120 s, and 8 s for each MB."""
    return min(LONGEST, 120 + payload.size / 1e6 * 8)


def tag_seconds(payload: FilePayload) -> float:
    """Tags are read at both ends of a file, whatever its size; a slow disk may take a minute to wake."""
    return 180


def decode_budget(size: int) -> Budget:
    """What ffmpeg may use for a file of `size` bytes; wall time is the task's own concern, so it is wide."""
    return Budget(wall=LONGEST, cpu=60 + size / 1e6 * 10, output=MOST_AUDIO * 44_100 * 4)


def is_short(decoded: float, declared: float | None, estimated: bool, errors: int) -> bool:
    """True if clearly less came out than was declared: over a second and 2 % missing.

    A duration that was itself guessed from the bit rate counts only where decoding also met errors.
    """
    if declared is None or (estimated and not errors):
        return False
    return declared - decoded > max(1.0, 0.02 * declared)
