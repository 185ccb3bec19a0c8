"""Precision and recall of (name, value, unit) against a report's truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipelines.documents.facts import Biomarker
from tests.pipelines.documents.reports import Row


@dataclass
class Score:
    """Counts over any number of reports."""

    right: int = 0
    found: int = 0
    printed: int = 0

    def __iadd__(self, other: Score) -> Score:
        self.right += other.right
        self.found += other.found
        self.printed += other.printed
        return self

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.printed if self.printed else 1.0


def told(text: str) -> str:
    """What is compared: the printed characters without spaces, whichever of the two micro signs."""
    return "".join(text.split()).replace("\u03bc", "\u00b5")


def truth(rows: list[Row]) -> Counter[tuple[str, str, str]]:
    return Counter((told(row.name), told(row.value), told(row.unit)) for row in rows)


def said(found: list[Biomarker]) -> Counter[tuple[str, str, str]]:
    return Counter((told(marker.name), told(marker.value.printed), told(marker.unit)) for marker in found)


def score(found: list[Biomarker], rows: list[Row]) -> Score:
    """Each printed result counts once: found twice is once wrong."""
    right = said(found) & truth(rows)
    return Score(right.total(), len(found), len(rows))
