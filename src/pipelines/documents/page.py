"""What one page of a document says, and where: lines of cells, whoever read them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

Source = Literal["text", "ocr", "mineru"]
"""Who read a page: the document's own text, the recogniser of a scanned picture, or a MinerU server."""

Category = Literal["lab_results", "diagnoses", "procedures", "genetics", "imaging", "other"]

MOST_PAGES = 2000
"""Of one document: what router, parser and the queue between them are made for."""


class Cell(BaseModel):
    """Words that stand together on a line, as between the columns of a table; positions in points from the left."""

    text: str
    left: float
    right: float


class Line(BaseModel):
    """One printed line, its cells from left to right; positions in points from the top of the page as it is read."""

    cells: list[Cell]
    top: float
    bottom: float

    @property
    def text(self) -> str:
        return "  ".join(cell.text for cell in self.cells)


class Page(BaseModel):
    """One page: its number from 1, its size in points as it is read (turned upright), its lines from top to bottom."""

    number: int
    width: float
    height: float
    source: Source
    lines: list[Line]
    categories: list[Category] = []

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)
