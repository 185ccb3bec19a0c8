"""Dates as printed, and when a specimen was taken.

`03/04/2021` may be March or April: the document decides (a day over 12 anywhere); else it stays unread.
"""

from __future__ import annotations

import datetime
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from pipelines.documents.names import plain, rows, words

Order = Literal["dmy", "mdy", ""]

_ISO = re.compile(r"(?<!\d)(\d{4})[-./](\d{1,2})[-./](\d{1,2})(?!\d)")
_NUMERIC = re.compile(r"(?<![\d./-])(\d{1,2})([-./])(\d{1,2})\2(\d{4}|\d{2})(?![\d/])")
_DAY_FIRST = re.compile(
    r"(?<!\d)(\d{1,2})(?:st|nd|rd|th|er|º)?[-./ ]\s?(?:de |d')?([^\W\d_]{3,12})\.?"
    r"(?:[-.,/ ]\s?(?:de |del )?(\d{4})|[-/ ](\d{2})(?![.,/-]?\d))(?![\d:])"
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
            found.append((match.start(), (_year(match[3] or match[4]), named, int(match[1]))))
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


def is_period(text: str) -> bool:
    """True for a month or a year: `Jan 2023`, `03/2023`, `2023`."""
    match = re.fullmatch(r"(?:(?P<name>[^\W\d_]{3,12})\.?[ -/]|(?P<month>\d{1,2})[-./])?(?:19|20)\d\d", text.strip())
    if match is None or (match["name"] and plain(match["name"]) not in _months()):
        return False
    return not match["month"] or 1 <= int(match["month"]) <= 12


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


NEAR = 3
"""Lines: labels that stand nearer to each other are of one block; what stands below cannot tell which is its own."""


@dataclass(frozen=True)
class Label:
    """`Collected: 14 Mar 2022`: a page, the line on it, and the day as ISO 8601."""

    page: int
    line: int
    day: str

    def place(self) -> tuple[int, int]:
        return self.page, self.line


@dataclass(frozen=True)
class Taken:
    """When a document's specimens were taken, as its labels say, in order: a file may hold several reports."""

    labels: tuple[Label, ...] = ()

    def on(self, page: int, line: int) -> str:
        """The day that holds for what stands on a line; empty where it is not said, or two are.

        The one day of the document; else the one of its page; else that of the last label above.
        """
        if len(self._days) == 1:
            return self._days[0]
        until = bisect_right(self.labels, (page, line), key=Label.place)
        first, end = (bisect_left(self.labels, (number, 0), key=Label.place) for number in (page, page + 1))
        last = self.labels[max(until - 1, 0) : until]
        while last and until > len(last) and _is_near(self.labels[until - len(last) - 1], last[-1]):
            last = self.labels[until - len(last) - 1 : until]
        for labels in (self.labels[first:end], last):
            if len(days := _days_of(labels)) == 1:
                return days[0]
        return ""

    @cached_property
    def _days(self) -> list[str]:
        return _days_of(self.labels)


def _days_of(labels: Iterable[Label]) -> list[str]:
    return list({label.day for label in labels})


def _is_near(above: Label, below: Label) -> bool:
    return above.page == below.page and below.line - above.line < NEAR


def taken(pages: Iterable[tuple[int, Iterable[str]]], order: Order) -> Taken:
    """The labels of the pages (number, lines), in several languages. What speaks of earlier results counts only where
    nothing else is labelled."""
    labels: list[Label] = []
    of_earlier: list[Label] = []
    for number, some in pages:
        lines = list(some)
        for index, line in enumerate(lines):
            into = of_earlier if _earlier().search(line) else labels
            into += [Label(number, index, day) for day in _labelled(plain(line), lines[index + 1 : index + 2], order)]
    return Taken(tuple(sorted(labels or of_earlier[:1], key=Label.place)))


@cache
def _earlier() -> re.Pattern[str]:
    spelt = "|".join(re.escape(word) for word in words("general"))
    return re.compile(rf"(?<!\w)(?:{spelt})(?!\w)", re.I)


@cache
def _another() -> re.Pattern[str]:
    spelt = "|".join(re.escape(plain(word)) for word in words("other day"))
    return re.compile(rf"(?<![^\W\d_])(?:{spelt})(?![^\W\d_])")


def _labelled(text: str, following: list[str], order: Order) -> Iterator[str]:
    """The days that a line's labels say; a label at its end has its day on the line that follows."""
    for match in _taken().finditer(text):
        if _another().search(match[0]):
            continue
        day = parse_date(text[match.end() : match.end() + 24], order)
        if not day and following and match.end() >= len(text) - 3:
            day = parse_date(following[0], order)
        if day:
            yield day
