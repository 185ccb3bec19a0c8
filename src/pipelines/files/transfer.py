"""What transfers have in common."""

from __future__ import annotations

from pipelines.payload import FilePayload


def transfer_seconds(payload: FilePayload) -> float:
    """300 s, and what the file takes at 100 kB/s: a home line's uplink on a bad day."""
    return 300 + payload.size / 100_000
