"""Whether a page prints what a model says of it: whole values, whole names, and what belongs to them in their own row.

That a text is somewhere on a page is little: `0.5` is part of `<0.5`, `80` of `1:80`, `detected` of `not detected`, and
another row has another unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelines.documents.names import known
from pipelines.documents.pieces import is_flag
from pipelines.documents.units import ucum
from pipelines.documents.values import COMPARATOR, in_words

Place = tuple[int, int]

APART = 200
"""Characters that may stand between a name and its value."""

LONGEST = 300
"""Characters of what is looked for."""

_DASH = "[-\u2010-\u2015\u2212]"
_GOES_ON_BEFORE = re.compile(
    rf"(?:{COMPARATOR}\s?|\d\s?(?:[:/^]|{_DASH})\s?|\.\.|{_DASH}|[^\W\d_]\+|\d[ '\u2019\u00a0\u2009\u202f])$", re.I
)
_GOES_ON_BEHIND = re.compile(
    rf"\s?(?:[x\u00d7*\u00b7]\s?10|[:/]\s?\d|{_DASH}\s?\d|\.\.)|e[+-]?\d|['\u2019\u00a0\u2009\u202f ]\d{{3}}(?![\d-])",
    re.I,
)
_NOT = re.compile(r"\b(?:not?|non|nicht|kein\w*|pas|sin|n\u00e3o|niet|geen|nie|ej|inte|\u043d\u0435)[\s-]+$", re.I)


def places(text: str, wanted: str, within: Place) -> Iterator[Place]:
    """Where `wanted` is printed, whatever the spaces between its words, and not as part of a longer word or number."""
    parts = wanted.split()
    if not parts or len(wanted) > LONGEST or text.find(parts[0], *within) < 0:
        return
    body = r"\s+".join(re.escape(part) for part in parts)
    for match in re.compile(rf"(?<![\w.,])(?<!\w-)(?:{body})(?!\w|[.,]\d|-\w)").finditer(text, *within):
        yield match.span()


def place_of(text: str, wanted: str, within: Place) -> Place | None:
    return next(places(text, wanted, within), None)


def named(text: str, name: str, within: Place) -> Iterator[Place]:
    """Where a name is printed, and not as a part of another's: no `T4` of `Free T4`."""
    for start, end in places(text, name, within):
        before = re.search(r"(\S+)[ ]$", text[max(0, start - 40) : start])
        behind = re.match(r"[ ,]{1,2}([^\W\d]\S*)", text[end : end + 40])
        longer = [f"{before[1]} {name}"] if before else []
        longer += [f"{name} {behind[1]}"] if behind else []
        if all(not (others := known(one)) or others == known(name) for one in longer):
            yield start, end


def valued(text: str, value: str, name: Place, until: int) -> Iterator[Place]:
    """Where a whole value of that name is printed: behind it on its line, or the first number on a line below."""
    until = min(until, name[1] + APART)
    for start, end in places(text, value, (name[1], until)):
        between = text[name[1] : start]
        if not between.strip() and known(text[name[0] : end]) not in ((), known(text[slice(*name)])):
            continue  # the 125 of CA 125
        if ("\n" not in between or not re.search(r"\d", between)) and _is_whole(text, (start, end), name[1]):
            yield start, end


def _is_whole(text: str, place: Place, begin: int) -> bool:
    before, behind = text[max(begin, place[0] - 40) : place[0]], text[place[1] : place[1] + 40]
    before, behind = before.rpartition("\n")[2], behind.partition("\n")[0]
    if re.search(r"\d", text[slice(*place)]):
        return not _GOES_ON_BEFORE.search(before) and not _GOES_ON_BEHIND.match(behind)
    last = before.split()[-1:]
    return not _NOT.search(before) and not (last and in_words(f"{last[0]} {text[slice(*place)]}"))


def row_of(text: str, name: Place, value: Place, until: int) -> Place:
    """The lines from a name to its value."""
    end = text.find("\n", value[1], until)
    return name[0], until if end < 0 else end


def unit_of(text: str, unit: str, row: Place, value: Place) -> str:
    """`unit`, where it is the row's: between name and value, or the first behind it; else nothing."""
    if place_of(text, unit, (row[0], value[0])):
        return unit
    for place in places(text, unit, (value[1], row[1])):
        if not any(ucum(word) for word in text[value[1] : place[0]].split()):
            return unit
    return unit if _begins(text, row[1], unit) else ""


def reference_of(text: str, reference: str, row: Place, value: Place) -> str:
    """`reference`, where it stands behind the value in its row, or begins the next line; else nothing."""
    return reference if place_of(text, reference, (value[1], row[1])) or _begins(text, row[1], reference) else ""


def flag_of(text: str, flag: str, row: Place, value: Place) -> str:
    """`flag`, where it is one and stands beside the value (`245H` too); else nothing."""
    if not is_flag(flag) or len(flag) > LONGEST:
        return ""
    body = re.escape(flag)
    found = re.compile(rf"(?<![^\W\d_]){body}(?![^\W_])" if flag[0].isalpha() else body)
    return flag if found.search(text, value[1], row[1]) or found.search(text, row[0], value[0]) else ""


def _begins(text: str, end: int, wanted: str) -> bool:
    """Whether the line behind `end` begins with it."""
    begin = end + 1
    while begin < len(text) and text[begin] in " ([\t":
        begin += 1
    place = place_of(text, wanted, (begin, min(len(text), begin + len(wanted) + 20))) if wanted else None
    return place is not None and place[0] == begin
