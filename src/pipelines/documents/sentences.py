"""Results in sentences: `Your ferritin was 12 ng/mL (reference 15-150)`.

A sentence is read from its end: a reference range that stands in brackets or is called one; before it a number with its
unit; before that, with words between, the one name of the sentence that the alias table knows, measured in such a unit.
What lacks one of these (`Ferritin below 15 ng/mL means a deficiency`) is left alone, and so is text in columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from pipelines.documents.dates import Taken
from pipelines.documents.facts import Biomarker, Span
from pipelines.documents.grouper import analyte_of
from pipelines.documents.names import aliases, known, rows, specimen_named, specimen_within, tokens, words
from pipelines.documents.page import Page
from pipelines.documents.ranges import Range, parse_range
from pipelines.documents.units import ucum
from pipelines.documents.values import COMPARATOR, NUMBER, Decimal, parse_value

BEFORE = 200
"""Characters before a range in which its value and its name stand."""

ASIDE = 60
"""Characters between a name and its value, a unit and its range, and that a range may take."""

UNITLESS = ("{ratio}", "[pH]")

MOST_WORDS = 7
"""Of a name."""

_COLUMNS = re.compile(r"[ \t]{2}")
_BRACKET = re.compile(r"[(\[]([^()\[\]]{3,90})[)\]]")
_NUMBER = re.compile(rf"(?<![\w.,:/^*+-])(?:{COMPARATOR}\s?)?(?:1\s?:\s?\d+|{NUMBER})(?![\w^]|[.,:/*]\d)", re.I)
_FLAG = re.compile(r"\s?(?:\*{1,2}|[\u2191\u2193]{1,2}|\((?:[HL]{1,2}|[hl*+-])\)|[HL]{1,2}(?=\s))")
_BOUND = re.compile(rf"(?:{COMPARATOR}\s?)?\d", re.I)
_END = re.compile(r"[.!?](?=\s+[^\Wa-z\d_])|[;\u2022]|\n\s*\n")
_WORD = re.compile(r"[(\[]?\w[\w./+-]*(?<!\.)[)\]]?")


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


class _Number(NamedTuple):
    """A number with what stands behind it; places in the text. `after`: the end of its unit."""

    start: int
    end: int
    flag: str
    unit: str
    after: int


def sentences(page: Page, decimal: Decimal, taken: Taken) -> list[Biomarker]:
    """The results that the page's sentences tell, in order. `taken`: the days of the document's specimens."""
    text = page.text
    found: list[Biomarker] = []
    done = 0
    for start, end, reference in sorted(_references(text, decimal), key=lambda one: one[:2]):
        begin = max(done, start - BEFORE)
        for last in _END.finditer(text, begin, start):
            begin = last.end()
        if start < done or (read := _result(text, begin, start)) is None:
            continue
        (name, name_end), number = read
        value = parse_value(" ".join(text[number.start : number.end].split()), decimal)
        if value is None or _COLUMNS.search(text, name, end) or _general().search(text, begin, number.start):
            continue
        marker = Biomarker(
            name=" ".join(text[name:name_end].split()), value=value, unit=number.unit, reference=reference,
            flag=number.flag, specimen=specimen_within(text[begin : number.start]) or "",
            date=taken.on(page.number, text.count("\n", 0, name)),
            span=Span(page=page.number, start=name, end=end),
        )  # fmt: skip
        analyte, _ = analyte_of(marker)
        if analyte is not None and (number.unit or value.kind == "titre" or analyte.conventional in UNITLESS):
            found.append(marker)
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


def _result(text: str, begin: int, end: int) -> tuple[tuple[int, int], _Number] | None:
    """The place of the name, and the number, of what stands between a sentence's begin and its range."""
    numbers = [_number(text, *match.span(), end) for match in _NUMBER.finditer(text, begin, end)]
    for at in range(len(numbers) - 1, -1, -1):
        number = numbers[at]
        if re.search(r"\d", text[number.after : end]) or end - number.after > ASIDE:
            continue
        if _COLUMNS.search(text, number.start, end) or _names(text, number.after, end):
            return None
        others = [before.after for before in numbers[:at] if before.unit]  # results without a range of their own
        name = _name_before(text, max([begin, *others]), number.start)
        return None if name is None else (name, number)
    return None


