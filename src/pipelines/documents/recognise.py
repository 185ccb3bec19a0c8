"""A scanned page read by RapidOCR (PP-OCR's models, which its wheel carries: nothing is fetched), in a child process.

Imports rapidocr (extra `ocr`) when called, not with the module; the models stay loaded in the process for other pages.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.documents.extract import opened, page_of
from pipelines.documents.lines import Word, lines_of
from pipelines.documents.page import Page
from pipelines.documents.reading import scale_of
from pipelines.errors import ToolMissing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]

DPI = 200
"""At which a page is drawn for the recogniser."""

LONGEST = 2000.0
"""Pixels of a picture's longer side; the recogniser would make a longer one smaller by itself."""

SURE = 0.8
"""Mean confidence of a page below which it may stand on its head."""

LEAST = 0.5
"""Confidence of a piece of text below which it is noise."""

TYPE = 0.72
"""Size of type, of the height of the box around it (boxes are drawn a little wide)."""

GREEK_MU, MICRO = "\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}"
"""They look the same, the models know the letter only, and documents have the sign."""

THREADS = 2
"""A page costs 10 CPU-seconds; lanes share cores, and a second thread halves the wait."""


@dataclass(frozen=True)
class Piece:
    """Text in a box, in pixels of the picture: its corners from the upper left on, clockwise, as the text runs."""

    text: str
    confidence: float
    corners: list[tuple[float, float]]

    @property
    def width(self) -> float:
        return math.dist(self.corners[0], self.corners[1])

    @property
    def height(self) -> float:
        return math.dist(self.corners[1], self.corners[2])


def is_there() -> bool:
    """Whether the recogniser is installed."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def recognise(path: Path, number: int) -> Page:
    """Page `number`, from 1, by what is to be seen on it; turned upright, and straight if it was scanned askew.

    Raises InputRejected as `reading.page_count` does, and ToolMissing.
    """
    with opened(path) as document, page_of(document, number - 1) as page:
        scale = min(scale_of(page, DPI), LONGEST / max(*page.get_size(), 1.0))
        picture = page.render(scale=scale).to_numpy().copy()
    pieces, turns = _best(picture)
    high, wide = picture.shape[:2]
    if turns % 2:
        high, wide = wide, high
    lines = lines_of(_words(pieces, scale))
    return Page(number=number, width=wide / scale, height=high / scale, source="ocr", lines=lines)


def _best(picture: Picture) -> tuple[list[Piece], int]:
    """The pieces of the picture as it is, or after the quarter turns (counter-clockwise) that make it readable."""
    pieces = _pieces(picture)
    sure = _confidence(pieces) >= SURE
    lying = sum(piece.height > 1.5 * piece.width for piece in pieces) * 2 > len(pieces)
    if not pieces or (sure and not lying):
        return pieces, 0
    # Each tall box is turned by a quarter before it is read: where that made sense, so it does for the page.
    tries = [(pieces, 0)] if not lying else []
    for turns in ((1, 3) if sure else (3, 1)) if lying else (2,):
        tries.append((_pieces(_turned(picture, turns)), turns))
        if _confidence(tries[-1][0]) >= SURE:
            break
    return max(tries, key=lambda entry: _confidence(entry[0]) * len(entry[0]))


def _turned(picture: Picture, turns: int) -> Picture:
    import numpy as np

    return np.ascontiguousarray(np.rot90(picture, turns))


def _confidence(pieces: list[Piece]) -> float:
    return statistics.fmean(piece.confidence for piece in pieces) if pieces else 0.0


def _pieces(picture: Picture) -> list[Piece]:
    found = _engine()(picture)
    if found.boxes is None or found.txts is None or found.scores is None:
        return []
    return [
        Piece(text.strip().replace(GREEK_MU, MICRO), float(score), [(float(x), float(y)) for x, y in box])
        for box, text, score in zip(found.boxes, found.txts, found.scores, strict=True)
        if text.strip() and score >= LEAST
    ]


@lru_cache(maxsize=1)
def _engine() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ToolMissing("a scanned page needs rapidocr: pip install 'phaze-agent[ocr]'") from None
    return RapidOCR(
        params={
            "Global.use_cls": False,  # turns single lines; a page on its head is turned as one
            "Global.log_level": "critical",
            "EngineConfig.onnxruntime.intra_op_num_threads": THREADS,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _words(pieces: list[Piece], scale: float) -> list[Word]:
    """In points from the left and top, turned by the angle at which most of the text was scanned."""
    long = [piece for piece in pieces if piece.width > 3 * piece.height]
    angles = [_angle(piece) for piece in long]
    askew = statistics.median(angles) if angles else 0.0
    cos, sin = math.cos(askew), math.sin(askew)
    words = []
    for piece in pieces:
        x = statistics.fmean(x for x, _ in piece.corners) / scale
        y = statistics.fmean(y for _, y in piece.corners) / scale
        across, down = x * cos + y * sin, y * cos - x * sin
        half, em = piece.width / scale / 2, piece.height / scale * TYPE
        words.append(Word(piece.text, across - half, across + half, down - em / 2, down + em / 2, em))
    return words


def _angle(piece: Piece) -> float:
    """Radians, clockwise, of the line on which the piece stands."""
    (x1, y1), (x2, y2) = piece.corners[3], piece.corners[2]
    return math.atan2(y2 - y1, x2 - x1)
