"""Results on lines without a table's head: a name, a value, and what makes it a result of a laboratory.

What an address, a telephone number or a sentence lacks: a unit or a reference range, a name that is known, columns.
Each counts; too few, and the line is left alone.
"""

from __future__ import annotations

import re

from pipelines.documents.names import known, plain
from pipelines.documents.pieces import Piece, is_flag
from pipelines.documents.tables import Row
from pipelines.documents.units import is_weak, ucum

ENOUGH = 4
"""Points that make a result (see `_points`)."""

_STANDS_ALONE = {"%", "fL", "pg", "s", "mm/h", "{ratio}", "[pH]", "mm[Hg]"}
"""Units without a volume below them that laboratories use; other bare masses and volumes are doses and sizes."""


def loose_rows(pieces: list[Piece], in_a_table: bool = False) -> list[Row]:
    """The results of one line. `in_a_table`: its neighbours are results, in the same places."""
    found = []
    at = 0
    while at < len(pieces):
        end = _end_of_group(pieces, at)
        row = _row(pieces[at:end])
        if row is not None and _points(row) + in_a_table >= ENOUGH:
            found.append(row)
        at = end
    return found


def _end_of_group(pieces: list[Piece], at: int) -> int:
    """Where the next name begins: a text after at least one value."""
    seen_value = False
    for index in range(at, len(pieces)):
        piece = pieces[index]
        is_name = piece.roles == {"text"} or (
            index > at
            and pieces[index].cell != pieces[index - 1].cell
            and bool(known(piece.text))
            and "value" not in piece.roles
        )
        if seen_value and is_name and re.search(r"[^\W\d_]{2}", piece.text):
            return index
        seen_value = seen_value or (index > at and "value" in piece.roles)
    return len(pieces)


def _row(group: list[Piece]) -> Row | None:
    first = group[0]
    if len(group) < 2 or "date" in first.roles or not re.search(r"[^\W\d_]", first.text):
        return None
    if first.roles != {"text"} and not known(first.text):
        return None
    rest = group[1:]
    names = [first]
    while rest and rest[0].roles == {"text"} and rest[0].text in (":", "=", "-"):
        rest = rest[1:]
    before: Piece | None = None
    if rest and "flag" in rest[0].roles and len(rest) > 1 and "value" in rest[1].roles:
        before, rest = rest[0], rest[1:]
    if not rest or "value" not in rest[0].roles:
        return None
    row = Row(names, rest[0], flag=before)
    for piece in rest[1:]:
        if "unit" in piece.roles and row.unit is None:
            row.unit = piece
        elif "flag" in piece.roles and row.flag is None and not row.reference and is_flag(piece.text):
            row.flag = piece
        elif "range" in piece.roles and not row.reference:
            row.reference = [piece]
        elif "flag" in piece.roles and row.flag is None:
            row.flag = piece
    return row


def _points(row: Row) -> int:
    name, value = row.names[0], row.value
    is_known = bool(known(name.text.rstrip(" .:*")))
    points = 3 if is_known else 0
    if row.unit is not None:
        code = ucum(row.unit.text) or ""
        if is_weak(code) and code not in _STANDS_ALONE:
            return 0
        points += 1 if is_weak(code) or code in _STANDS_ALONE else 2
    if row.reference:
        points += 1
    if value.cell != name.cell or name.text.endswith(":"):
        points += 1
    if value.roles >= {"value", "range"} and row.reference == [] and not is_known:
        points -= 1  # `<200` alone is a limit
    if len(plain(name.text).split()) > 7:
        points -= 2
    return points
