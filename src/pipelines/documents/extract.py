"""The pages of a PDF from its own text: characters with positions become words, words become lines of cells.

The text of a page in the order in which it was written says little about a table: one column may come after the
other. So lines are rebuilt from where the characters stand, in the direction in which most of them are written; a page
that was turned, by its /Rotate or in its text, is read upright. Imports pypdfium2 when called, not with the module.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.documents.lines import RAISED, Word, lines_of
from pipelines.documents.page import Page
from pipelines.errors import InputRejected

if TYPE_CHECKING:
    import pypdfium2

MOST_CHARACTERS = 200_000
"""Of one page; a page set solid in 4-point type has a tenth. More is a bomb."""

WORD_GAP = 0.45
"""Of the type size, between the ink of two characters: more ends a word. PDFium adds the spaces that a document leaves
out, by the widths of its font; the ink of `1` and `,` stands 0.3 apart without any."""

HYPHEN, NO_CHARACTER = 0x02, 0xFFFE
"""What PDFium puts for a hyphen at a line's end, and for a glyph without a meaning."""

_PDFIUM = threading.RLock()


@dataclass(frozen=True)
class Glyph:
    """One character: its place on the page as written (y upwards, points), and the direction of its line."""

    text: str
    x: float
    y: float
    box: tuple[float, float, float, float]
    em: float
    degrees: int


def read_pages(path: str | Path) -> list[Page]:
    """Every page of a PDF, read from its own text; a page without any has no lines.

    Raises InputRejected: `encrypted`, `corrupt`, `no-pages`, `too-large` (a page that holds too many characters).
    """
    with opened(path) as document:
        return [_read_page(document, index) for index in range(len(document))]


def _read_page(document: pypdfium2.PdfDocument, index: int) -> Page:
    with page_of(document, index) as page:
        return read_page(page, index + 1)


@contextmanager
def opened(path: str | Path) -> Iterator[pypdfium2.PdfDocument]:
    """The document, for one thread at a time: PDFium knows no threads. Raises InputRejected as `read_pages` does."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    # An open file and not its path, which pypdfium2 would resolve: a file without a name (`source`) has none.
    with _PDFIUM, Path(path).open("rb") as file:
        try:
            document = pypdfium2.PdfDocument(file)
        except pypdfium2.PdfiumError as error:
            if getattr(error, "err_code", None) in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY):
                raise InputRejected("encrypted", "it wants a password; save it without one") from None
            raise InputRejected("corrupt", "PDFium cannot open it: it is damaged, or cut off") from None
        try:
            if not len(document):
                raise InputRejected("no-pages", "it has no page")
            yield document
        finally:
            document.close()


@contextmanager
def page_of(document: pypdfium2.PdfDocument, index: int) -> Iterator[pypdfium2.PdfPage]:
    """One page, from 0. Raises InputRejected (`corrupt`)."""
    import pypdfium2

    try:
        page = document[index]
    except pypdfium2.PdfiumError:
        raise InputRejected("corrupt", f"page {index + 1} cannot be read") from None
    try:
        yield page
    finally:
        page.close()


def read_page(page: pypdfium2.PdfPage, number: int) -> Page:
    """One page, which is to be known by `number`. Raises InputRejected (`too-large`)."""
    text = page.get_textpage()
    try:
        glyphs = list(_glyphs(text))
    finally:
        text.close()
    turned = Counter(glyph.degrees for glyph in glyphs if not glyph.text.isspace()).most_common(1)
    degrees = turned[0][0] if turned else -page.get_rotation()
    upright = _Upright(page.get_bbox(), degrees)
    lines = lines_of(word for word in _words(glyphs, upright) if upright.shows(word))
    return Page(number=number, width=upright.width, height=upright.height, source="text", lines=lines)


class _Upright:
    """Turns positions of a page written at `degrees` (counter-clockwise) so that its lines run to the right, and
    counts them in points from the left and from the top."""

    def __init__(self, box: tuple[float, float, float, float], degrees: float) -> None:
        self._cos, self._sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        left, bottom, right, top = box
        corners = [self._turn(x, y) for x in (left, right) for y in (bottom, top)]
        self._left, self._top = min(x for x, _ in corners), max(y for _, y in corners)
        self.width = max(x for x, _ in corners) - self._left
        self.height = self._top - min(y for _, y in corners)

    def _turn(self, x: float, y: float) -> tuple[float, float]:
        return x * self._cos + y * self._sin, y * self._cos - x * self._sin

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        across, up = self._turn(x, y)
        return across - self._left, self._top - up

    def shows(self, word: Word) -> bool:
        """Whether a word is on the page, be it in part: what lies beyond its edges nobody sees."""
        return word.right > 0 and word.left < self.width and word.bottom > 0 and word.top < self.height


def _glyphs(text: Any) -> Iterator[Glyph]:
    """The characters of a text page, spaces included, in the order in which they are written."""
    import pypdfium2.raw as pdfium

    handle = text.raw
    count = text.count_chars()
    if count > MOST_CHARACTERS:
        raise InputRejected("too-large", f"a page holds {count} characters, over {MOST_CHARACTERS}")
    x, y = ctypes.c_double(), ctypes.c_double()
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    matrix = pdfium.FS_MATRIX()
    for index in range(count):
        code = pdfium.FPDFText_GetUnicode(handle, index)
        if code in (0, NO_CHARACTER) or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            continue
        character = "-" if code == HYPHEN else chr(code)
        placed = (
            pdfium.FPDFText_GetCharOrigin(handle, index, x, y)
            and pdfium.FPDFText_GetCharBox(handle, index, left, right, bottom, top)
            and pdfium.FPDFText_GetMatrix(handle, index, matrix)
        )
        box = (left.value, bottom.value, right.value, top.value)
        if not placed or not all(map(math.isfinite, (x.value, y.value, *box))):
            if character.isspace():
                yield Glyph(" ", x.value, y.value, box, 0.0, 0)
            continue
        em = pdfium.FPDFText_GetFontSize(handle, index) * math.hypot(matrix.c, matrix.d)
        if not 1.0 <= em <= 1000.0:  # a font that draws itself in units of its own
            em = max(box[3] - box[1], 1.0) / 0.7
        degrees = round(math.degrees(math.atan2(matrix.b, matrix.a))) % 360
        yield Glyph(character, x.value, y.value, box, em, degrees)


def _words(glyphs: list[Glyph], upright: _Upright) -> Iterator[Word]:
    """Characters that stand together, on one baseline, with no space between them."""
    word: Word | None = None
    base = 0.0
    for glyph in glyphs:
        if glyph.text.isspace() or not glyph.text.isprintable():
            if word is not None:
                yield word
            word = None
            continue
        corners = [upright(x, y) for x in glyph.box[::2] for y in glyph.box[1::2]]
        left, right = min(x for x, _ in corners), max(x for x, _ in corners)
        _, baseline = upright(glyph.x, glyph.y)
        near = word is not None and -0.5 * glyph.em < left - word.right < WORD_GAP * glyph.em
        if word is not None and near and abs(baseline - base) < RAISED * word.em:
            word.text += glyph.text
            word.right = max(word.right, right)
        else:
            if word is not None:
                yield word
            base = baseline
            word = Word(glyph.text, left, right, baseline - 0.75 * glyph.em, baseline + 0.2 * glyph.em, glyph.em)
    if word is not None:
        yield word