def _number(text: str, start: int, stop: int, end: int) -> _Number:
    """With its unit, before or behind which a flag may stand. `251 x 10^9/L` is 251, as in tables."""
    mantissa = re.match(r"[^xX\u00d7*\u00b7]*\d(?=\s?[xX\u00d7*\u00b7])", text[start:stop])
    for value in ([start + mantissa.end()] if mantissa else []) + [stop]:
        flag = _FLAG.match(text, value, end)
        for behind in ([flag.end()] if flag else []) + [value]:
            unit, after = _unit_at(text, behind, end)
            if unit:
                flag = flag if flag and behind > value else _FLAG.match(text, after, end)
                return _Number(start, value, flag[0].strip(" ()") if flag else "", unit, after)
    return _Number(start, stop, "", "", stop)


def _unit_at(text: str, start: int, end: int) -> tuple[str, int]:
    """The longest unit that stands there, and where it ends; none: empty."""
    ends = [found.end() for found in re.finditer(r"\S+", text[start:end])][:3]
    for stop in reversed(ends):
        printed = text[start : start + stop].rstrip(".,;:)")
        if printed.strip() and ucum(" ".join(printed.split())) is not None:
            return " ".join(printed.split()), start + len(printed)
    return "", start


def _name_before(text: str, begin: int, value: int) -> tuple[int, int] | None:
    """Where the one known name stands; None: there is none, or several."""
    found = _names(text, begin, value)
    if len(found) != 1 or value - found[0][1] > ASIDE or not re.search(r"[^\W\d_]{2}|[:=]", text[found[0][1] : value]):
        return None
    return found[0]


def _names(text: str, begin: int, end: int) -> list[tuple[int, int]]:
    """Where known names stand, of those that lie in each other the longest. What it was measured in is none of its
    name: `serum ferritin`, `ferritin in serum`."""
    found: list[tuple[int, int]] = []
    every = [match.span() for match in _WORD.finditer(text, begin, end)]
    of_names = [_is_of_a_name(text[slice(*word)]) for word in every]
    for size in range(min(MOST_WORDS, len(every)), 0, -1):
        for at in range(len(every) - size + 1):
            some = every[at : at + size]
            place = some[0][0], some[-1][1]
            inside = any(place[0] < other[1] and other[0] < place[1] for other in found)
            if inside or not all(of_names[at : at + size]) or not _is_name(text[slice(*place)]):
                continue
            found.append(_bare(text, some))
    return found


def _bare(text: str, some: list[tuple[int, int]]) -> tuple[int, int]:
    """A name's place without what was measured: before it, or behind it with a preposition."""
    bare = []
    if len(some) > 1 and specimen_named(text[slice(*some[0])]):
        bare.append((some[1][0], some[-1][1]))
    if len(some) > 2 and specimen_named(text[slice(*some[-1])]):
        bare.append((some[0][0], some[-3][1]))
    whole = some[0][0], some[-1][1]
    return next((place for place in bare if _is_name(text[slice(*place)])), whole)


@cache
def _words_of_names() -> frozenset[str]:
    remarks = [word for remark in words("remark") for word in tokens(remark)]
    return frozenset([word for name in aliases() for word in name] + remarks)


def _is_of_a_name(word: str) -> bool:
    return all(part in _words_of_names() for part in tokens(word))


def _is_name(text: str) -> bool:
    """Known, with its brackets closed, and no word of a sentence that happens to be one: short ones have a capital."""
    if [text.count(sign) for sign in "(["] != [text.count(sign) for sign in ")]"] or text[0] in "([":
        return False
    return bool(known(text)) and (len(text) > 3 or any(c.isupper() for c in text[1:] or text))
