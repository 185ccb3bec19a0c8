"""Whether documents are of one person: by the dates of birth that they print. Names are written in too many ways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from pipelines.documents.dates import parse_date
from pipelines.documents.names import plain, words
from pipelines.documents.page import Page

LONGEST = 24
"""Characters of a date of birth and what may follow it, as an age."""

BEGINS = r"\d|[^\W\d_]{3,12}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}"
"""How a date does: it stands behind its own label, and not behind another's."""


def births(pages: Iterable[Page]) -> dict[str, list[int]]:
    """The dates of birth that are printed behind their labels, each with its pages; those of relatives are left out.

    A date is its year and its other two numbers in order of size: what is March to one laboratory and April to another
    is one date here, so that two that differ are surely two.
    """
    found: dict[str, list[int]] = {}
    for page in pages:
        for line in page.lines:
            text = plain(line.text)
            for match in _label().finditer(text):
                if date := parse_date(text[match.end() : match.end() + LONGEST], "dmy"):
                    if _relative().search(text):
                        continue
                    year, *others = date.split("-")
                    numbers = found.setdefault("-".join([year, *sorted(others)]), [])
                    if page.number not in numbers:
                        numbers.append(page.number)
    return found


def doubt(found: Mapping[str, list[int]]) -> str:
    """Why a document may be of several persons; empty where nothing says so."""
    if len(found) < 2:
        return ""
    pages = sorted({number for numbers in found.values() for number in numbers})
    where = f"page {pages[0]} prints" if len(pages) == 1 else f"pages {', '.join(map(str, pages))} print"
    return f"{where} {len(found)} dates of birth: its results may be of several persons"


@cache
def _label() -> re.Pattern[str]:
    longest_first = sorted((re.escape(plain(word)) for word in words("born")), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)[^\w\n]{{0,12}}(?={BEGINS})")


@cache
def _relative() -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(plain(word)) for word in words('relative'))})(?!\w)")
