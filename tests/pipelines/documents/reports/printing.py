"""Printing a layout: the head of the page, the tables, the foot, and everything on it that is no result."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import replace

from tests.pipelines.documents.reports.analytes import LANGUAGES, SPECIMENS
from tests.pipelines.documents.reports.layouts import Column, Layout
from tests.pipelines.documents.reports.phrases import COMMENTS, HEADINGS, LABELS, LABS, PANELS, PEOPLE
from tests.pipelines.documents.reports.results import Row, again, visit
from tests.pipelines.documents.reports.sheet import Sheet

MARGIN = 42.0
GUTTER = 24.0
METHODS = ("CLIA", "HPLC", "ISE 2", "IFCC", "GPO-PAP", "")


class Printer:
    """One report in the making. `rows` is the truth about what has been printed."""

    def __init__(self, layout: Layout, chance: random.Random) -> None:
        self.layout, self.chance = layout, chance
        self.sheet = Sheet(layout.size, layout.font, layout.turned, layout.rotate)
        self.language = layout.printing.language
        self.rows: list[Row] = []
        latest = datetime.date(2019, 1, 1) + datetime.timedelta(days=chance.randrange(2000))
        self.days = [
            latest - datetime.timedelta(days=sum(chance.randrange(40, 200) for _ in range(i)))
            for i in range(layout.dates)
        ]
        self.person = chance.choice(PEOPLE[self.language])
        self.number = f"{chance.randrange(10**6, 10**7)}"

    def run(self) -> bytes:
        layout = self.layout
        drawn = visit(self.chance, layout.printing, self.chance.randint(*layout.rows), layout.findings)
        later = [again(self.chance, layout.printing, drawn.rows) for _ in self.days[1:]]
        previous = [*drawn.previous]
        entries = list(
            zip(
                drawn.panels,
                drawn.rows,
                previous,
                zip(*later, strict=True) if later else [()] * len(previous),
                strict=True,
            )
        )
        pages = self._paginate(entries)
        for number, page in enumerate(pages, start=1):
            if number > 1:
                self.sheet.next_page()
            y = self._head()
            y = self._tables(page, y, number)
            self._foot(y, number, len(pages))
        return self.sheet.finish()

    def _paginate(self, entries: list[tuple]) -> list[list[tuple]]:  # type: ignore[type-arg]
        most = self.layout.lines_a_page * self.layout.blocks
        return [entries[at : at + most] for at in range(0, len(entries), most)]

    def _label(self, key: str) -> str:
        return LABELS[key][self.language]

    def _head(self) -> float:
        """Letterhead and patient; returns where the tables may begin."""
        sheet, layout, right = self.sheet, self.layout, self.sheet.width - MARGIN
        sheet.text(MARGIN, 44, LABS["name"][self.language], 13, bold=True)
        sheet.text(MARGIN, 57, LABS["address"][self.language], 7)
        sheet.text(MARGIN, 66, LABS["phone"][self.language], 7)
        sheet.text(right, 44, self._label("title"), 11, bold=True, align="right")
        born = layout.printing.day(datetime.date(1950 + int(self.number[-2:]) % 50, 4, 17))
        collected = layout.printing.day(self.days[0])
        received = layout.printing.day(self.days[0] + datetime.timedelta(days=1))
        reported = layout.printing.day(self.days[0] + datetime.timedelta(days=2))
        middle = sheet.width / 2 + 10
        sheet.text(MARGIN, 86, f"{self._label('patient')}: {self.person}", 9)
        sheet.text(MARGIN, 98, f"{self._label('born')}: {born}   {self._label('sex')}", 9)
        sheet.text(MARGIN, 110, f"{self._label('number')}: {self.number}", 9)
        sheet.text(MARGIN, 122, self._label("doctor"), 9)
        sheet.text(middle, 86, f"{self._label('collected')}: {collected}  08:{int(self.number) % 50 + 10}", 9)
        sheet.text(middle, 98, f"{self._label('received')}: {received}", 9)
        sheet.text(middle, 110, f"{self._label('reported')}: {reported}", 9)
        sheet.line(MARGIN, 132, right, 132)
        return 150.0

    def _foot(self, y: float, page: int, pages: int) -> None:
        sheet = self.sheet
        if page == pages:
            comments = COMMENTS[self.language]
            for text in self.chance.sample(comments, min(self.layout.comments, len(comments))):
                y += 14
                sheet.text(MARGIN, y, text, 8)
        bottom = sheet.height - 24
        sheet.text(MARGIN, bottom, f"{LABS['name'][self.language]}  {self.number}", 7)
        sheet.text(sheet.width - MARGIN, bottom, self._label("page").format(page, pages), 7, align="right")

    def _tables(self, entries: Sequence[tuple], y: float, page: int) -> float:  # type: ignore[type-arg]
        layout = self.layout
        width = (self.sheet.width - 2 * MARGIN - (layout.blocks - 1) * GUTTER) / layout.blocks
        share = -(-len(entries) // layout.blocks)
        ends = []
        for block in range(layout.blocks):
            left = MARGIN + block * (width + GUTTER)
            part = entries[block * share : (block + 1) * share]
            ends.append(Table(self, left, width).draw(part, y, page))
        return max(ends)


class Table:
    """One table between `left` and `left + width`."""

    def __init__(self, printer: Printer, left: float, width: float) -> None:
        self.printer, self.layout, self.sheet = printer, printer.layout, printer.sheet
        self.left, self.right = left, left + width
        columns: list[tuple[Column, float]] = []
        for column, part in self.layout.columns:
            columns += [(column, part)] * (len(printer.days) if column == "value" else 1)
        total = sum(part for _, part in columns)
        self.columns: list[tuple[Column, float, float]] = []
        at = left
        for column, part in columns:
            step = width * part / total
            self.columns.append((column, at + 3, at + step - 3))
            at += step

    def draw(self, entries: Sequence[tuple], y: float, page: int) -> float:  # type: ignore[type-arg]
        layout, step = self.layout, self.layout.type_size * self.layout.leading
        if layout.header == "every" or (layout.header == "first" and page == 1):
            y = self._header(y, step)
        panel = None
        grid_top = y
        for number, (of, row, previous, later) in enumerate(entries):
            if layout.panels and of != panel:
                y = self._panel(of, y, step)
            panel = of
            y = self._row(number, of, row, previous, later, y, step, page)
        self._finish_rules(grid_top, y, step)
        return y

    def _header(self, y: float, step: float) -> float:
        dates = iter(self.printer.days)
        for column, x1, x2 in self.columns:
            text = HEADINGS[column][self.printer.language]
            if column == "value" and len(self.printer.days) > 1:
                text = self.layout.printing.day(next(dates))
            self._in(column, x1, x2, y, text, bold=True)
        if self.layout.rules in ("lines", "none", "leaders"):
            self.sheet.line(self.left, y + 4, self.right, y + 4)
        return y + step + 2

    def _panel(self, panel: str, y: float, step: float) -> float:
        language = self.printer.language
        text = PANELS[panel][language]
        if self.layout.specimen == "panel":
            text += f"  ({SPECIMENS[panel][LANGUAGES.index(language)]})"
        self.sheet.text(self.left + 3, y, text, self.layout.type_size, bold=True)
        return y + step

    def _row(
        self, number: int, panel: str, row: Row, previous: str, later: Sequence[Row], y: float, step: float, page: int
    ) -> float:
        layout, printer = self.layout, self.printer
        values = iter([row, *later])
        days = iter(printer.days)
        height = step
        if layout.rules == "shade" and number % 2:
            self.sheet.shade(self.left, y - 0.75 * step, self.right, y + 0.25 * step)
        for column, x1, x2 in self.columns:
            if column == "name":
                height = self._name(row, x1, x2, y, step)
            elif column == "value":
                shown = next(values)
                self._value(shown, x1, x2, y)
                self._true(shown, panel, next(days), page)
            elif column == "unit":
                if layout.raised and "^" in row.unit:
                    self.sheet.raised(x1, y, row.unit, layout.type_size)
                else:
                    self._in(column, x1, x2, y, row.unit)
            elif column == "range":
                unit = f" {row.unit}" if layout.unit == "range" and row.unit else ""
                self._in(column, x1, x2, y, row.reference + unit)
            elif column == "flag":
                self._in(column, x1, x2, y, row.flag)
            elif column == "previous":
                self._in(column, x1, x2, y, previous)
            elif column == "specimen":
                self._in(column, x1, x2, y, row.specimen)
            elif column == "method":
                self._in(column, x1, x2, y, printer.chance.choice(METHODS))
        y += height
        if layout.rules in ("lines", "grid"):
            self.sheet.line(self.left, y - 0.72 * step, self.right, y - 0.72 * step, 0.3)
        return y

    def _true(self, row: Row, panel: str, day: datetime.date, page: int) -> None:
        layout = self.layout
        shown = layout.flag in ("value", "before") or any(column == "flag" for column, *_ in self.columns)
        unit = "" if layout.unit == "none" else row.unit
        if layout.raised:
            unit = unit.replace("10^9", "10⁹").replace("10^12", "10¹²")
        flag = row.flag if shown and (day == self.printer.days[0] or layout.flag != "column") else ""
        specimen = row.specimen if layout.specimen in ("panel", "column") else ""
        self.printer.rows.append(replace(row, unit=unit, flag=flag, specimen=specimen, date=day.isoformat(), page=page))

    def _name(self, row: Row, x1: float, x2: float, y: float, step: float) -> float:
        """Print the name, in several lines if it must; returns the row's height."""
        layout = self.layout
        text = f"{row.name} ({row.unit})" if layout.unit == "name" and row.unit else row.name
        lines = self.sheet.wrap(text, layout.type_size, x2 - x1) if layout.wrapped else [text]
        close = layout.type_size * 1.15
        for number, line in enumerate(lines):
            end = x1 + self.sheet.text(x1, y + number * close, line, layout.type_size)
            if layout.rules == "leaders":
                dots = "." * int((x2 - end - 4) / self.sheet.width_of(".", layout.type_size))
                self.sheet.text(end + 2, y, dots, layout.type_size)
        return step + (len(lines) - 1) * close

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
        align = self.layout.value_align if column == "value" else "left"
        x = {"left": x1, "right": x2, "center": (x1 + x2) / 2}[align]
        self.sheet.text(x, y, text, self.layout.type_size, bold=bold, align=align)

    def _finish_rules(self, top: float, y: float, step: float) -> None:
        if self.layout.rules != "grid":
            return
        above, below = top - 1.75 * step, y - 0.72 * step
        for _, x1, _ in self.columns:
            self.sheet.line(x1 - 3, above, x1 - 3, below, 0.3)
        self.sheet.line(self.right, above, self.right, below, 0.3)
        self.sheet.line(self.left, above, self.right, above, 0.3)
