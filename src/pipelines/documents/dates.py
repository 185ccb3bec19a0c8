"""Dates as printed, and when a specimen was taken.

`03/04/2021` may be March or April: the document decides (a day over 12 anywhere); else it stays unread.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

from pipelines.documents.names import plain, rows, words

Order = Literal["dmy", "mdy", ""]

_ISO = re.compile(r"(?<!\d)(\d{4})[-./](\d{1,2})[-./](\d{1,2})(?!\d)")
_NUMERIC = re.compile(r"(?<![\d./-])(\d{1,2})([-./])(\d{1,2})\2(\d{4}|\d{2})(?![\d/])")
_DAY_FIRST = re.compile(
    r"(?<!\d)(\d{1,2})(?:st|nd|rd|th|er|º)?[-. ]\s?(?:de |d')?([^\W\d_]{3,12})\.?[-., ]\s?(?:de |del )?(\d{4})(?!\d)"
)
_MONTH_FIRST = re.compile(r"([^\W\d_]{3,12})\.? (\d{1,2})(?:st|nd|rd|th)?,? (\d{4})(?!\d)")


@cache
def _months() -> dict[str, int]:
    return {plain(word): int(row[0]) for row in rows("months.tsv") for word in row[1].split("|")}


def order_of(texts: Iterable[str]) -> Order:
    """Whether days or months come first in a document's numeric dates; empty where none of them tells.

    Points between the numbers are read as day first: no country writes months first with points.
    """
    day_first = month_first = 0
    pointed = False
    for text in texts:
        for match in _NUMERIC.finditer(text):
            first, second = int(match[1]), int(match[3])
            day_first += first > 12 >= second
            month_first += second > 12 >= first
            pointed = pointed or match[2] == "."
    if day_first == month_first:
        return "dmy" if pointed else ""
    return "dmy" if day_first > month_first else "mdy"


def parse_date(text: str, order: Order) -> str:
    """The first date in `text` as ISO 8601; empty where there is none, or none that can be read in one way only."""
    found: list[tuple[int, tuple[int, int, int]]] = []
    if match := _ISO.search(text):
        found.append((match.start(), (int(match[1]), int(match[2]), int(match[3]))))
    if match := _NUMERIC.search(text):
        first, second, year = int(match[1]), int(match[3]), _year(match[4])
        here: Order = order
        if first == second or second > 12 or first > 12:
            here = "mdy" if second > 12 else "dmy"
        if here:
            day, month = (first, second) if here == "dmy" else (second, first)
            found.append((match.start(), (year, month, day)))
    for match in _DAY_FIRST.finditer(text):
        if named := _months().get(plain(match[2])):
            found.append((match.start(), (int(match[3]), named, int(match[1]))))
            break
    for match in _MONTH_FIRST.finditer(text):
        if named := _months().get(plain(match[1])):
            found.append((match.start(), (int(match[3]), named, int(match[2]))))
            break
    for _, (year, month, day) in sorted(found):
        try:
            return datetime.date(year, month, day).isoformat()
        except ValueError:
            continue
    return ""


def _year(printed: str) -> int:
    """Two digits are of this century, unless that would be more than a year ahead."""
    if len(printed) == 4:
        return int(printed)
    year = 2000 + int(printed)
    return year if year <= datetime.datetime.now(datetime.UTC).year + 1 else year - 100


@cache
def _taken() -> re.Pattern[str]:
    longest_first = sorted((re.escape(plain(word)) for word in words("taken")), key=len, reverse=True)
    return re.compile(rf"(?<![^\W\d_])(?:{'|'.join(longest_first)})(?![^\W\d_])[^\d\n]{{0,24}}?(?=\S*\d)")


def taken(lines: Iterable[str], order: Order) -> str:
    """When the specimen was taken, by its label in several languages; ISO 8601, empty where it is not said."""
    lines = list(lines)
    for index, line in enumerate(lines):
        text = plain(line)
        if match := _taken().search(text):
            following = lines[index + 1] if index + 1 < len(lines) else ""
            if date := parse_date(text[match.end() : match.end() + 24], order) or (
                "" if match.end() < len(text) - 3 else parse_date(following, order)
            ):
                return date
    return ""
