"""What stands in one row of a report: one test, its result on each date, and what it was before."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.pipelines.documents.reports.layouts import Layout
from tests.pipelines.documents.reports.results import Row


@dataclass(frozen=True)
class Entry:
    """`results`: date (ISO 8601) -> result, in the order in which they are printed."""

    panel: str
    results: dict[str, Row]
    previous: str

    @property
    def first(self) -> Row:
        return next(iter(self.results.values()))


def as_printed(row: Row, layout: Layout, day: str, page: int) -> Row:
    """The truth about a result: what the layout does not print is left out."""
    unit = "" if layout.unit == "none" else row.unit
    if layout.raised:
        unit = unit.replace("10^9", "10\N{SUPERSCRIPT NINE}")
    shown = layout.flag != "none"
    specimen = row.specimen if layout.specimen in ("panel", "column") else ""
    return replace(row, unit=unit, flag=row.flag if shown else "", specimen=specimen, date=day, page=page)
