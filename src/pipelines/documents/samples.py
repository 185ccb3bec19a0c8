"""A small set of lab reports with known results, so that anybody sees the work without a report of their own.

One invented person, three laboratories, three years: plain columns, a bordered table with decimal commas, one in SI
units, and one with earlier results beside the new. The same files each time. Imports reportlab (extra `documents`) when
called, not with the module.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import ToolMissing

if TYPE_CHECKING:
    from collections.abc import Iterable

PERSON = "Alex Sample"


@dataclass(frozen=True)
class Result:
    """One result as it is printed. `flag` is empty, `H` or `L`; `date` is ISO 8601."""

    date: str
    name: str
    value: str
    unit: str
    reference: str
    flag: str


@dataclass(frozen=True)
class Sample:
    """One file and the truth about it."""

    path: Path
    results: tuple[Result, ...]


@dataclass(frozen=True)
class _Report:
    name: str
    laboratory: str
    taken: str
    """Label and date as printed."""
    date: str
    heading: tuple[str, ...]
    bordered: bool
    rows: tuple[str, ...]
    """`name | value | unit | range | flag`; after the flag an earlier value, which is no result of this report."""
    comment: str


REPORTS = (
    _Report(
        "2022-03-northgate.pdf",
        "Northgate Clinical Laboratories",
        "Collected: 03/14/2022",
        "2022-03-14",
        ("Test", "Result", "Units", "Reference Range", "Flag"),
        False,
        (
            "Hemoglobin | 13.1 | g/dL | 12.0-15.5 | ",
            "Platelets | 262 | K/uL | 150-400 | ",
            "Glucose | 112 | mg/dL | 70-99 | H",
            "Creatinine | 0.84 | mg/dL | 0.60-1.20 | ",
            "Total Cholesterol | 231 | mg/dL | <200 | H",
            "Ferritin | 9 | ng/mL | 15-150 | L",
            "TSH | 2.35 | mIU/L | 0.40-4.00 | ",
            "C-Reactive Protein | <0.5 | mg/L | <5.0 | ",
            "Hemoglobin A1c | 6.0 | % | 4.0-5.6 | H",
        ),
        "Fasting glucose of 126 mg/dL or more on two occasions suggests diabetes.",
    ),
    _Report(
        "2023-02-labor-am-park.pdf",
        "Labor am Park",
        "Entnahme: 06.02.2023",
        "2023-02-06",
        ("Untersuchung", "Ergebnis", "Einheit", "Referenzbereich", "Bew."),
        True,
        (
            "Hämoglobin | 13,8 | g/dl | 12,0 - 15,5 | ",
            "Thrombozyten | 248 | G/L | 150 - 400 | ",
            "Glukose | 104 | mg/dl | 70 - 99 | H",
            "Kreatinin | 0,88 | mg/dl | 0,60 - 1,20 | ",
            "Cholesterin gesamt | 214 | mg/dl | < 200 | H",
            "Ferritin | 31 | ng/ml | 15 - 150 | ",
            "TSH basal | 2,10 | mIU/L | 0,40 - 4,00 | ",
            "HbA1c | 5,8 | % | 4,0 - 5,6 | H",
        ),
        "Nüchternglukose ab 126 mg/dl an 2 Tagen spricht für einen Diabetes mellitus.",
    ),
    _Report(
        "2023-11-harbour.pdf",
        "Harbour Medical Laboratory",
        "Collected: 20 Nov 2023",
        "2023-11-20",
        ("Test", "Result", "Units", "Reference Range", "Flag"),
        True,
        (
            "Haemoglobin | 139 | g/L | 120 - 155 | ",
            "Platelets | 251 | 10^9/L | 150 - 400 | ",
            "Glucose | 5.6 | mmol/L | 3.9 - 5.5 | H",
            "Creatinine | 76 | µmol/L | 53 - 106 | ",
            "Total Cholesterol | 5.1 | mmol/L | < 5.2 | ",
            "Ferritin | 48 | µg/L | 15 - 150 | ",
            "TSH | 1.98 | mU/L | 0.40 - 4.00 | ",
        ),
        "Reported 21 Nov 2023. Results apply to the sample as received.",
    ),
    _Report(
        "2024-10-northgate.pdf",
        "Northgate Clinical Laboratories",
        "Collected: 10/02/2024",
        "2024-10-02",
        ("Test", "Result", "Units", "Reference Range", "Flag", "Previous"),
        False,
        (
            "Hemoglobin | 14.0 | g/dL | 12.0-15.5 |  | 13.1",
            "Platelets | 255 | K/uL | 150-400 |  | 262",
            "Glucose | 94 | mg/dL | 70-99 |  | 112",
            "Creatinine | 0.86 | mg/dL | 0.60-1.20 |  | 0.84",
            "Total Cholesterol | 189 | mg/dL | <200 |  | 231",
            "Ferritin | 62 | ng/mL | 15-150 |  | 9",
            "TSH | 2.04 | mIU/L | 0.40-4.00 |  | 2.35",
            "Hemoglobin A1c | 5.5 | % | 4.0-5.6 |  | 6.0",
        ),
        "Vitamin D: deficiency <20 ng/mL, insufficiency 20-29 ng/mL.",
    ),
)


def write_samples(folder: Path) -> list[Sample]:
    """Write the set into `folder` (made if missing; files of the same name are replaced) and tell the truth about it.

    Raises ToolMissing where there is no reportlab.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(report, folder / report.name) for report in REPORTS]


def _write(report: _Report, path: Path) -> Sample:
    rows = [[cell.strip() for cell in row.split("|")] for row in report.rows]
    _print(report, rows, path)
    return Sample(path, tuple(Result(report.date, *row[:5]) for row in rows))


def _print(report: _Report, rows: Iterable[list[str]], path: Path) -> None:
    try:
        from reportlab.lib import colors
        from reportlab.lib.pagesizes import A4
        from reportlab.lib.styles import getSampleStyleSheet
        from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table
    except ImportError:
        raise ToolMissing("the sample set needs reportlab: pip install 'phaze-agent[documents]'") from None
    styles = getSampleStyleSheet()
    look: list[Any] = [("FONT", (0, 0), (-1, 0), "Helvetica-Bold", 9), ("FONT", (0, 1), (-1, -1), "Helvetica", 9)]
    look.append(
        ("GRID", (0, 0), (-1, -1), 0.3, colors.grey)
        if report.bordered
        else ("LINEBELOW", (0, 0), (-1, 0), 0.5, colors.black)
    )
    table = Table([report.heading, *rows], colWidths=[150, 65, 65, 95, 40, 60][: len(report.heading)], style=look)
    head = [
        Paragraph(report.laboratory, styles["Heading2"]),
        Paragraph(f"Patient: {PERSON}", styles["Normal"]),
        Paragraph(report.taken, styles["Normal"]),
    ]
    document = SimpleDocTemplate(str(path), pagesize=A4, invariant=1, title=report.laboratory)
    document.build([*head, Spacer(1, 16), table, Spacer(1, 16), Paragraph(report.comment, styles["Normal"])])
