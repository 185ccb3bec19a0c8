"""Which of the folders and files that were given are to be looked at, when some lie in others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipelines.music.listing import is_audio


def outermost(roots: Sequence[Path]) -> list[Path]:
    """Without those that a look at another one takes in; of several names of one place the first, in the given order.

    A link within a folder is not followed when that is looked at: what it leads to outside stays, and so does a file
    that is taken only because it is named.
    """
    places: dict[Path, Path] = {}
    for root in roots:
        places.setdefault(Path(os.path.realpath(root)), root)
    return [root for place, root in places.items() if not (places.keys() & set(place.parents) and _is_taken(place))]


def _is_taken(place: Path) -> bool:
    """Whether a scan of the folder around it takes it."""
    try:
        return not place.is_file() or is_audio(bytes(place))
    except OSError:
        return False
