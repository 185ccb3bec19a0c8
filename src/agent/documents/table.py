"""What documents say, as a table over time, as CSV and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agent.names import clean, csv_line, json_text
from agent.tracks import safe_cell
from pipelines.documents.flags import is_flagged
from pipelines.documents.grouper import Amount, Group, Grouped, Measured, group_facts
from pipelines.payload import encode_path, text_path

if TYPE_CHECKING:
    from rich.table import Table

    from agent.documents.reading import Document

CSV_COLUMNS = (
    "date", "analyte", "specimen", "value", "unit", "si_value", "si_unit", "flag", "reference",
    "printed_name", "printed_value", "printed_unit", "document", "page", "also_printed",
)  # fmt: skip

UNDATED = "no date"


class Findings:
    """The biomarkers of some documents by analyte, and where each is printed."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self._where = {id(marker): one for one in documents for marker in one.facts.biomarkers}
        self.grouped: Grouped = group_facts([one.facts for one in documents])

    def document_of(self, measured: Measured) -> Document | None:
        """Where it is printed first."""
        return self._where.get(id(measured.printed))

    def several_persons(self) -> str:
        """Why the table may be of several persons, each of whom has documents of his own; empty: nothing says so."""
        told = [one for one in self.documents if one.births]
        other = next((one for one in told if not one.births & told[0].births), None)
        if other is None:
            return ""
        return f"{told[0].name} and {other.name} print different dates of birth: the table may be of several persons"

    @property
    def dates(self) -> list[str]:
        """Days on which something was measured, the first first; what has none comes last."""
        found = {measured.printed.date for group in self.grouped.groups for measured in group.results}
        return sorted(found, key=lambda date: (not date, date))

    def table(self, width: int) -> Table:
        """A rich table `width` characters wide: an analyte a line, a day a column; the last days, if not all fit."""
        from rich.table import Table
        from rich.text import Text

        shown = self.dates[-max(1, (width - 50) // 12) :]
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
        table.add_column("analyte", no_wrap=True, overflow="ellipsis", max_width=30)
        table.add_column("unit", no_wrap=True)
        for date in shown:
            table.add_column(date or UNDATED, justify="right", no_wrap=True)
        for group in self.grouped.groups:
            cells = [_results_of(group, date) for date in shown]
            if any(cells):
                flagged = [Text(clean(text), style="red" if "*" in text else "") for text in cells]
                table.add_row(Text(_called(group)), Text(clean(_unit_of(group))), *flagged)
        return table

    def csv(self, *, shown: bool = False) -> str:
        """A result a line; what no analyte is known for has none. `shown`: on a terminal, in one line each."""
        lines = [csv_line(CSV_COLUMNS)]
        for row in self._rows():
            cells = [safe_cell(row[name]) for name in CSV_COLUMNS]
            lines.append(csv_line(clean(str(cell)) for cell in cells) if shown else csv_line(cells))
        return "".join(lines)

    def json(self) -> str:
        """The documents with all their facts, and the groups."""
        documents = [
            {
                "source": _as_text(one.source), "outcome": one.outcome, "reason": one.reason or None,
                "pages": one.pages, "passed_over": one.passed_over, "facts": one.facts.model_dump(mode="json"),
            }
            for one in self.documents
        ]  # fmt: skip
        said = {"documents": documents, **self.grouped.model_dump(mode="json", include={"groups", "unmapped"})}
        return json_text(said)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for group in self.grouped.groups:
            for measured in group.results:
                yield self._row(measured, group)
        for marker in self.grouped.unmapped:
            yield self._row(Measured(printed=marker), None)

    def _row(self, measured: Measured, group: Group | None) -> dict[str, Any]:
        printed, where = measured.printed, self.document_of(measured)
        value, si = measured.conventional, measured.si
        return {
            "date": printed.date, "analyte": group.name if group else "", "specimen": _specimen(measured, group),
            "value": _number(value, measured), "unit": value.unit if value else "",
            "si_value": _number(si, measured), "si_unit": si.unit if si else "",
            "flag": printed.flag, "reference": printed.reference.printed if printed.reference else "",
            "printed_name": printed.name, "printed_value": printed.value.printed, "printed_unit": printed.unit,
            "document": _as_text(where.source) if where else "", "page": printed.span.page,
            "also_printed": len(measured.also_at),
        }  # fmt: skip


def _as_text(source: str) -> str:
    """A path or an address with all of its characters; bytes that are no text are replaced."""
    return text_path(encode_path(source))


def _specimen(measured: Measured, group: Group | None) -> str:
    return group.specimen if group else measured.printed.specimen


def _called(group: Group) -> str:
    return group.name if group.specimen == "blood" else f"{group.name} ({group.specimen})"


def _unit_of(group: Group) -> str:
    return next((one.conventional.unit for one in group.results if one.conventional), "")


def _results_of(group: Group, date: str) -> str:
    """What was measured on a day; a flagged result has a star."""
    unit = _unit_of(group)
    return ", ".join(_text(measured, unit) for measured in group.results if measured.printed.date == date)


def _text(measured: Measured, unit: str) -> str:
    """In the line's unit, or with its own; with a question mark where none is printed, so that it passes for none."""
    printed = measured.printed
    if measured.conventional is not None:
        text = _number(measured.conventional, measured)
    else:
        unknown = "?" if unit and printed.value.kind in ("number", "interval") else ""
        text = f"{printed.value.printed} {printed.unit or unknown}".strip()
    return f"{text}*" if is_flagged(printed) else text


def _number(amount: Amount | None, measured: Measured) -> str:
    """With four digits where it is converted, else with all that are printed."""
    if amount is None:
        return ""
    least = 7 if amount.unit == measured.ucum else 4
    high = "" if amount.high is None else f"-{_digits(amount.high, least)}"
    return f"{amount.comparator or ''}{_digits(amount.value, least)}{high}"


def _digits(value: float, least: int) -> str:
    """`least` digits and any more that are before the point, never as a power of ten: 12345, not 1.234e+04."""
    if value == 0:
        return "0"
    before = math.floor(math.log10(abs(value))) + 1
    text = f"{value:.{max(0, least - before)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
