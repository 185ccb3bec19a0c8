"""Python's collector of cycles, set for a process that runs jobs: as it comes, it takes a tenth of a worker's time."""

from __future__ import annotations

import gc

OBJECTS = 10_000
"""Containers more than were freed since the last look at the young ones. A batch of jobs makes more than Python's 700,
and counting references frees nearly all of them."""


def settle() -> None:
    """Once everything is imported, which stays for good: no collection walks through it any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS)
