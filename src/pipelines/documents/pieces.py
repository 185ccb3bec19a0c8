"""The pieces of a printed line: names, values, units, ranges and flags, each with its place.

A cell of a line may hold one of them (`16.3`), several (`16.3 g/dL H`), or a name and what follows it (`Glucose 95
mg/dL 70-99`). What a piece may be is said by its text alone; which of these it is, its column or its neighbours say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pipelines.documents.dates import parse_date
from pipelines.documents.names import known, plain
from pipelines.documents.names import words as vocabulary
from pipelines.documents.page import Line, Page
from pipelines.documents.ranges import parse_range
from pipelines.documents.units import ucum
from pipelines.documents.values import NUMBER, Decimal, parse_value

Role = Literal["value", "range", "unit", "flag", "date", "text"]

_DATE = re.compile(
    r"\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./](?:\d{4}|\d{2})"
    r"|\d{1,2}[-./ ](?:de )?[^\W\d_]{3,10}\.?[-./ ](?:de )?\d{4}|\d{1,2}[-/][^\W\d_]{3,5}[-/]\d{2}"
    r"|[^\W\d_]{3,10}\.? \d{1,2},? \d{4}"
)
_SHORT = re.compile(r"\d{1,2} [^\W\d_]{3,5}\.? \d{2}(?!\d)")
"""`01 Jan 24` is a date if its word is a month."""
_TIME = re.compile(r"\d{1,2}[:h]\d{2}(?::\d{2})?(?:\s?[ap]\.?m\.?)?", re.I)
_GLUED = re.compile(
    rf"(?P<before>\*+|[↑↓▲▼]|[HL](?=[\d<>]))?(?P<value>(?:[<>≤≥]=?)?{NUMBER})(?P<after>\*+|[↑↓▲▼!]+|\(?(?:HH|LL|H|L|h|l)\)?|[^\W\d_%/\u00b5].*|[%/\u00b5\u03bc].*)?"
)
_AFTER = ("min", "h")
"""Units of the time between a dose and a sample: `Glucose 60 min` is another measurement than glucose."""

MOST_WORDS = 40
"""A cell with more words is prose."""


@dataclass(frozen=True)
class Piece:
    """Some words of a line: what they may be, where they stand (points; offsets into the page's text)."""

    text: str
    roles: frozenset[Role]
    left: float
    right: float
    start: int
    end: int
    cell: int
    """Which cell of the line it is of, from 0."""


@dataclass(frozen=True)
class Word:
    text: str
    left: float
    right: float
    start: int
    end: int


def is_date(text: str) -> bool:
    """True for a date, with or without a time."""
    match = _DATE.match(text)
    if match is None and (short := _SHORT.match(text)) and parse_date(short[0], ""):
        match = short
    return (
        match is not None
        and (rest := text[match.end() :].strip(" ,.")) is not None
        and (not rest or _TIME.fullmatch(rest) is not None)
    )


@cache
def _flags() -> frozenset[str]:
    return frozenset(vocabulary("flag"))


@cache
def is_flag(text: str) -> bool:
    return plain(" ".join(text.split())) in _flags()


@cache
def roles(text: str, decimal: Decimal) -> frozenset[Role]:
    """All that a text may be by itself; `text` where it is nothing else."""
    found: set[Role] = set()
    if is_date(text):
        return frozenset({"date"})
    if parse_value(text, decimal) is not None:
        found.add("value")
    if parse_range(text, decimal) is not None:
        found.add("range")
    if ucum(text) is not None:
        found.add("unit")
    if is_flag(text):
        found.add("flag")
    return frozenset(found) or frozenset({"text"})


def words(line: Line, offset: int) -> list[list[Word]]:
    """The words of each cell, with their places; inside a cell these follow from the share of characters."""
    cells = []
    for cell in line.cells:
        scale = (cell.right - cell.left) / max(len(cell.text), 1)
        found = []
        for match in re.finditer(r"\S+", cell.text):
            for start, end in _unglued(match[0]):
                first, last = match.start() + start, match.start() + end
                place = (cell.left + first * scale, cell.left + last * scale, offset + first, offset + last)
                found.append(Word(cell.text[first:last], *place))
        cells.append(found)
        offset += len(cell.text) + 2
    return cells


def _unglued(word: str) -> list[tuple[int, int]]:
    """`95mg/dL`, `245H` and `*245` are two words each."""
    if word[-1:] in "<>≤≥" and ucum(word[:-1]) is not None:
        return [(0, len(word) - 1), (len(word) - 1, len(word))]
    match = _GLUED.fullmatch(word)
    if match is None or is_date(word) or ucum(word) is not None:
        return [(0, len(word))]
    after = match["after"] or ""
    if not after and not match["before"]:
        return [(0, len(word))]
    if after and not (is_flag(after.strip("()")) or ucum(after) is not None):
        return [(0, len(word))]
    ends = [match.end("before") if match["before"] else 0, match.end("value"), len(word)]
    return [(a, b) for a, b in zip([0, *ends], ends, strict=False) if b > a]


def pieces(line: Line, offset: int, decimal: Decimal) -> list[Piece]:
    """The pieces of a line from left to right. `offset`: where the line begins in the page's text."""
    cells = [cell for cell in words(line, offset) if cell]
    split = [_of_cell(cell, index, decimal) for index, cell in enumerate(cells)]
    for index, cell in enumerate(cells[:-1]):
        if _is_numbered(split[index], split[index + 1][0], decimal):
            split[index] = [joined(cell, decimal, index, "text")]
    return [piece for some in split for piece in some]


def _is_numbered(some: list[Piece], following: Piece, decimal: Decimal) -> bool:
    """`IgG subclass 1` before a cell with the value: the number is of the name, unless the name is known without,
    and not with it."""
    if len(some) == 3 and plain(some[1].text) == "ph":  # `Calcium ionised pH 7.4`: the pH for which the result is given
        return known(some[0].text) is not None and "value" in following.roles
    after = some[2:] and ucum(some[2].text)
    if (
        len(some) not in (2, 3)
        or (len(some) == 3 and after not in _AFTER)
        or some[0].roles != {"text"}
        or not all("value" in piece.roles for piece in (some[1], following))
    ):
        return False
    value = parse_value(following.text, decimal)
    if value is None or value.kind == "interval":
        return False
    if after:
        return True
    alone, whole = known(some[0].text), known(f"{some[0].text} {some[1].text}")
    return not alone or (bool(whole) and whole != alone)


def pieces_of(some: list[Word], cell: int, decimal: Decimal) -> list[Piece]:
    """The pieces of some words that stand together."""
    return _of_cell(some, cell, decimal) if some else []


def joined(some: list[Word], decimal: Decimal, cell: int, role: Role | None = None) -> Piece:
    text = _printed(some)
    place = (some[0].left, some[-1].right, some[0].start, some[-1].end, cell)
    return Piece(text, frozenset({role}) if role else roles(text, decimal), *place)


def _printed(some: list[Word]) -> str:
    text = ""
    end = some[0].start
    for word in some:
        text += (" " if word.start > end and text else "") + word.text
        end = word.end
    return text


def _of_cell(cell: list[Word], index: int, decimal: Decimal) -> list[Piece]:
    whole = joined(cell, decimal, index)
    if whole.roles == {"range"} and len(cell) > 1:
        return _range_and_unit(cell, index, decimal) or [whole]
    if whole.roles != {"text"} or len(cell) == 1 or len(cell) > MOST_WORDS:
        return [whole]
    if typed := _typed(cell, index, decimal):
        return typed
    for split in range(len(cell) - 1, 0, -1):
        name = _printed(cell[:split])
        rest = _typed(cell[split:], index, decimal)
        if rest and _follows_a_name(rest) and roles(name, decimal) == {"text"} and re.search(r"[^\W\d_]", name):
            longer = _longest_rest(cell, split, index, decimal)
            return longer or [joined(cell[:split], decimal, index, "text"), *rest]
    return [whole]


def _range_and_unit(cell: list[Word], index: int, decimal: Decimal) -> list[Piece] | None:
    """`< 0.4 µg/L` may be a result: its unit is a piece of its own."""
    for split in range(len(cell) - 1, 0, -1):
        first, rest = joined(cell[:split], decimal, index), joined(cell[split:], decimal, index)
        if "value" in first.roles and "unit" in rest.roles:
            return [first, rest]
    return None


def _longest_rest(cell: list[Word], split: int, index: int, decimal: Decimal) -> list[Piece] | None:
    """The earliest split at which all that follows can still be read: `Glucose 95 mg/dL 70-99` after `Glucose`."""
    for earlier in range(1, split):
        rest = _typed(cell[earlier:], index, decimal)
        if rest and _follows_a_name(rest) and re.search(r"[^\W\d_]", _printed(cell[:earlier])):
            return [joined(cell[:earlier], decimal, index, "text"), *rest]
    return None


def _follows_a_name(rest: list[Piece]) -> bool:
    """A value with what belongs to it, each at most once: not `125 35 U/mL` after `CA`, nor a lone flag or unit."""
    counted = {role: sum(piece.roles == {role} for piece in rest) for role in ("value", "unit", "flag")}
    values = [piece for piece in rest if "value" in piece.roles and "range" not in piece.roles]
    return any("value" in piece.roles for piece in rest) and len(values) <= 1 and counted["unit"] <= 1


def _typed(cell: list[Word], index: int, decimal: Decimal, depth: int = 0) -> list[Piece] | None:
    """The words as values, units, flags and ranges without a rest, in the fewest pieces; None if that cannot be."""
    if not cell:
        return []
    if depth > 6 or len(cell) > 14:
        return None
    for size in range(min(len(cell), 7), 0, -1):
        piece = joined(cell[:size], decimal, index)
        if piece.roles == {"range"} and _range_and_unit(cell[:size], index, decimal):
            continue
        if piece.roles != {"text"} and piece.roles != {"date"}:
            rest = _typed(cell[size:], index, decimal, depth + 1)
            if rest is not None:
                return [piece, *rest]
    return None


def lines_with_offsets(page: Page) -> Iterator[tuple[Line, int]]:
    """Each line and where its text begins in `Page.text`."""
    offset = 0
    for line in page.lines:
        yield line, offset
        offset += len(line.text) + 1
