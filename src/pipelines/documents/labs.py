"""Pages of laboratory reports -> biomarkers, by rules alone.

For each page: find a table's head, or go on with the last page's; read the lines below by its columns; give names that
are printed over two lines back to their results; read what stands outside of tables only where it is plainly a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.documents import dates, stop
from pipelines.documents.cards import read_cards
from pipelines.documents.facts import Biomarker, Span
from pipelines.documents.headings import Head, beside, heads, is_more_of_a_head
from pipelines.documents.lab_lines import Read, usual_step
from pipelines.documents.loose import loose_rows
from pipelines.documents.names import known, specimen_in_name, specimen_named, specimen_within, words
from pipelines.documents.notes import GAP, heading_of
from pipelines.documents.page import Page
from pipelines.documents.pieces import lines_with_offsets, pieces
from pipelines.documents.ranges import parse_range, unit_of_range
from pipelines.documents.sentences import sentences
from pipelines.documents.tables import Row, holds_another, table_rows
from pipelines.documents.units import CALCULATED, ucum
from pipelines.documents.values import Decimal, decimal_beside, decimal_sign, parse_value
from pipelines.documents.wrapped import complete

FAR = 3.5
"""Usual steps between two lines of a table, after which a name and a number are no longer taken for one of its rows."""

LONGEST_PRINTED = 400
"""Characters of a name with the dots after it; what is longer is no name."""

RECENT = 60
"""Lines that say how far apart the lines of a table are: a page may have thousands."""

_OF = r"(?:of|von|sur|de|di|van|z|av|\u0438\u0437|/)"
_PAGE_NUMBER = re.compile(
    rf"\b(?:{'|'.join(re.escape(word) for word in words('page'))})\s*\d+\s*(?:{_OF}\s*\d+)?\s*$|\b\d+ {_OF} \d+\s*$",
    re.I,
)
_PLACEHOLDERS = {"-", "--", "---", "\u2013", "\u2014", ".", "/", "n/a", "na", "none", "*", "_"}


@dataclass(frozen=True)
class Conventions:
    """What a document does throughout: its decimal sign, the order of its dates, when its specimens were taken."""

    decimal: Decimal
    order: dates.Order
    taken: dates.Taken


def conventions(pages: list[Page]) -> Conventions:
    texts = [line.text for page in pages for line in page.lines]
    order = dates.order_of(texts)
    decimal = decimal_sign(texts)
    by_page = [(page.number, [line.text for line in page.lines]) for page in pages]
    order = order or ("dmy" if decimal == "," else "")  # nobody writes months first and decimal commas
    return Conventions(decimal, order, dates.taken(by_page, order))


def biomarkers(pages: list[Page]) -> list[Biomarker]:
    """Every result that the pages print, in order."""
    habits = conventions(pages)
    found: list[Biomarker] = []
    columns: list[Head] | None = None
    for page in pages:
        read = read_page(page, columns, habits.decimal)
        complete(read)
        found.extend(_with_sentences(page, read, habits))
        columns = next((entry.columns for entry in reversed(read) if entry.columns), columns)
    return found


def read_page(page: Page, columns: list[Head] | None, decimal: Decimal) -> list[Read]:
    """Every line of a page, read by the table it stands in. `columns`: of the table that the last page ended with."""
    read: list[Read] = []
    own = False
    for line, offset in lines_with_offsets(page):
        some = pieces(line, offset, decimal)
        if _PAGE_NUMBER.search(line.text):
            read.append(Read(line, offset, [], None))
            continue
        if found := heads(line):
            columns, own = beside(columns if own else None, found), True
            read.append(Read(line, offset, some, columns, is_head=True))
            continue
        if read and read[-1].is_head and is_more_of_a_head(line):
            read.append(Read(line, offset, some, columns, is_head=True))
            continue
        entry = Read(line, offset, some, columns)
        if columns:
            near = bool(read) and _is_near(read, line.top)
            entry.rows = [row for row in table_rows(some, columns) if _is_row(row, near)]
        read.append(entry)
    if not own and columns and not _goes_on(read):
        for entry in read:
            entry.columns, entry.rows = None, []
    _read_loosely(read)
    read_cards(read, decimal)
    return read


def _is_near(read: list[Read], top: float) -> bool:
    """Whether a line stands no further below the last result, heading or text of a table than lines of a table do."""
    last = next((entry for entry in reversed(read) if entry.rows or entry.is_head), None)
    return last is not None and top - last.line.top <= FAR * max(usual_step(read[-RECENT:]), 12.0)


def _is_row(row: Row, near: bool) -> bool:
    """A name is letters. A number beside it, without unit or range, is a result if the name is known or the table is
    near, and not where name and number are one text: the foot of a page prints these too."""
    if not row.names:
        return True
    if not any(re.search(r"[^\W\d_]", piece.text) for piece in row.names):
        return False
    if row.unit or row.reference or known(" ".join(piece.text for piece in row.names)):
        return True
    return near and row.value.cell != row.names[-1].cell


def _goes_on(read: list[Read]) -> bool:
    """Whether the last page's columns fit this page's lines: results with a unit or a range, in their places."""
    return sum(1 for entry in read for row in entry.rows if row.names and (row.reference or row.unit)) >= 1


def _read_loosely(read: list[Read]) -> None:
    """Lines that no table's columns explain."""
    doses = _doses(read)
    for index, entry in enumerate(read):
        if (
            entry.rows
            or entry.is_head
            or not entry.pieces
            or (entry.columns and holds_another(entry.pieces, entry.columns))
        ):
            continue
        last = next((before for before in reversed(read[:index]) if before.pieces), None)
        in_a_table = last is not None and last.columns is None and _aligned(last, entry)
        rows = loose_rows(entry.pieces, in_a_table)
        entry.rows = [row for row in rows if row.reference or index not in doses]
        if entry.rows:
            entry.columns = None


