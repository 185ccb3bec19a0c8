"""Synthetic lab reports with the truth about them, the same from the same seed.

for layout in LAYOUTS:
    report = make(layout, seed=1)
    report.pdf, report.rows
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.pipelines.documents.reports import held_out
from tests.pipelines.documents.reports.layouts import OPEN, Layout
from tests.pipelines.documents.reports.printing import Printer
from tests.pipelines.documents.reports.results import Row
from tests.pipelines.documents.reports.scanning import scanned

__all__ = ["HELD_OUT", "LAYOUTS", "Layout", "Report", "Row", "by_name", "make"]

LAYOUTS: tuple[Layout, ...] = (*OPEN, *held_out.LAYOUTS)
HELD_OUT: frozenset[str] = frozenset(layout.name for layout in held_out.LAYOUTS)


@dataclass(frozen=True)
class Report:
    """A PDF, and every result on it in the order in which it was printed."""

    layout: str
    seed: int
    pdf: bytes
    rows: list[Row]
    scanned: bool


def make(layout: Layout, seed: int) -> Report:
    """One report; the same bytes for the same layout and seed."""
    chance = random.Random(f"{layout.name}:{seed}")
    printer = Printer(layout, chance)
    pdf = printer.run()
    if layout.scan is not None:
        pdf = scanned(pdf, layout.scan, chance)
    return Report(layout.name, seed, pdf, printer.rows, layout.scan is not None)


def by_name(name: str) -> Layout:
    """The layout of that name; KeyError if there is none."""
    return {layout.name: layout for layout in LAYOUTS}[name]
