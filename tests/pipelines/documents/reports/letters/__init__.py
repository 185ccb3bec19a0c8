"""Pages that are no lab reports, with what they are about: letters, findings, bills, in six languages.

Each is a text beside this module: `categories:` in the first line, `held out` in the second where it is, then the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.pipelines.documents.reports.sheet import Sheet


@dataclass(frozen=True)
class Letter:
    name: str
    categories: tuple[str, ...]
    held_out: bool
    lines: tuple[str, ...]

    def pdf(self) -> bytes:
        """One page."""
        sheet = Sheet("a4", "Helvetica")
        for number, line in enumerate(self.lines):
            sheet.text(50, 60 + 18 * number, line, 9, bold=number == 0)
        return sheet.finish()


def _letter(path: Path) -> Letter:
    first, *lines = path.read_text("utf-8").splitlines()
    held_out = lines[0] == "held out"
    categories = first.removeprefix("categories:").split(",")
    return Letter(path.stem, tuple(map(str.strip, categories)), held_out, tuple(lines[held_out:]))


LETTERS = tuple(_letter(path) for path in sorted(Path(__file__).parent.glob("*.txt")))
