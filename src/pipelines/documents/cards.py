"""Results that are printed as cards: the name on a line of its own, below it labelled lines (`Value`, `Normal range:`).

A card is a result only with a unit or a range, or if its name is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipelines.documents import stop
from pipelines.documents.headings import Column, label
from pipelines.documents.lab_lines import Read
from pipelines.documents.names import known
from pipelines.documents.pieces import Piece, joined, pieces_of, words
from pipelines.documents.tables import Row
from pipelines.documents.values import Decimal

LONGEST_CARD = 8
"""Lines from a name to the last line of its card."""


@dataclass
class _Card:
    names: list[Piece] = field(default_factory=list)
    at: int = 0
    parts: dict[Column, list[Piece]] = field(default_factory=dict)
    of_value: Read | None = None

    def row(self) -> Row | None:
        result = self.parts.get("result", [])
        value = next((piece for piece in result if "value" in piece.roles), None)
        if value is None or not self.names or self.of_value is None:
            return None
        beside = [piece for piece in result if piece is not value]
        units = [piece for piece in (*self.parts.get("unit", []), *beside) if "unit" in piece.roles]
        flags = [
            piece for piece in (*self.parts.get("flag", []), *beside) if "flag" in piece.roles and piece not in units
        ]
        reference = self.parts.get("reference", [])
        if not reference:
            reference = [piece for piece in beside if "range" in piece.roles and piece not in flags][:1]
        if not (units or reference or known(" ".join(piece.text for piece in self.names))):
            return None
        return Row(self.names, value, units[0] if units else None, reference, flags[0] if flags else None)


def read_cards(read: list[Read], decimal: Decimal) -> None:
    """Find the cards among the lines that hold no other results, and give each its row."""
    card = _Card()
    for index, entry in enumerate(read):
        if entry.rows or entry.is_head or not entry.pieces or index - card.at > LONGEST_CARD:
            _end(card)
            card = _Card()
        if entry.rows or entry.is_head or not entry.pieces:
            continue
        part = _labelled(entry, decimal)
        if part is None:
            if name := _lone_name(entry):
                _end(card)
                card = _Card([name], index)
            continue
        role, some = part
        if role == "name" or (role == "result" and "result" in card.parts):
            _end(card)
            card = _Card(card.names if role == "result" and not card.parts.get("result") else [], index)
        if role == "name":
            card.names = some
        elif some:
            card.parts.setdefault(role, some)
            if role == "result":
                card.of_value = entry
    _end(card)


def _end(card: _Card) -> None:
    row = card.row()
    if row is not None and card.of_value is not None:
        card.of_value.rows = [row]
        card.of_value.columns = None


def _labelled(entry: Read, decimal: Decimal) -> tuple[Column, list[Piece]] | None:
    """The label that a line begins with, and the pieces after it."""
    cells = words(entry.line, entry.offset)
    if not cells or not cells[0]:
        return None
    found = label(cells[0], alone=len(cells) > 1)
    if found is None:
        return None
    role, size = found
    rest = [cells[0][size:], *cells[1:]]
    if role == "name":
        some = [word for cell in rest for word in cell]
        return (role, [joined(some, decimal, 0, "text")]) if some else None
    return role, [piece for index, cell in enumerate(rest) for piece in pieces_of(cell, index, decimal)]


def _lone_name(entry: Read) -> Piece | None:
    if len(entry.pieces) != 1:
        return None
    piece = entry.pieces[0]
    prose = piece.text.endswith((".", ":", "?")) or len(piece.text.split()) > 7
    if prose or stop.is_no_name(piece.text) or not re.search(r"[^\W\d_]", piece.text):
        return None
    return piece if piece.roles == {"text"} or known(piece.text) else None