def _doses(read: list[Read]) -> set[int]:
    """The lines under a heading of medications, to the next heading or gap: `Testosterone 50 mg/mL` is no result there.
    Where a reference range stands, it is one all the same."""
    found: set[int] = set()
    under = False
    last = 0.0
    for index, entry in enumerate(read):
        height = max(entry.line.bottom - entry.line.top, 6.0)
        if (heading := heading_of(entry.line.text)) is not None:
            under = heading[0] == "medications"
        elif entry.is_head or entry.line.top - last > GAP * height:
            under = False
        if under:
            found.add(index)
        last = entry.line.bottom
    return found


def _aligned(before: Read, here: Read) -> bool:
    """Whether the line goes on a table without a head: its first value stands where that of the line above stands."""
    values = [piece for piece in here.pieces[1:] if "value" in piece.roles]
    return bool(values) and any(
        abs(row.value.left - values[0].left) < 8 or abs(row.value.right - values[0].right) < 8 for row in before.rows
    )


def _with_sentences(page: Page, read: list[Read], habits: Conventions) -> list[Biomarker]:
    """What tables, cards and lines say, and what sentences say where those say nothing."""
    found = list(_biomarkers(page, read, habits))
    spans = [marker.span for marker in found]
    told = sentences(page, habits.decimal, habits.taken)
    more = [marker for marker in told if not _overlaps(marker.span, spans)]
    return sorted([*found, *more], key=lambda marker: marker.span.start) if more else found


def _overlaps(span: Span, others: list[Span]) -> bool:
    return any(span.start < other.end and other.start < span.end for other in others)


def _biomarkers(page: Page, read: list[Read], habits: Conventions) -> Iterator[Biomarker]:
    specimens: dict[int, Heard] = {}
    for line, entry in enumerate(read):
        if not entry.rows and not entry.is_head:
            _hear_headings(entry, specimens)
        for row in entry.rows:
            taken = habits.taken.on(page.number, line)
            heard = _nearest(specimens.get(row.group, specimens.get(0, [])), row)
            marker = _biomarker(page, row, habits, heard, taken)
            if marker is not None:
                yield marker


Heard = list[tuple[float, str]]
"""What the last heading names as the specimen, with its place; several, where it heads a column for each."""


def _nearest(heard: Heard, row: Row) -> str:
    middle = (row.value.left + row.value.right) / 2
    return min(heard, key=lambda one: abs(one[0] - middle), default=(0.0, ""))[1]


