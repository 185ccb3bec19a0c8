"""Results in a table: columns, rules between them, panels as headings, names that wrap."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

from tests.pipelines.documents.reports.analytes import LANGUAGES, SPECIMENS
from tests.pipelines.documents.reports.entries import Entry, as_printed
from tests.pipelines.documents.reports.layouts import Column, Layout
from tests.pipelines.documents.reports.phrases import COMMENTS, HEADINGS, PANELS
from tests.pipelines.documents.reports.results import Row
from tests.pipelines.documents.reports.sheet import Sheet

METHODS = ("CLIA", "HPLC", "ISE 2", "IFCC", "GPO-PAP", "")
PADDING = 3.0
CLOSE = 1.15
"""Of the type size, between the lines of one wrapped name."""

ASCENT = 0.72
"""Of a row's height, from its upper rule to its baseline."""


class Table:
    """One table between `left` and `left + width`. `rows` is the truth about what has been drawn."""

    def __init__(
        self, sheet: Sheet, layout: Layout, left: float, width: float, days: list[datetime.date], chance: random.Random
    ) -> None:
        self.sheet, self.layout, self.days, self.chance = sheet, layout, days, chance
        self.rows: list[Row] = []
        self.left, self.right = left, left + width
        self.size, self.step = layout.type_size, layout.type_size * layout.leading
        repeated = [(c, part) for c, part in layout.columns for _ in (days if c == "value" else days[:1])]
        total = sum(part for _, part in repeated)
        self.columns: list[tuple[Column, float, float]] = []
        for column, part in repeated:
            right = left + width * part / total
            self.columns.append((column, left + PADDING, right - PADDING))
            left = right

    def draw(self, entries: Sequence[Entry], y: float, page: int) -> float:
        layout, top = self.layout, y
        self._rule(y)
        if layout.header == "every" or (layout.header == "first" and page == 1):
            y = self._header(y)
        panel = ""
        for number, entry in enumerate(entries):
            if layout.panels and entry.panel != panel:
                y = self._panel(entry.panel, y)
            panel = entry.panel
            y = self._entry(number, entry, y, page)
            if layout.comments_between and self.chance.random() < 0.2:
                text = self.chance.choice(COMMENTS[layout.printing.language])
                self.sheet.text(self.left + 12, y, text, self.size * 0.85)
                y += self.step
        if layout.rules == "grid":
            edges = [x1 - PADDING for _, x1, _ in self.columns] + [self.right]
            for x in edges:
                self.sheet.line(x, top - ASCENT * self.step, x, y - ASCENT * self.step, 0.3)
        return y

    def _rule(self, y: float) -> None:
        """The rule above the row whose baseline is `y`."""
        if self.layout.rules in ("lines", "grid"):
            self.sheet.line(self.left, y - ASCENT * self.step, self.right, y - ASCENT * self.step, 0.3)

    def _header(self, y: float) -> float:
        days = iter(self.days)
        for column, x1, x2 in self.columns:
            text = HEADINGS[column][self.layout.printing.language]
            if column == "value" and len(self.days) > 1:
                text = self.layout.printing.day(next(days))
            self._in(column, x1, x2, y, text, bold=True)
        if self.layout.rules == "none":
            self.sheet.line(self.left, y + 4, self.right, y + 4)
        self._rule(y + self.step)
        return y + self.step

    def _panel(self, panel: str, y: float) -> float:
        language = self.layout.printing.language
        text = PANELS[panel][language]
        if self.layout.specimen == "panel":
            text += f"  ({SPECIMENS[panel][LANGUAGES.index(language)]})"
        self.sheet.text(self.left + PADDING, y, text, self.size, bold=True)
        self._rule(y + self.step)
        return y + self.step

    def _entry(self, number: int, entry: Entry, y: float, page: int) -> float:
        layout, first = self.layout, entry.first
        lines = self._name_lines(first)
        height = self.step + (len(lines) - 1) * CLOSE * self.size
        if layout.rules == "shade" and number % 2:
            self.sheet.shade(self.left, y - ASCENT * self.step, self.right, y - ASCENT * self.step + height)
        beside = y + (height - self.step) / 2 if layout.centred else y
        results = iter(entry.results.items())
        for column, x1, x2 in self.columns:
            if column == "name":
                self._name(lines, x1, x2, y)
            elif column in ("value", "inside"):
                day, row = next(results)
                if column == "value" or not row.flag:
                    self._value(row, x1, x2, beside)
                self.rows.append(as_printed(row, layout, day, page))
            elif column == "outside":
                if first.flag:
                    self._value(first, x1, x2, beside)
            elif column == "unit" and layout.raised and "^" in first.unit:
                self.sheet.raised(x1, beside, first.unit, self.size)
            else:
                self._in(column, x1, x2, beside, self._text(column, entry))
        self._rule(y + height)
        return y + height

    def _text(self, column: Column, entry: Entry) -> str:
        row = entry.first
        if column == "range":
            return f"{row.reference} {row.unit}".strip() if self.layout.unit == "range" else row.reference
        if column == "method":
            return self.chance.choice(METHODS)
        return {"unit": row.unit, "flag": row.flag, "previous": entry.previous, "specimen": row.specimen}[column]

    def _name_lines(self, row: Row) -> list[str]:
        layout = self.layout
        text = f"{row.name} ({row.unit})" if layout.unit == "name" and row.unit else row.name
        if not layout.wrapped:
            return [text]
        x1, x2 = next((x1, x2) for column, x1, x2 in self.columns if column == "name")
        return self.sheet.wrap(text, self.size, x2 - x1)

    def _name(self, lines: list[str], x1: float, x2: float, y: float) -> None:
        end = x1
        for number, line in enumerate(lines):
            end = x1 + self.sheet.text(x1, y + number * CLOSE * self.size, line, self.size)
        if self.layout.rules == "leaders":
            dots = "." * int((x2 - end - 4) / self.sheet.width_of(".", self.size))
            self.sheet.text(end + 2, y, dots, self.size)

    def _value(self, row: Row, x1: float, x2: float, y: float) -> None:
        layout, text = self.layout, row.value
        if layout.unit == "value" and row.unit:
            text = f"{text} {row.unit}"
        if layout.flag == "value" and row.flag:
            text = f"{text} {row.flag}"
        if layout.flag == "before" and row.flag:
            text = f"{row.flag} {text}"
        self._in("value", x1, x2, y, text, bold=bool(row.flag))

    def _in(self, column: Column, x1: float, x2: float, y: float, text: str, *, bold: bool = False) -> None:
        align = self.layout.value_align if column in ("value", "previous") else "left"
        x = {"left": x1, "right": x2, "center": (x1 + x2) / 2}[align]
        self.sheet.text(x, y, text, self.size, bold=bold, align=align)
