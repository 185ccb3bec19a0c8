"""Results without a table: one card for each test, or one after the other on a line, as in a letter."""

from __future__ import annotations

from collections.abc import Sequence

from tests.pipelines.documents.reports.entries import Entry, as_printed
from tests.pipelines.documents.reports.layouts import Layout
from tests.pipelines.documents.reports.phrases import LABELS, PANELS
from tests.pipelines.documents.reports.results import Row
from tests.pipelines.documents.reports.sheet import Sheet

Drawn = tuple[float, list[Row]]
"""Where the next thing may stand, and the truth about what has been drawn."""


def draw_cards(
    sheet: Sheet, layout: Layout, entries: Sequence[Entry], left: float, right: float, y: float, page: int
) -> Drawn:
    """Name in bold; below it the healthy range with the unit; below that the value: as patient portals print it."""
    rows, size, step = [], layout.type_size, layout.type_size * 1.35
    normal, value = (LABELS[key][layout.printing.language] for key in ("normal", "value"))
    for entry in entries:
        (day, row), *_ = entry.results.items()
        sheet.text(left, y, row.name, size + 1, bold=True)
        if row.reference:
            sheet.text(left + 8, y + step, f"{normal}: {row.reference} {row.unit}".strip(), size)
        sheet.text(left + 8, y + 2 * step, value, size)
        end = left + 60 + sheet.text(left + 60, y + 2 * step, row.value, size, bold=True)
        end += 4 + sheet.text(end + 4, y + 2 * step, row.unit, size)
        if row.flag:
            sheet.text(end + 10, y + 2 * step, row.flag, size, bold=True)
        rows.append(as_printed(row, layout, day, page))
        y += 3 * step + 8
        sheet.line(left, y - step - 2, right, y - step - 2, 0.3)
    return y, rows


def draw_sentences(
    sheet: Sheet, layout: Layout, entries: Sequence[Entry], left: float, right: float, y: float, page: int
) -> Drawn:
    """A panel a paragraph: `Sodium 140 mmol/L (135-145), Potassium 5.4 H mmol/L (3.5-5.1), ...`."""
    rows, size, step = [], layout.type_size, layout.type_size * layout.leading
    for panel in dict.fromkeys(entry.panel for entry in entries):
        said = []
        for entry in entries:
            if entry.panel != panel:
                continue
            (day, row), *_ = entry.results.items()
            reference = f" ({row.reference})" if row.reference else ""
            value = f"{row.value} {row.flag}" if row.flag else row.value
            said.append(f"{row.name}: {value} {row.unit}".rstrip() + reference)
            rows.append(as_printed(row, layout, day, page))
        sheet.text(left, y, PANELS[panel][layout.printing.language], size, bold=True)
        y += step
        for line in sheet.wrap("; ".join(said), size, right - left):
            sheet.text(left, y, line, size)
            y += step
        y += step / 2
    return y, rows
