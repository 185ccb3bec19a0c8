"""Reference ranges: `3.5 - 5.1`, `[3,5-5,1] mmol/L`, `< 5`, `bis 40`, `M: 13-17`, `negative`."""

from __future__ import annotations

import re

from pydantic import BaseModel

from pipelines.documents.names import words
from pipelines.documents.units import CALCULATED, ucum
from pipelines.documents.values import COMPARATOR, NUMBER, Decimal, comparator, in_words, number


class Range(BaseModel):
    """A reference range as printed, and its ends where they are said. `text`: a normal result in words."""

    printed: str
    low: float | None = None
    high: float | None = None
    text: str | None = None


_WHO = (
    r"(?:(?:m(?:ale|en)?|f(?:emale)?|w(?:omen)?|h(?:ommes?)?|adults?|ref(?:\.|erence)?|normal|norm|m\u00e4nner|frauen|vn|vr|n"
    r"|v\.r\.|v\.n\.)\s*[:=]\s*)?"
)
_DASH = "[-\u2010\u2011\u2012\u2013\u2014\u2212~\uff5e]"
_TO = rf"(?:\s*(?:{_DASH}|\.\.\.?|\u2026)\s*|\s+(?:{'|'.join(words('to'))})\s+)"
_BETWEEN = re.compile(rf"{_WHO}(?P<low>[-\u2212+]?{NUMBER}){_TO}(?P<high>[-\u2212+]?{NUMBER})", re.I)
_ONE_SIDED = re.compile(rf"{_WHO}(?P<comparator>{COMPARATOR})\s*(?P<number>{NUMBER})", re.I)
_TITRE = re.compile(rf"{_WHO}(?P<comparator>{COMPARATOR})?\s*1\s?:\s?\d+", re.I)
_TRAILING_SIGN = re.compile(
    rf"(?P<number>{NUMBER})\s*(?P<sign>[<>]|or less|or more|or greater|or higher|und mehr)", re.I
)


def parse_range(printed: str, decimal: Decimal = ".") -> Range | None:
    """The range that `printed` is, or None. A unit after it is left out (see `unit_of_range`)."""
    text = " ".join(printed.split())
    if not text or len(text) > 60:
        return None
    text, _ = _without_unit(text)
    text = _unbracketed(text)
    text, _ = _without_unit(text)
    if match := _BETWEEN.fullmatch(text):
        low, high = (_signed(match[side], decimal) for side in ("low", "high"))
        return Range(printed=printed, low=low, high=high) if low <= high else None
    if match := _ONE_SIDED.fullmatch(text):
        end = number(match["number"], decimal)
        below = (comparator(match["comparator"]) or "<") in ("<", "<=")
        return Range(printed=printed, high=end) if below else Range(printed=printed, low=end)
    if match := _TRAILING_SIGN.fullmatch(text):
        end = number(match["number"], decimal)
        below = match["sign"].casefold() in ("<", "or less")
        return Range(printed=printed, high=end) if below else Range(printed=printed, low=end)
    if _TITRE.fullmatch(text):
        return Range(printed=printed, text=text)
    if (word := in_words(text)) and word[0] != "+":
        return Range(printed=printed, text=word)
    return None


def _signed(printed: str, decimal: Decimal) -> float:
    bare = number(printed.lstrip("-\u2212+"), decimal)
    return -bare if printed[0] in "-\u2212" else bare


def unit_of_range(printed: str) -> str | None:
    """The unit that stands after a range, as printed: `70-99 mg/dL` -> `mg/dL`."""
    text = " ".join(printed.split())
    return _without_unit(text)[1] or _without_unit(_unbracketed(text))[1]


def _unbracketed(text: str) -> str:
    if len(text) > 2 and text[0] + text[-1] in ("()", "[]", "{}"):
        return text[1:-1].strip()
    return text


def _without_unit(text: str) -> tuple[str, str | None]:
    text = CALCULATED.sub("", text)
    words = text.split(" ")
    for count in (1, 2, 3):
        if len(words) > count and any(c.isdigit() for c in words[-count - 1]):
            tail = " ".join(words[-count:])
            if ucum(tail) is not None and not tail[0].isdigit():
                return " ".join(words[:-count]), tail
    return text, None
