"""Results in sentences: `Your ferritin was 12 ng/mL (reference 15-150)`.

A sentence is read from its end: a reference range that stands in brackets or is called one; before it a number with its
unit; before that, with words between, the one name of the sentence that the alias table knows, measured in such a unit.
What lacks one of these (`Ferritin below 15 ng/mL means a deficiency`) is left alone, and so is text in columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from pipelines.documents.facts import Biomarker, Span
from pipelines.documents.grouper import analyte_of
from pipelines.documents.names import aliases, rows, specimen_within, tokens, words
from pipelines.documents.page import Page
from pipelines.documents.ranges import Range, parse_range
from pipelines.documents.units import ucum
from pipelines.documents.values import COMPARATOR, NUMBER, Decimal, parse_value

BEFORE = 200
"""Characters before a range in which its value and its name stand."""

ASIDE = 60
"""Characters between a name and its value, a unit and its range, and that a range may take."""

MOST_WORDS = 7
"""Of a name."""

_COLUMNS = re.compile(r"[ \t]{2}")
_BRACKET = re.compile(r"[(\[]([^()\[\]]{3,90})[)\]]")
_NUMBER = re.compile(rf"(?<![\w.,/^*+-])(?:{COMPARATOR}\s?)?{NUMBER}(?![\w^*]|[.,/]\d)", re.I)
_BOUND = re.compile(rf"(?:{COMPARATOR}\s?)?\d", re.I)
_END = re.compile(r"[.!?](?=\s+[^\Wa-z\d_])|[;\u2022]|\n\s*\n")
_WORD = re.compile(r"[\w\u03b1-\u03c9][\w.\u2019'/+-]*(?<![.'\u2019])")


@cache
def _called_reference() -> re.Pattern[str]:
    """What ranges are called in reports: as the headings of columns."""
    (printed,) = [row[1] for row in rows("headers.tsv") if row[0] == "reference"]
    return _any_of([phrase for phrase in printed.split("|") if len(phrase) > 3])


@cache
def _general() -> re.Pattern[str]:
    """Words of sentences that speak of results in general."""
    return _any_of(words("general"))


def _any_of(phrases: tuple[str, ...] | list[str]) -> re.Pattern[str]:
    spelt = [r"\s+".join(map(re.escape, phrase.split())) for phrase in sorted(phrases, key=len, reverse=True)]
    return re.compile(rf"(?<!\w)(?:{'|'.join(spelt)})(?![^\W\d_])", re.I)


def sentences(page: Page, decimal: Decimal, taken: str) -> list[Biomarker]:
    """The results that the page's sentences tell, in order. `taken`: the day of the document's specimens."""
    text = page.text
    found: list[Biomarker] = []
    done = 0
    for start, end, reference in sorted(_references(text, decimal), key=lambda one: one[:2]):
        begin = max(done, start - BEFORE)
        for last in _END.finditer(text, begin, start):
            begin = last.end()
        if start < done or (read := _result(text, begin, start)) is None:
            continue
        name, value, unit = read
        if _COLUMNS.search(text, name[0], end) or _general().search(text, begin, value[0]):
            continue
        marker = _biomarker(page, text[slice(*name)], text[slice(*value)], unit, decimal)
        if marker is None:
            continue
        specimen = specimen_within(text[begin : value[0]]) or ""
        span = Span(page=page.number, start=name[0], end=end)
        more = {"reference": reference, "specimen": specimen, "date": taken, "span": span}
        if analyte_of(told := marker.model_copy(update=more))[0] is not None:
            found.append(told)
            done = end
    return found


def _references(text: str, decimal: Decimal) -> Iterator[tuple[int, int, Range]]:
    """(where it begins, with what it is called; where it ends; the range)."""
    for match in _BRACKET.finditer(text):
        bound = _BOUND.search(match[1])
        if bound is None or (match[1][: bound.start()].strip() and not _called_reference().search(match[1])):
            continue
        if reference := parse_range(match[1][bound.start() :].strip(), decimal):
            yield match.start(), match.end(), reference
    for match in _called_reference().finditer(text):
        bound = _BOUND.search(text, match.end(), match.end() + ASIDE)
        if bound is None or re.search(r"[()\[\]]|[.;]\s", text[match.end() : bound.start()]):
            continue
        for stop in reversed([found.end() for found in re.finditer(r"\S+", text[bound.start() :][:ASIDE])][:8]):
            printed = text[bound.start() : bound.start() + stop].rstrip(".,;:)]")
            if reference := parse_range(printed, decimal):
                yield match.start(), bound.start() + len(printed), reference
                break


def _result(text: str, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int], str] | None:
    """(the name's place, the value's place, the unit) of what stands between a sentence's begin and its range."""
    numbers = [_measured(text, *match.span(), end) for match in _NUMBER.finditer(text, begin, end)]
    for at in range(len(numbers) - 1, -1, -1):
        start, stop, unit, after = numbers[at]
        if re.search(r"\d", text[after:end]) or end - after > ASIDE:
            continue
        if _COLUMNS.search(text, start, end):
            return None
        others = [before[3] for before in numbers[:at] if before[2]]  # results without a range of their own
        name = _name_before(text, max([begin, *others]), start)
        return None if name is None else (name, (start, stop), unit)
    return None


def _measured(text: str, start: int, stop: int, end: int) -> tuple[int, int, str, int]:
    """A number's place, its unit, and where that ends. `251 x 10^9/L` is 251, as in tables."""
    if (mantissa := re.match(r"[^xX\u00d7*\u00b7]*\d(?=\s?[xX\u00d7*\u00b7])", text[start:stop])) is not None:
        unit, after = _unit_at(text, start + mantissa.end(), end)
        if unit:
            return start, start + mantissa.end(), unit, after
    return start, stop, *_unit_at(text, stop, end)


def _unit_at(text: str, start: int, end: int) -> tuple[str, int]:
    """The longest unit that stands there, and where it ends; none: empty."""
    ends = [found.end() for found in re.finditer(r"\S+", text[start:end])][:3]
    for stop in reversed(ends):
        printed = text[start : start + stop].rstrip(".,;:)")
        if printed.strip() and ucum(" ".join(printed.split())) is not None:
            return " ".join(printed.split()), start + len(printed)
    return "", start


def _name_before(text: str, begin: int, value: int) -> tuple[int, int] | None:
    """Where the one known name stands, of several that lie in each other the longest; None: none, or several."""
    found: list[tuple[int, int]] = []
    every = [match.span() for match in _WORD.finditer(text, begin, value)]
    for size in range(min(MOST_WORDS, len(every)), 0, -1):
        for first, last in zip(every, every[size - 1 :], strict=False):
            place = first[0], last[1]
            inside = any(place[0] < other[1] and other[0] < place[1] for other in found)
            if not inside and _is_name(text[slice(*place)]):
                found.append(place)
    if len(found) != 1 or value - found[0][1] > ASIDE or not re.search(r"[^\W\d_]{2}|[:=]", text[found[0][1] : value]):
        return None
    return found[0]


def _is_name(text: str) -> bool:
    """Known, and no word of a sentence that happens to be one: short names are written with a capital."""
    return tokens(text) in aliases() and (len(text) > 3 or any(c.isupper() for c in text[1:] or text))


def _biomarker(page: Page, name: str, value: str, unit: str, decimal: Decimal) -> Biomarker | None:
    parsed = parse_value(" ".join(value.split()), decimal)
    nowhere = Span(page=page.number, start=0, end=0)
    return None if parsed is None else Biomarker(name=" ".join(name.split()), value=parsed, unit=unit, span=nowhere)
