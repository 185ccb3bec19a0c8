"""Rows of a table whose columns are known by their headings.

Each piece of a line goes to a column, in order from left to right, where it costs least: how far it stands from the
column's heading, and how little its text looks like what that column holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipelines.documents.headings import Column, Head
from pipelines.documents.pieces import Piece

POINTS_A_COST = 15.0
"""Points of distance that weigh as much as one step of unlikeness."""

NEAR = 45.0
"""Points that a value may stand beside its heading."""

FLAG_GAP = 20.0
"""Points from a result to its flag, where a line has several results."""

INDENT = 30.0
"""Points that a name may stand to the right of its heading, or `OUTDENT` to the left."""
OUTDENT = 18.0

_UNLIKE: dict[Column, dict[str, float]] = {
    "name": {"text": 0, "unit": 3, "value": 3, "range": 4, "flag": 3, "date": 5},
    "result": {"value": 0, "text": 2, "unit": 4, "range": 4, "flag": 4, "date": 5},
    "flag": {"flag": 0, "text": 2, "value": 5, "unit": 4, "range": 5, "date": 5},
    "unit": {"unit": 0, "text": 1.5, "flag": 4, "value": 5, "range": 5, "date": 5},
    "reference": {"range": 0, "value": 2, "text": 1, "unit": 1.5, "flag": 5, "date": 5},
    "previous": {"value": 0, "date": 0, "text": 1, "flag": 2, "unit": 3, "range": 3},
    "specimen": {"text": 0, "value": 4, "unit": 4, "range": 5, "flag": 2, "date": 5},
    "date": {"date": 0, "value": 4, "text": 4, "unit": 5, "range": 5, "flag": 5},
    "other": {"text": 0.5, "value": 1.5, "unit": 1.5, "range": 1.5, "flag": 1.5, "date": 1},
}


@dataclass
class Row:
    """One result of a line, in pieces. `dated`: the date that heads its column."""

    names: list[Piece]
    value: Piece
    unit: Piece | None = None
    reference: list[Piece] = field(default_factory=list)
    flag: Piece | None = None
    specimen: Piece | None = None
    date: Piece | None = None
    dated: str = ""
    group: int = 0

    @property
    def pieces(self) -> list[Piece]:
        some = (*self.names, self.value, self.unit, *self.reference, self.flag, self.specimen, self.date)
        return [piece for piece in some if piece is not None]


def _cost(piece: Piece, head: Head) -> float:
    gap = max(head.left - piece.right, piece.left - head.right, 0.0)
    middle = abs(piece.left + piece.right - head.left - head.right) / 2
    aligned = min(abs(piece.left - head.left), abs(piece.right - head.right), middle)
    unlike = min(_UNLIKE[head.role][role] for role in piece.roles)
    return gap / POINTS_A_COST + min(aligned, 100.0) / (2 * POINTS_A_COST) + unlike


def assigned(pieces: list[Piece], columns: list[Head]) -> list[Head]:
    """The column of each piece, so that the order of both is kept and the sum of costs is least."""
    best: list[tuple[float, list[int]]] = [(0.0, []) for _ in columns]
    for piece in pieces:
        following: list[tuple[float, list[int]]] = []
        for index, head in enumerate(columns):
            cost, path = min(best[: index + 1], key=lambda entry: entry[0])
            following.append((cost + _cost(piece, head), [*path, index]))
        best = following
    return [columns[index] for index in min(best, key=lambda entry: entry[0])[1]]


def table_rows(pieces: list[Piece], columns: list[Head]) -> list[Row]:
    """The results of one line, one for each table side by side, and for each dated column."""
    placed = list(zip(pieces, assigned(pieces, columns), strict=True))
    found = []
    for group in sorted({head.group for head in columns}):
        here = [(piece, head) for piece, head in placed if head.group == group]
        found.extend(_rows_of(here, [head for head in columns if head.group == group], group))
    return found


def holds_another(pieces: list[Piece], columns: list[Head]) -> bool:
    """True for a line of the table that has no result, but a previous one: it is not to be read in another way."""
    placed = list(zip(pieces, assigned(pieces, columns), strict=True))
    named = any(head.role == "name" and _is_name_place(piece, columns) for piece, head in placed)
    return named and any(
        head.role in ("previous", "date") and "value" in piece.roles and _beside(piece, head) for piece, head in placed
    )


def names_only(pieces: list[Piece], columns: list[Head], group: int) -> list[Piece]:
    """The pieces of a line in the names' column of a table that has nothing else on this line; empty if it has."""
    placed = [(p, h) for p, h in zip(pieces, assigned(pieces, columns), strict=True) if h.group == group]
    heads = [head for head in columns if head.group == group]
    if not placed or any(head.role != "name" or not _is_name_place(piece, heads) for piece, head in placed):
        return []
    return [piece for piece, _ in placed]


