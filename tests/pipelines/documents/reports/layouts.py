"""The layouts: how each laboratory arranges its report. Those held out are in `held_out`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tests.pipelines.documents.reports.results import Printing

Column = Literal["name", "value", "inside", "outside", "unit", "range", "flag", "previous", "specimen", "method"]
Columns = tuple[tuple[Column, float], ...]


@dataclass(frozen=True)
class Scan:
    """What a scanner does: `skew` in degrees at most, `noise` as a standard deviation of grey (0 to 255)."""

    dpi: int = 200
    skew: float = 0.6
    noise: float = 6.0
    quality: int = 60


@dataclass(frozen=True)
class Layout:
    """One laboratory's report.

    `columns`: from left to right, with their share of the width. `blocks`: tables side by side. `unit` and `flag` say
    where those stand. `header`: on every page of a table, on the first, or nowhere. `dates` over 1: a cumulative
    report, with a column of values for each date. `turned` and `rotate`: see Sheet.
    """

    name: str
    printing: Printing
    columns: Columns = (("name", 4), ("value", 1.4), ("flag", 0.8), ("unit", 1.8), ("range", 2))
    arrangement: Literal["table", "cards", "sentences"] = "table"
    size: str = "a4"
    font: str = "Helvetica"
    type_size: float = 9
    leading: float = 1.55
    rows: tuple[int, int] = (14, 20)
    findings: int = 0
    lines_a_page: int = 38
    blocks: int = 1
    rules: Literal["none", "lines", "grid", "shade", "leaders"] = "none"
    header: Literal["every", "first", "none"] = "every"
    panels: bool = True
    unit: Literal["column", "name", "value", "range", "none"] = "column"
    flag: Literal["column", "value", "before", "none"] = "column"
    value_align: Literal["left", "right", "center"] = "left"
    specimen: Literal["panel", "column", "none"] = "none"
    raised: bool = False
    """Exponents of units are small and raised."""
    wrapped: bool = False
    """Names wrap inside their column."""
    centred: bool = False
    """What stands beside a wrapped name is in the middle of its lines."""
    comments: int = 2
    comments_between: bool = False
    """Comments also stand under single results."""
    dates: int = 1
    oldest_first: bool = False
    turned: int = 0
    rotate: int = 0
    scan: Scan | None = None


EN = Printing()
EN_WORDS = Printing(range="{} - {}", under="< {}", over="> {}", flags=("Low", "High"), date="%d-%b-%Y")
DE = Printing("de", False, True, "{} - {}", "< {}", "> {}", ("-", "+"), "%d.%m.%Y", lower_units=True)
FR = Printing("fr", True, True, "{} à {}", "< {}", "> {}", ("*", "*"), "%d/%m/%Y")
ES = Printing("es", False, True, "[{} - {}]", "< {}", "> {}", ("↓", "↑"), "%d/%m/%Y")
IT = Printing("it", False, True, "{} \N{EN DASH} {}", "<{}", ">{}", ("*", "*"), "%d/%m/%Y")
NL = Printing("nl", True, True, "{} - {}", "< {}", "> {}", ("L", "H"), "%d-%m-%Y")

OPEN: tuple[Layout, ...] = (
    Layout("plain-columns", EN, size="letter"),
    Layout("bordered", DE, rules="grid", specimen="panel"),
    Layout(
        "two-side-by-side",
        FR,
        (("name", 3.6), ("value", 1.2), ("flag", 0.5), ("unit", 1.6), ("range", 2.2)),
        size="a4-landscape",
        type_size=7,
        rows=(22, 30),
        blocks=2,
    ),
    Layout(
        "landscape-previous",
        EN_WORDS,
        (("name", 3.5), ("value", 1.2), ("flag", 1), ("unit", 1.5), ("range", 2), ("previous", 1.4), ("method", 1.6)),
        size="letter-landscape",
        rows=(12, 18),
        rules="lines",
    ),
    Layout(
        "rotate-entry",
        ES,
        (("name", 4), ("flag", 0.8), ("value", 1.5), ("unit", 1.8), ("range", 2)),
        turned=90,
        rotate=90,
    ),
    Layout("turned-text", IT, turned=270, rules="lines"),
    Layout("scanned-plain", EN, size="letter", type_size=10, scan=Scan()),
    Layout("scanned-bordered", DE, type_size=9.5, rules="grid", scan=Scan(skew=0.3, noise=4, quality=75)),
    Layout("two-pages", NL, rows=(34, 40), rules="shade", lines_a_page=26),
    Layout("two-pages-one-header", EN_WORDS, rows=(30, 38), header="first", lines_a_page=24, font="Times-Roman"),
    Layout(
        "wrapped-names",
        replace(EN, date="%B %d, %Y"),
        (("name", 1.5), ("value", 1.4), ("flag", 0.8), ("unit", 2), ("range", 2)),
        size="letter",
        rules="lines",
        wrapped=True,
    ),
    Layout("unit-in-name", DE, (("name", 4), ("value", 1.4), ("flag", 0.8), ("range", 2)), unit="name"),
    Layout(
        "dotted-leaders",
        replace(FR, range="({} à {})", under="< {}", date="%d %B %Y"),
        (("name", 4), ("value", 2.6), ("range", 2)),
        rules="leaders",
        header="none",
        unit="value",
        flag="before",
    ),
    Layout(
        "cumulative",
        replace(DE, flags=("-", "+")),
        (("name", 3.4), ("unit", 1.5), ("range", 1.9), ("value", 1.6)),
        rows=(12, 18),
        rules="grid",
        flag="value",
        value_align="right",
        dates=4,
    ),
    Layout(
        "words-and-titres",
        replace(EN, date="%Y-%m-%d"),
        (("name", 3.5), ("specimen", 1.6), ("value", 1.5), ("flag", 0.7), ("unit", 1.6), ("range", 1.8)),
        rows=(6, 10),
        findings=7,
        specimen="column",
    ),
    Layout("cards", EN_WORDS, arrangement="cards", size="letter", rows=(8, 12), findings=2, lines_a_page=10),
    Layout(
        "in-or-out-of-range",
        EN,
        (("name", 3.5), ("inside", 1.3), ("outside", 1.5), ("range", 2.4)),
        size="letter",
        unit="range",
        flag="value",
        comments_between=True,
    ),
    Layout("raised-exponents", replace(NL, flags=("↓", "↑")), rules="lines", raised=True, specimen="panel"),
)
