"""RESULTS.md: a section for each benchmark, written by it alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).resolve().parent / "RESULTS.md"


def write_section(title: str, lines: Sequence[str], file: Path = FILE) -> None:
    """Put a section in its place, or at the end; the others stay as they are."""
    text = file.read_text("utf-8") if file.exists() else "# Results\n"
    before, _, rest = text.partition(f"## {title}\n")
    _, heading, after = rest.partition("\n## ")
    section = f"## {title}\n\n" + "\n".join(lines).rstrip() + "\n"
    file.write_text(f"{before.rstrip()}\n\n{section}{heading}{after}", "utf-8")
