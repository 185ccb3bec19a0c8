"""Results of one visit, printed as a laboratory of that country prints them: the ground truth of a report."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass

from tests.pipelines.documents.reports.analytes import (
    ANALYTES,
    FINDINGS,
    LANGUAGES,
    NEGATIVE,
    POSITIVE,
    SPECIMENS,
    TRACE,
    Analyte,
    Finding,
)
from tests.pipelines.documents.reports.phrases import MONTHS


@dataclass(frozen=True)
class Row:
    """One result as it is printed. Empty: not printed. `date`: when the specimen was taken, ISO 8601; `page` from 1."""

    name: str
    value: str
    unit: str
    reference: str
    flag: str
    specimen: str
    date: str = ""
    page: int = 0


@dataclass(frozen=True)
class Printing:
    """How a laboratory prints. `range` and `flags`: of low and high; `date`: strftime, `%B` in its language."""

    language: str = "en"
    si: bool = False
    comma: bool = False
    range: str = "{}-{}"
    under: str = "<{}"
    over: str = ">{}"
    flags: tuple[str, str] = ("L", "H")
    date: str = "%m/%d/%Y"
    lower_units: bool = False
    """`g/dl` for `g/dL`, as German laboratories write."""

    def number(self, value: float, decimals: int) -> str:
        text = f"{value:.{decimals}f}"
        return text.replace(".", ",") if self.comma else text

    def day(self, day: datetime.date) -> str:
        return day.strftime(self.date.replace("%B", MONTHS[str(day.month)][self.language]))


@dataclass(frozen=True)
class Visit:
    """Rows without date and page, and what the same tests gave before (`previous`, in the same order)."""

    rows: list[Row]
    previous: list[str]
    panels: list[str]
    """The panel (a key of phrases.PANELS) of each row."""


def visit(chance: random.Random, printing: Printing, count: int, findings: int = 0) -> Visit:
    """`count` measured numbers and `findings` in words, by panel in the order of the catalogue."""
    measured = sorted(chance.sample(range(len(ANALYTES)), min(count, len(ANALYTES))))
    worded = sorted(chance.sample(range(len(FINDINGS)), min(findings, len(FINDINGS))))
    drawn = [(ANALYTES[i].specimen, *_measure(chance, printing, ANALYTES[i])) for i in measured]
    drawn += [(FINDINGS[i].specimen, *_find(chance, printing, FINDINGS[i])) for i in worded]
    order = list(SPECIMENS)
    drawn.sort(key=lambda entry: order.index(entry[0]))
    return Visit([row for _, row, _ in drawn], [before for *_, before in drawn], [panel for panel, *_ in drawn])


def again(chance: random.Random, printing: Printing, rows: list[Row]) -> list[Row]:
    """The same tests, other values: what a later column of a cumulative report says."""
    known: dict[str, Analyte | Finding] = {entry.names[printing.language]: entry for entry in (*ANALYTES, *FINDINGS)}
    found = []
    for row in rows:
        entry = known[row.name]
        drawn = _measure if isinstance(entry, Analyte) else _find
        found.append(drawn(chance, printing, entry)[0])  # type: ignore[arg-type]
    return found


def _specimen(printing: Printing, specimen: str) -> str:
    return SPECIMENS[specimen][LANGUAGES.index(printing.language)]


def _measure(chance: random.Random, printing: Printing, analyte: Analyte) -> tuple[Row, str]:
    unit, factor, offset, decimals = analyte.units[printing.si]
    if printing.lower_units:
        unit = unit.replace("dL", "dl").replace("mL", "ml")
    low = None if analyte.low is None else analyte.low * factor + offset
    high = None if analyte.high is None else analyte.high * factor + offset
    ceiling = high if high is not None else (low or 1.0) * 1.8
    floor = low if low is not None else ceiling * 0.3
    span = max(ceiling - floor, 10.0**-decimals)

    def draw() -> tuple[float, str]:
        kind = chance.random()
        if kind < 0.72 or span <= 10.0**-decimals:
            value = chance.uniform(floor, ceiling)
        elif kind < 0.86:
            value = ceiling + span * chance.uniform(0.1, 0.8)
        else:
            value = floor * chance.uniform(0.6, 0.95)
        value = round(max(value, 10.0**-decimals), decimals)
        flag = ""
        if low is not None and value < round(low, decimals):
            flag = printing.flags[0]
        elif high is not None and value > round(high, decimals):
            flag = printing.flags[1]
        return value, flag

    value, flag = draw()
    text = printing.number(value, decimals)
    if analyte.low is None and chance.random() < 0.25:  # below what the method can measure
        text, flag = printing.under.format(printing.number((high or 1.0) / 10, max(decimals, 1))), ""
    elif analyte.high is None and chance.random() < 0.4:
        text, flag = printing.over.format(printing.number(ceiling * 0.8, decimals)), ""
    before = printing.number(draw()[0], decimals)
    if low is not None and high is not None:
        reference = printing.range.format(printing.number(low, decimals), printing.number(high, decimals))
    elif high is not None:
        reference = printing.under.format(printing.number(high, decimals))
    else:
        reference = printing.over.format(printing.number(low or 0.0, decimals))
    name = analyte.names[printing.language]
    return Row(name, text, unit, reference, flag, _specimen(printing, analyte.specimen)), before


def _find(chance: random.Random, printing: Printing, finding: Finding) -> tuple[Row, str]:
    words = {"-": NEGATIVE, "+!": POSITIVE, "trace": TRACE}

    def said(value: str) -> str:
        if value in words:
            return words[value][printing.language]
        return value.replace(".", ",") if printing.comma else value

    value, before = chance.choice(finding.values), chance.choice(finding.values)
    flag = "" if value == finding.values[0] or not finding.reference else printing.flags[1]
    if finding.reference == "<1:80":
        flag = printing.flags[1] if value in ("1:160", "1:320") else ""
    row = Row(
        finding.names[printing.language],
        said(value),
        finding.unit,
        said(finding.reference),
        flag,
        _specimen(printing, finding.specimen),
    )
    return row, said(before)