def _hear_headings(entry: Read, specimens: dict[int, Heard]) -> None:
    """A line with a text alone may say what the results below it were measured in."""
    begun: set[int] = set()
    for piece in entry.pieces:
        prose = len(piece.text) > 60 or len(piece.text.split()) > 7 or re.search(r"\d{2}", piece.text)
        if piece.roles == {"text"} and not prose:
            group = 0
            if entry.columns:
                firsts = {head.group: head.left for head in reversed(entry.columns)}
                group = max((g for g, left in firsts.items() if left <= piece.left + 20), default=0)
            found = specimen_within(piece.text)
            if found is not None:
                if group not in begun:
                    specimens[group] = []
                begun.add(group)
                specimens[group].append(((piece.left + piece.right) / 2, found))
            elif len(entry.pieces) <= len({head.group for head in entry.columns or []} or {0}) and piece.text.isupper():
                specimens.pop(group, None)


def _biomarker(page: Page, row: Row, habits: Conventions, heard: str, taken: str) -> Biomarker | None:
    name = _name(row)
    limits = " ".join(piece.text for piece in row.reference)
    value = parse_value(row.value.text, decimal_beside(row.value.text, [limits], habits.decimal))
    if value is None or stop.is_no_name(name):
        return None
    unit = row.unit.text if row.unit and row.unit.text.casefold() not in _PLACEHOLDERS else ""
    if unit == "S" and page.source != "text":
        unit = "s"  # by its shape alone a letter does not say whether it is a capital; a capital S is no unit here
    reference = parse_range(limits, decimal_beside(limits, [row.value.text], habits.decimal)) if limits else None
    if not unit:
        name, unit = _unit_in_name(name)
    if not unit:
        unit = next((found for piece in row.reference if (found := unit_of_range(piece.text))), "")
    unit = CALCULATED.sub("", unit)
    specimen = specimen_named(row.specimen.text) if row.specimen else None
    if specimen is None and "," in name:
        specimen = specimen_named(name.rpartition(",")[2])
    if specimen is None and (bracketed := re.findall(r"[(\[]([^()\[\]]+)[)\]]", name)):
        specimen = next((found for part in bracketed if (found := specimen_named(part))), None)
    own = row.dated or (row.date.text if row.date else "")
    span = Span(page=page.number, start=min(p.start for p in row.pieces), end=max(p.end for p in row.pieces))
    flag = row.flag.text if row.flag and row.flag.text.casefold() not in (_PLACEHOLDERS - {"-", "--", "*"}) else ""
    date = dates.parse_date(own, habits.order) if own else taken  # a column's day that is not understood is another
    return Biomarker(
        name=name, value=value, unit=unit, reference=reference, flag=flag,
        specimen=specimen or specimen_in_name(name) or heard, date=date, span=span,
    )  # fmt: skip


def _name(row: Row) -> str:
    """Without bullets before it, the dots that lead to the value, and the code of the laboratory (`WBC 01`)."""
    text = " ".join(piece.text for piece in row.names)[:LONGEST_PRINTED]
    bare = text.rstrip(" .\u2026_\u00b7")
    text = bare if len(text[len(bare) :].replace(" ", "")) > 1 else text.strip()
    text = text.lstrip("\u2022\u00b7\u25aa\u25cf >*-").rstrip(" :*=")
    without = re.sub(r"\s0\d$", "", text)
    return without if known(without) and not known(text) else text


def _unit_in_name(name: str) -> tuple[str, str]:
    """`Hämoglobin (g/dl)` -> the name and the unit; the unit is empty where the name ends with none, or with
    another name (`Prothrombin time (INR)`)."""
    match = re.fullmatch(r"(?P<name>.*\S)\s*(?:[(\[](?P<in>[^()\[\]]+)[)\]]|,\s*(?P<after>[^,]+))", name)
    if match is None:
        return name, ""
    unit = (match["in"] or match["after"]).strip()
    code = ucum(unit)
    if code is None or (code.startswith("{") and known(unit)):
        return name, ""
    return match["name"], unit
