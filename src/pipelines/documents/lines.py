"""Words with positions become printed lines, and lines fall into cells where words stand apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.documents.page import Cell, Line

CELL_GAP = 0.9
"""Of the type size, between two words of one cell: more is the space between columns (a space is 0.25 to 0.35)."""

CLOSE = 0.12
"""Of the type size, between an exponent, or a word in another type, and what it belongs to: no space is meant."""

RAISED = 0.15
"""Of the type size: what stands higher by more is an exponent (typesetters raise it by 0.33)."""

SUPERSCRIPTS = str.maketrans("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻")

SAME_LINE = 0.5
"""Of the lower one's height, that two words must share to stand on one line: a raised exponent shares more, the line
above or below nothing."""


@dataclass
class Word:
    """Characters without a space between them; points from the left and from the top of the upright page."""

    text: str
    left: float
    right: float
    top: float
    bottom: float
    em: float
    """Size of its type."""

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def lines_of(words: Iterable[Word]) -> list[Line]:
    """Lines from top to bottom, cells from left to right."""
    rows: list[list[Word]] = []
    for word in sorted(words, key=lambda word: (word.middle, word.left)):
        row = next((row for row in reversed(rows[-3:]) if _shares(row, word)), None)
        if row is None:
            rows.append([word])
        else:
            row.append(word)
    lines = [_line(row) for row in rows]
    return sorted(lines, key=lambda line: (line.top + line.bottom) / 2)


def _shares(row: list[Word], word: Word) -> bool:
    """Whether the word stands on the line of the row's tallest."""
    tall = max(row, key=lambda other: other.bottom - other.top)
    shared = min(tall.bottom, word.bottom) - max(tall.top, word.top)
    return shared > SAME_LINE * min(tall.bottom - tall.top, word.bottom - word.top)


def _line(row: list[Word]) -> Line:
    row.sort(key=lambda word: word.left)
    cells = [Cell(text=row[0].text, left=row[0].left, right=row[0].right)]
    for before, word in itertools.pairwise(row):
        gap, cell = word.left - cells[-1].right, cells[-1]
        if gap > CELL_GAP * max(before.em, word.em):
            cells.append(Cell(text=word.text, left=word.left, right=word.right))
        elif gap > CLOSE * max(before.em, word.em):
            cell.text += f" {word.text}"
        else:
            cell.text += word.text.translate(SUPERSCRIPTS) if _is_exponent(before, word) else word.text
        cells[-1].right = max(cells[-1].right, word.right)
    return Line(cells=cells, top=min(word.top for word in row), bottom=max(word.bottom for word in row))


def _is_exponent(before: Word, word: Word) -> bool:
    """`10` and a small raised `9`: what is meant is 10⁹, not 109."""
    smaller, higher = word.em < 0.85 * before.em, before.bottom - word.bottom > RAISED * before.em
    return smaller and higher and before.text[-1].isdigit() and all(mark in "0123456789+-" for mark in word.text)
