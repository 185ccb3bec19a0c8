"""Paper to print on: text at points from the left and from the top, whichever way the page is turned."""

from __future__ import annotations

import io

from reportlab.lib.pagesizes import A4, LETTER, landscape
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas

SIZES = {"a4": A4, "letter": LETTER, "a4-landscape": landscape(A4), "letter-landscape": landscape(LETTER)}

BOLD = {"Helvetica": "Helvetica-Bold", "Times-Roman": "Times-Bold", "Courier": "Courier-Bold"}


class Sheet:
    """A document that is being printed. `turned`: degrees counter-clockwise by which the print really lies on the
    page; `rotate`: its /Rotate, clockwise. Both 90 is how many printers write a page that reads upright."""

    def __init__(self, size: str, font: str, turned: int = 0, rotate: int = 0) -> None:
        self.width, self.height = SIZES[size]
        self.font = font
        self.page = 1
        self._turned, self._rotate = turned, rotate
        self._file = io.BytesIO()
        across = turned in (90, 270)
        paper = (self.height, self.width) if across else (self.width, self.height)
        # reportlab takes the size of a page with a /Rotate as it is shown, and swaps it in the file.
        shown = paper[::-1] if rotate in (90, 270) else paper
        self._canvas = Canvas(self._file, pagesize=shown, invariant=1)
        self._begin()

    def _begin(self) -> None:
        canvas = self._canvas
        if self._rotate:
            canvas.setPageRotation(self._rotate)
        canvas.translate(
            {0: 0, 90: self.height, 180: self.width, 270: 0}[self._turned],
            {0: 0, 90: 0, 180: self.height, 270: self.width}[self._turned],
        )
        canvas.rotate(self._turned)

    def next_page(self) -> None:
        self._canvas.showPage()
        self.page += 1
        self._begin()

    def text(self, x: float, y: float, text: str, size: float = 9, *, bold: bool = False, align: str = "left") -> float:
        """Print at the baseline `y`; `align` says on which side of `x`. Returns the width."""
        font = BOLD[self.font] if bold else self.font
        width = stringWidth(text, font, size)
        left = x - {"left": 0.0, "right": width, "center": width / 2}[align]
        self._canvas.setFont(font, size)
        self._canvas.drawString(left, self.height - y, text)
        return width

    def width_of(self, text: str, size: float, *, bold: bool = False) -> float:
        return float(stringWidth(text, BOLD[self.font] if bold else self.font, size))

    def raised(self, x: float, y: float, text: str, size: float) -> None:
        """Print `10^9/L` with a small raised 9."""
        before, _, rest = text.partition("^")
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        x += self.text(x, y, before, size)
        x += self.text(x, y - 0.36 * size, digits, 0.65 * size)
        self.text(x, y, rest[len(digits) :], size)

    def line(self, x1: float, y1: float, x2: float, y2: float, width: float = 0.5) -> None:
        self._canvas.setLineWidth(width)
        self._canvas.line(x1, self.height - y1, x2, self.height - y2)

    def shade(self, x1: float, y1: float, x2: float, y2: float, grey: float = 0.9) -> None:
        self._canvas.setFillGray(grey)
        self._canvas.rect(x1, self.height - y2, x2 - x1, y2 - y1, stroke=0, fill=1)
        self._canvas.setFillGray(0)

    def wrap(self, text: str, size: float, width: float) -> list[str]:
        """The lines of `text`, broken between words, each at most `width` points wide if a word allows."""
        lines: list[str] = []
        for word in text.split(" "):
            if lines and self.width_of(f"{lines[-1]} {word}", size) <= width:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        return lines

    def finish(self) -> bytes:
        self._canvas.save()
        return self._file.getvalue()
