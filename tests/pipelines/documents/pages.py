"""Pages as text: cells divided by ` | `, lines 14 points apart; a line `~` below another stands closer to it."""

from __future__ import annotations

from pipelines.documents.page import Cell, Line, Page

COLUMN = 110.0


def page(text: str, number: int = 1) -> Page:
    """Cells begin every 110 points; a line that begins with `~` is set 9 points below the last instead of 14."""
    lines = []
    top = 40.0
    for row in text.strip("\n").split("\n"):
        close = row.startswith("~")
        top += 9 if close else 14
        if not row.strip():
            continue
        cells = [
            Cell(text=part.strip(), left=40 + index * COLUMN, right=40 + index * COLUMN + 4.5 * len(part.strip()))
            for index, part in enumerate(row.lstrip("~").split("|"))
            if part.strip()
        ]
        lines.append(Line(cells=cells, top=top, bottom=top + 9))
    return Page(number=number, width=600, height=800, source="text", lines=lines)
