"""Numbers as people type and read them."""

from __future__ import annotations

import click

AT_MOST = click.IntRange(min=1, max=2**31 - 1)
"""How many rows somebody wants; SQLite takes no more than 2**63 - 1."""


def duration_text(seconds: float | None) -> str:
    """`3:07`, `1:02:03`; empty for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`, `2 tracks that are gone`."""
    if count == 1:
        return f"{count:,} {noun}"
    first, _, rest = noun.partition(" that is ")
    first = "pipes or devices" if first == "pipe or device" else f"{first}s"
    return f"{count:,} {first}" + (f" that are {rest}" if rest else "")
