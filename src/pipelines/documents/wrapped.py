"""Names that are printed over two lines: which lines without a value belong to the result above or below them.

Type tells: a line set closer to a result than results are set to each other is part of it; so is one that begins in
brackets or in lower case. A name that is known only with the line, or only without it, decides for or against it.
"""

from __future__ import annotations

import re

from pipelines.documents import stop
from pipelines.documents.lab_lines import Read, usual_step
from pipelines.documents.names import known
from pipelines.documents.pieces import Piece
from pipelines.documents.tables import Row, names_only

CLOSE = 0.87
"""Of the usual distance between two results: nearer is one name over two lines."""

LONGEST = 45
MOST_LINES = 2


def complete(read: list[Read]) -> None:
    """Give every result the rest of its name. Changes the rows in place."""
    usual = usual_step(read)
    taken: set[tuple[int, int]] = set()
    for index, entry in enumerate(read):
        for row in entry.rows:
            if entry.columns is None or not usual:
                continue
            _above(read, index, row, usual, taken)
            _below(read, index, row, usual, taken)
        entry.rows = [row for row in entry.rows if row.names]


def _lone_name(read: list[Read], index: int, row: Row, taken: set[tuple[int, int]]) -> list[Piece]:
    if not 0 <= index < len(read) or (index, row.group) in taken:
        return []
    entry = read[index]
    if entry.is_head or entry.columns is None or any(other.group == row.group for other in entry.rows):
        return []
    found = names_only(entry.pieces, entry.columns, row.group)
    text = " ".join(piece.text for piece in found)
    if (
        not found
        or len(text) > LONGEST
        or text.endswith(".")
        or ":" in text
        or any(p.right > row.value.left for p in found)
    ):
        return []
    return found


def _above(read: list[Read], index: int, row: Row, usual: float, taken: set[tuple[int, int]]) -> None:
    for step in range(1, MOST_LINES + 1):
        found = _lone_name(read, index - step, row, taken)
        if not found:
            return
        distance = read[index - step + 1].line.top - read[index - step].line.top
        own = " ".join(piece.text for piece in row.names)
        whole = " ".join((*(piece.text for piece in found), own)).strip()
        before = index - step - 1
        nearer = before < 0 or distance < CLOSE * (read[index - step].line.top - read[before].line.top)
        close = distance < CLOSE * usual and (nearer or not own)
        begins_low = bool(re.match(r"[(\[]|[a-zà-ÿ]{2,}", own)) and not known(own) and distance < 1.3 * usual
        if own and known(own) and not known(whole):
            return
        if not own and step == 1 and distance < 1.1 * usual:
            close = True
        if not (
            close or begins_low or (bool(known(whole)) and bool(own) and not known(own) and distance < 1.1 * usual)
        ):
            return
        if stop.is_no_name(whole):
            return
        row.names = [*found, *row.names]
        taken.add((index - step, row.group))


def _below(read: list[Read], index: int, row: Row, usual: float, taken: set[tuple[int, int]]) -> None:
    for step in range(1, MOST_LINES + 1):
        found = _lone_name(read, index + step, row, taken)
        if not found:
            return
        text = " ".join(piece.text for piece in found)
        own = " ".join(piece.text for piece in row.names)
        distance = read[index + step].line.top - read[index + step - 1].line.top
        after = index + step + 1
        nearer = after >= len(read) or distance < CLOSE * (read[after].line.top - read[index + step].line.top)
        close = distance < CLOSE * usual and nearer
        begins = re.match(r"[(\[]|[a-zà-ÿ]{2,}", text)
        goes_on = (begins is not None and not known(own)) or own.endswith(("-", ",", "(", "/", "&"))
        whole = f"{own} {text}"
        helps = bool(known(whole)) and not known(own)
        if not (close or ((goes_on or helps) and distance < 1.1 * usual)):
            return
        if known(own) and not known(whole) and not goes_on:
            return
        row.names = [*row.names, *found]
        taken.add((index + step, row.group))
