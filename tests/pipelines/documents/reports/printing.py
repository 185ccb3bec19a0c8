"""Printing a layout: the head of each page, what the arrangement makes of the results, comments, and the foot."""

from __future__ import annotations

import datetime
import random

from tests.pipelines.documents.reports.entries import Entry
from tests.pipelines.documents.reports.layouts import Layout
from tests.pipelines.documents.reports.phrases import COMMENTS, LABELS, LABS, PEOPLE
from tests.pipelines.documents.reports.prose import draw_cards, draw_sentences
from tests.pipelines.documents.reports.results import Row, again, visit
from tests.pipelines.documents.reports.sheet import Sheet
from tests.pipelines.documents.reports.tables import Table

MARGIN = 42.0
GUTTER = 24.0


class Printer:
    """One report in the making. `rows` is the truth about what has been printed."""

    def __init__(self, layout: Layout, chance: random.Random) -> None:
        self.layout, self.chance = layout, chance
        self.sheet = Sheet(layout.size, layout.font, layout.turned, layout.rotate)
        self.language = layout.printing.language
        self.rows: list[Row] = []
        day = datetime.date(2019, 1, 1) + datetime.timedelta(days=chance.randrange(2000))
        self.days = [day]
        for _ in range(layout.dates - 1):
            self.days.append(self.days[-1] - datetime.timedelta(days=chance.randrange(40, 200)))
        self.days.sort(reverse=not layout.oldest_first)
        self.person = chance.choice(PEOPLE[self.language])
        self.number = f"{chance.randrange(10**6, 10**7)}"

    def run(self) -> bytes:
        entries = self._entries()
        most = self.layout.lines_a_page * self.layout.blocks
        pages = [entries[at : at + most] for at in range(0, len(entries), most)]
        for number, page in enumerate(pages, start=1):
            if number > 1:
                self.sheet.next_page()
            y = self._body(page, self._head(), number)
            if number == len(pages):
                self._comments(y)
            self._foot(number, len(pages))
        return self.sheet.finish()

    def _entries(self) -> list[Entry]:
        layout, chance = self.layout, self.chance
        drawn = visit(chance, layout.printing, chance.randint(*layout.rows), layout.findings)
        others = [again(chance, layout.printing, drawn.rows) for _ in self.days[1:]]
        days = [day.isoformat() for day in self.days]
        return [
            Entry(panel, dict(zip(days, rows, strict=True)), previous)
            for panel, previous, *rows in zip(drawn.panels, drawn.previous, drawn.rows, *others, strict=True)
        ]

    def _body(self, entries: list[Entry], y: float, page: int) -> float:
        layout, sheet = self.layout, self.sheet
        if layout.arrangement != "table":
            draw = draw_cards if layout.arrangement == "cards" else draw_sentences
            end, rows = draw(sheet, layout, entries, MARGIN, sheet.width - MARGIN, y, page)
            self.rows += rows
            return end
        width = (sheet.width - 2 * MARGIN - (layout.blocks - 1) * GUTTER) / layout.blocks
        share = -(-len(entries) // layout.blocks)
        ends = [y]
        for block in range(layout.blocks):
            table = Table(sheet, layout, MARGIN + block * (width + GUTTER), width, self.days, self.chance)
            ends.append(table.draw(entries[block * share : (block + 1) * share], y, page))
            self.rows += table.rows
        return max(ends)

    def _label(self, key: str) -> str:
        return LABELS[key][self.language]

    def _head(self) -> float:
        """Letterhead and patient; returns where results may begin."""
        sheet, printing, right = self.sheet, self.layout.printing, self.sheet.width - MARGIN
        sheet.text(MARGIN, 44, LABS["name"][self.language], 13, bold=True)
        sheet.text(MARGIN, 57, LABS["address"][self.language], 7)
        sheet.text(MARGIN, 66, LABS["phone"][self.language], 7)
        sheet.text(right, 44, self._label("title"), 11, bold=True, align="right")
        taken = max(self.days)
        born = datetime.date(1950 + int(self.number[-2:]) % 50, 4, 17)
        sheet.text(MARGIN, 86, f"{self._label('patient')}: {self.person}", 9)
        sheet.text(MARGIN, 98, f"{self._label('born')}: {printing.day(born)}   {self._label('sex')}", 9)
        sheet.text(MARGIN, 110, f"{self._label('number')}: {self.number}", 9)
        sheet.text(MARGIN, 122, self._label("doctor"), 9)
        middle = sheet.width / 2 + 10
        hour = f"08:{int(self.number) % 50 + 10}"
        sheet.text(middle, 86, f"{self._label('collected')}: {printing.day(taken)}  {hour}", 9)
        for number, key in enumerate(("received", "reported"), start=1):
            day = printing.day(taken + datetime.timedelta(days=number))
            sheet.text(middle, 86 + 12 * number, f"{self._label(key)}: {day}", 9)
        sheet.line(MARGIN, 132, right, 132)
        return 150.0

    def _comments(self, y: float) -> None:
        comments = COMMENTS[self.language]
        for text in self.chance.sample(comments, min(self.layout.comments, len(comments))):
            y += 14
            self.sheet.text(MARGIN, y, text, 8)

    def _foot(self, page: int, pages: int) -> None:
        sheet, bottom = self.sheet, self.sheet.height - 24
        sheet.text(MARGIN, bottom, f"{LABS['name'][self.language]}  {self.number}", 7)
        sheet.text(sheet.width - MARGIN, bottom, self._label("page").format(page, pages), 7, align="right")