def _is_name_place(piece: Piece, columns: list[Head]) -> bool:
    name = next((head for head in columns if head.role == "name"), None)
    if name is None:
        return piece.right <= columns[0].left + OUTDENT
    return name.left - OUTDENT <= piece.left <= max(name.right, name.left + INDENT)


def _rows_of(placed: list[tuple[Piece, Head]], columns: list[Head], group: int) -> list[Row]:
    def of(*roles: Column) -> list[Piece]:
        return [piece for piece, head in placed if head.role in roles]

    named = any(head.role == "name" for head in columns)
    names = [piece for piece in of("name") if _is_name_place(piece, columns)]
    if not named:  # nothing stands over the names
        names = [p for p, h in placed if "text" in p.roles and p.right <= columns[0].left + 5]
    results = [
        (p, h) for p, h in placed if h.role == "result" and "value" in p.roles and _beside(p, h) and p not in names
    ]
    if not results or _is_whole_without(results[0][0], names, of("name")):
        return []
    results = [entry for entry in results if not _is_flag_of_another(entry, results)]
    dated = all(head.dated for _, head in results)
    chosen = list({head.left: (piece, head) for piece, head in reversed(results)}.values()) if dated else results[:1]
    rows = []
    for value, head in sorted(chosen, key=lambda entry: entry[0].left):
        unit = next(iter(of("unit")), None)
        beside = [piece for piece in of("result", "flag", "unit", "reference") if piece is not value]
        if unit is None or ("unit" not in unit.roles and unit.roles != {"text"}):
            unit = next(
                (p for p in beside if p.roles == {"unit"} or ("unit" in p.roles and p.cell == value.cell)), None
            )
        flag = next((p for p in of("flag") if p is not unit), None)
        if len(chosen) > 1:
            flag = _flag_beside(value, [piece for piece, _ in placed])
        elif flag is None:
            flag = next((p for p in of("result", "unit") if "flag" in p.roles and p not in (value, unit)), None)
        if flag is None and len(chosen) == 1:  # one that stands far to the right of its value
            flag = next((p for p in of("reference") if p.roles == {"flag"}), None)
        reference = [p for p in of("reference") if p not in (unit, flag, value)]
        if not reference:
            reference = [p for p in of("result", "unit") if "range" in p.roles and p not in (value, unit, flag)][:1]
        specimen = next(iter(of("specimen")), None)
        date = next((piece for piece in of("date") if "date" in piece.roles), None)
        rows.append(Row(names, value, unit, reference, flag, specimen, date, head.dated, group))
    return rows


def _is_flag_of_another(entry: tuple[Piece, Head], results: list[tuple[Piece, Head]]) -> bool:
    """True for `+` before `11.8` under one heading: alone it would be the result."""
    piece, head = entry
    others = [other for other, above in results if above is head and "flag" not in other.roles]
    return "flag" in piece.roles and bool(others)


def _flag_beside(value: Piece, some: list[Piece]) -> Piece | None:
    """Of several results on a line each has its own flag, right behind it (`5.6 H`), or before it in its cell."""
    at = next(index for index, piece in enumerate(some) if piece is value)
    after = [piece for piece in some[at + 1 : at + 2] if piece.left - value.right <= FLAG_GAP]
    before = [piece for piece in some[max(at - 1, 0) : at] if piece.cell == value.cell]
    return next((piece for piece in (*after, *before) if "flag" in piece.roles and "range" not in piece.roles), None)


def _is_whole_without(value: Piece, names: list[Piece], first: list[Piece]) -> bool:
    """True for a line that is set without regard to the columns: in its name's cell a value and its unit follow, so the
    range that stands in the results' column is not the result."""
    cells = {name.cell for name in names}
    inside = [piece.roles for piece in first if piece not in names and piece.cell in cells]
    return "range" in value.roles and any("value" in roles for roles in inside) and {"unit"} in inside


def _beside(piece: Piece, head: Head) -> bool:
    return max(head.left - piece.right, piece.left - head.right) <= NEAR
