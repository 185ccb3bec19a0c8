"""Whether a report flags a result: what stands in the flags' column may say that all is well."""

from __future__ import annotations

from functools import cache

from pipelines.documents.facts import Biomarker
from pipelines.documents.names import plain, words


def is_flagged(marker: Biomarker) -> bool:
    """True where the report marks the result. `Normal` marks none; of `-` and `N`, which are `below` in some houses and
    `nothing`, `normal` in others, the printed range decides."""
    flag = plain(" ".join(marker.flag.split())).strip("()[]")
    if not flag or flag in _said("no flag"):
        return False
    return flag not in _said("unsure flag") or _is_outside(marker)


@cache
def _said(kind: str) -> frozenset[str]:
    return frozenset(words(kind))


def _is_outside(marker: Biomarker) -> bool:
    """By its own range, as printed; False where there is none."""
    number, reference = marker.value.number, marker.reference
    if number is None or reference is None:
        return False
    low, high = reference.low, reference.high
    return (low is not None and number < low) or (high is not None and number > high)
