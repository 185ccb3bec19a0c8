"""A page while it is read: its lines, the table each stands in, the results found so far."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field

from pipelines.documents.headings import Head
from pipelines.documents.page import Line
from pipelines.documents.pieces import Piece
from pipelines.documents.tables import Row


@dataclass
class Read:
    """One line: where its text begins in the page's, its pieces, the columns above it (None: outside of tables)."""

    line: Line
    offset: int
    pieces: list[Piece]
    columns: list[Head] | None
    rows: list[Row] = field(default_factory=list)
    is_head: bool = False


def usual_step(read: list[Read]) -> float:
    """Points from one result to the next, where nothing stands between them; 0 where there are none."""
    pairs = itertools.pairwise(read)
    steps = [b.line.top - a.line.top for a, b in pairs if a.rows and b.rows and b.line.top > a.line.top]
    return statistics.median(steps) if steps else 0.0
