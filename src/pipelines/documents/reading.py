"""What a child process does with a document: read its pages' text, and see which pages a recogniser must look at.

A page that cannot be read costs itself only. Imports pypdfium2 when called, not with the module.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipelines.documents.extract import opened, page_of, read_page
from pipelines.documents.page import Page
from pipelines.errors import InputRejected
from pipelines.saying import say

if TYPE_CHECKING:
    import pypdfium2

FEW = 25
"""Characters of a page with less of which it has almost no text: a page number, or a fax's line."""

SOME = 250
"""Characters of a page with less of which a picture that covers most of it is what the page is about."""

MOST_OF_IT = 0.5
"""Of a page's area, covered by one picture."""

GLANCE = 36
"""Dots an inch, to see whether there is anything on a page."""

FAINT = 8
"""Of 255, by which the darkest point of an empty page differs from its lightest."""

MOST_PIXELS = 16e6
"""Of one picture of a page: A3 at 300 dots an inch. A page's size is whatever its maker wrote there."""


@dataclass(frozen=True)
class Looked:
    """One page, from 1: its own text, whether a recogniser must look at it (`scan`) or nothing is on it (`blank`)."""

    number: int
    page: Page | None
    kind: Literal["text", "scan", "blank", "failed"]
    reason: str = ""
    """Why it failed."""


def page_count(path: Path) -> int:
    """Raises InputRejected (`encrypted`, `corrupt`, `no-pages`)."""
    with opened(path) as document:
        return len(document)


def look_at_all(path: Path, most: int) -> tuple[int, list[Looked]]:
    """How many pages there are, and the first `most` of them. Raises InputRejected as `page_count` does."""
    with opened(path) as document:
        count = min(len(document), most)
        found = []
        for index in range(count):
            found.append(_look(document, index))
            say((index + 1) / count, f"page {index + 1} of {count}")
        return len(document), found


def look_at(path: Path, number: int) -> Looked:
    """One page, from 1, by itself: when a document's pages together were too much for one process."""
    with opened(path) as document:
        return _look(document, number - 1)


def _look(document: pypdfium2.PdfDocument, index: int) -> Looked:
    try:
        with page_of(document, index) as page:
            read = read_page(page, index + 1)
            return Looked(index + 1, read, _kind(page, read))
    except InputRejected as error:
        return Looked(index + 1, None, "failed", str(error))
    except (OSError, MemoryError):
        raise  # no fault of the page
    except Exception as error:  # whatever a library says of a damaged page
        return Looked(index + 1, None, "failed", f"it cannot be read ({type(error).__name__})")


def _kind(page: pypdfium2.PdfPage, read: Page) -> Literal["text", "scan", "blank"]:
    characters = sum(len(cell.text) for line in read.lines for cell in line.cells)
    if characters >= SOME or (characters >= FEW and _largest_picture(page) < MOST_OF_IT):
        return "text"
    return "scan" if characters or _shows_something(page) else "blank"


def _largest_picture(page: pypdfium2.PdfPage) -> float:
    """The share of the page that its largest picture covers."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    area = max(page.get_width() * page.get_height(), 1.0)
    largest = 0.0
    for picture in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3):
        try:
            left, bottom, right, top = picture.get_bounds()
        except pypdfium2.PdfiumError:
            continue
        largest = max(largest, (right - left) * (top - bottom) / area)
    return largest


def _shows_something(page: pypdfium2.PdfPage) -> bool:
    """Whether anything at all is to be seen on the page."""
    bitmap = page.render(scale=scale_of(page, GLANCE), grayscale=True)
    pixels = bytes(bitmap.buffer)
    rows = [pixels[at : at + bitmap.width] for at in range(0, len(pixels), bitmap.stride)]
    lights = [(min(row), max(row)) for row in rows if row]
    return bool(lights) and max(high for _, high in lights) - min(low for low, _ in lights) > FAINT


def scale_of(page: pypdfium2.PdfPage, dpi: float) -> float:
    """Pixels a point, for a picture of the page at `dpi`, or smaller where that would be over MOST_PIXELS."""
    area = max(page.get_width() * page.get_height(), 1.0)
    return float(min(dpi / 72, (MOST_PIXELS / area) ** 0.5))
