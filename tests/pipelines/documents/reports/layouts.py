"""The layouts: how each laboratory arranges its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.pipelines.documents.reports.results import Printing

Column = Literal["name", "value", "unit", "range", "flag", "previous", "specimen", "method"]


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
    where those stand when they have no column. `header`: on every page of a table, on the first, or nowhere.
    """

    name: str
    printing: Printing
    columns: tuple[tuple[Column, float], ...]
    size: str = "a4"
    font: str = "Helvetica"
    type_size: float = 9
    leading: float = 1.55
    rows: tuple[int, int] = (14, 20)
    findings: int = 0
    blocks: int = 1
    rules: Literal["none", "lines", "grid", "shade", "leaders"] = "none"
    header: Literal["every", "first", "none"] = "every"
    panels: bool = True
    unit: Literal["column", "name", "value", "range", "none"] = "column"
    flag: Literal["column", "value", "before", "none"] = "column"
    value_align: Literal["left", "right", "center"] = "left"
    specimen: Literal["top", "panel", "column", "none"] = "top"
    raised: bool = False
    wrapped: bool = False
    """Names wrap inside a narrow column."""
    comments: int = 2
    comments_between: bool = False
    """Comments stand under single results as well as at the end."""
    dates: int = 1
    """Over 1: a cumulative report, one column of values for each date, of which the first is the latest."""
    turned: int = 0
    rotate: int = 0
    scan: Scan | None = None
    lines_a_page: int = 40
    extra: tuple[str, ...] = field(default=())


EN = Printing()
EN_SPACED = Printing(range="{} - {}", under="< {}", over="> {}", flags=("Low", "High"), date="%d-%b-%Y")
DE = Printing(
    "de", comma=True, range="{} - {}", under="< {}", over="> {}", flags=("-", "+"), date="%d.%m.%Y", lower_units=True
)
FR = Printing("fr", si=True, comma=True, range="{} à {}", under="< {}", over="> {}", flags=("*", "*"), date="%d/%m/%Y")
ES = Printing("es", comma=True, range="[{} - {}]", under="< {}", over="> {}", flags=("↓", "↑"), date="%d/%m/%Y")
IT = Printing("it", comma=True, range="{} \N{EN DASH} {}", flags=("*", "*"), date="%d/%m/%Y")
NL = Printing("nl", si=True, comma=True, range="{} - {}", under="< {}", over="> {}", flags=("L", "H"), date="%d-%m-%Y")

PLAIN: tuple[tuple[Column, float], ...] = (("name", 4), ("value", 1.4), ("flag", 0.8), ("unit", 1.8), ("range", 2))

LAYOUTS: tuple[Layout, ...] = (
    Layout("plain-columns", EN, PLAIN, size="letter"),
    Layout(
        "bordered",
        DE,
        (("name", 4), ("value", 1.5), ("flag", 0.8), ("unit", 1.8), ("range", 2)),
        rules="grid",
        specimen="panel",
    ),
    Layout(
        "two-side-by-side",
        FR,
        (("name", 3.6), ("value", 1.2), ("flag", 0.5), ("unit", 1.6), ("range", 2.2)),
        blocks=2,
        type_size=7,
        rows=(22, 30),
        size="a4-landscape",
    ),
    Layout(
        "landscape-previous",
        EN_SPACED,
        (("name", 3.5), ("value", 1.2), ("flag", 1), ("unit", 1.5), ("range", 2), ("previous", 1.4), ("method", 1.6)),
        size="letter-landscape",
        rules="lines",
    ),
    Layout(
        "rotate-entry",
        ES,
        (("name", 4), ("flag", 0.5), ("value", 1.5), ("unit", 1.8), ("range", 2)),
        turned=90,
        rotate=90,
        flag="column",
    ),
    Layout(
        "turned-text",
        IT,
        (("name", 4), ("value", 1.4), ("flag", 0.5), ("unit", 1.6), ("range", 2)),
        turned=270,
        rules="lines",
    ),
    Layout("scanned-plain", EN, PLAIN, size="letter", type_size=10, scan=Scan()),
    Layout(
        "two-pages",
        NL,
        (("name", 4), ("value", 1.4), ("flag", 0.8), ("unit", 1.8), ("range", 2)),
        rows=(34, 40),
        rules="shade",
        lines_a_page=26,
    ),
    Layout(
        "wrapped-names",
        EN,
        (("name", 1.7), ("value", 1.4), ("flag", 0.8), ("unit", 2), ("range", 2)),
        wrapped=True,
        rules="lines",
        size="letter",
    ),
    Layout("unit-in-name", DE, (("name", 4), ("value", 1.4), ("flag", 0.8), ("range", 2)), unit="name"),
)

HELD_OUT: frozenset[str] = frozenset()
"""Layouts that nobody looks at while writing rules; what rules make of them is reported apart."""
