"""Printed values: `5.4`, `<0.5`, `1,2`, `1.2e3`, `0-2`, `1:80`, `Negative`, each kept beside what it means.

Whether a comma is the decimal sign is decided once for a document (`decimal_sign`), because `1,234` alone does not say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

from pydantic import BaseModel

from pipelines.documents.names import rows, words

Decimal = Literal[".", ","]
Comparator = Literal["<", "<=", ">", ">=", "~"]
Kind = Literal["number", "interval", "titre", "text"]


class Value(BaseModel):
    """A result as printed and as understood.

    `number`: of a number; the lower end of an interval; n of a titre 1:n. `high`: the upper end of an interval.
    `text`: the English word for a result in words (`negative`, `not detected`, `trace`); None for numbers.
    """

    printed: str
    kind: Kind
    number: float | None = None
    high: float | None = None
    comparator: Comparator | None = None
    text: str | None = None


_DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2212"
_SPACES = " \u00a0\u2009\u202f"
_MINUS = f"[{_DASHES}]"
_PLAIN = (
    rf"(?:\d{{1,3}}(?:[{_SPACES}'\u2019]\d{{3}})+(?:[.,]\d+)?|\d{{1,3}}(?:,\d{{3}})+\.\d+|\d{{1,3}}(?:\.\d{{3}})+,\d+"
    r"|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?|\d{1,3}(?:(?:,\d{3}){2,}|(?:\.\d{3}){2,})|\d+[.,]\d+|\d+|[.,]\d+)"
)
_EXPONENT = (
    r"(?:[eE][+-]?\d{1,2}|\s?[x\u00d7*\u00b7]\s?10(?:\^|\*\*|\*|[eE])?"
    r"(?:\+?-?\d{1,2}|[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+))"
)
NUMBER = rf"{_PLAIN}(?:{_EXPONENT})?"
"""Pattern of one number without a sign."""

_COMPARATORS: dict[str, Comparator] = {
    "<": "<", "\u2039": "<", "<=": "<=", "=<": "<=", "\u2264": "<=", "\u2a7d": "<=",
    ">": ">", "\u203a": ">", ">=": ">=", "=>": ">=", "\u2265": ">=", "\u2a7e": ">=",
    "~": "~", "\u2248": "~", "ca.": "~",
}  # fmt: skip
_KINDS: tuple[tuple[str, Comparator], ...] = (("below", "<"), ("above", ">"), ("at most", "<="), ("at least", ">="))
_IN_WORDS = {word: sign for kind, sign in _KINDS for word in words(kind)}
_WORDS = "|".join(re.escape(word) for word in sorted(_IN_WORDS, key=len, reverse=True))
COMPARATOR = (
    r"(?:[<>]\s?(?:or|ou|o|oder|of)\s?=|<=|=<|>=|=>|[<>\u2039\u203a\u2264\u2265\u2a7d\u2a7e~\u2248]|ca\."
    rf"|\b(?:{_WORDS})(?![^\W\d_]))"
)
"""Pattern of what may stand before a number: a sign of comparison, or words for it in several languages."""

_NUMBER = re.compile(
    rf"(?P<comparator>{COMPARATOR})?\s*(?P<sign>{_MINUS}(?=[\d.,])|\+(?=\d))?(?P<number>{NUMBER})", re.I
)
_INTERVAL = re.compile(rf"(?P<low>{NUMBER})\s*(?:{_MINUS}|\.\.\.?|\u2026)\s*(?P<high>{NUMBER})")
_TITRE = re.compile(rf"(?P<comparator>{COMPARATOR})?\s*1\s?[:/]\s?(?P<number>\d[\d.,]*)", re.I)
_SUPERSCRIPTS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "0123456789")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")
_TWO_WAYS = re.compile(rf"(?<![\d.,]){_GROUPED.pattern}(?![\d.,])")
_LONGEST = 40


def comparator(printed: str) -> Comparator | None:
    """`<` of `<`, `less than`, `kleiner als` ...; None where nothing is compared."""
    printed = re.sub(r"\s?(?:or|ou|oder|of|o)\s?(?==)", "", " ".join(printed.split()).casefold())
    return _COMPARATORS.get(printed) or _IN_WORDS.get(printed)


def number(printed: str, decimal: Decimal = ".") -> float:
    """The number that `NUMBER` matched. A sign that cannot part thousands is a decimal sign, whatever the document's.

    Raises ValueError where `printed` is no number.
    """
    match = re.fullmatch(rf"(?P<plain>{_PLAIN})(?P<exponent>{_EXPONENT})?", printed.strip())
    if match is None:
        raise ValueError(f"{printed!r} is not a number")
    plain = re.sub(rf"[{_SPACES}'\u2019]", "", match["plain"])
    points, commas = plain.count("."), plain.count(",")
    if points and commas:
        thousands = "," if plain.rindex(".") > plain.rindex(",") else "."
        plain = plain.replace(thousands, "")
    elif points > 1 or commas > 1 or (_GROUPED.fullmatch(plain) and decimal not in plain):
        plain = plain.replace(".", "").replace(",", "")
    power = 0
    if exponent := match["exponent"]:
        exponent = exponent.translate(_SUPERSCRIPTS)
        power = int(re.sub(r"^[eE]|^\s?[x\u00d7*\u00b7]\s?10(?:\^|\*\*|\*|[eE])?", "", exponent))
    return float(f"{plain.replace(',', '.')}e{power}")


def parse_value(printed: str, decimal: Decimal = ".") -> Value | None:
    """What a result says, or None where it is none. Never raises."""
    text = " ".join(printed.split())
    if not text or len(text) > _LONGEST:
        return None
    if match := _NUMBER.fullmatch(text):
        signed = -1 if match["sign"] and match["sign"] != "+" else 1
        sign = comparator(match["comparator"] or "")
        return Value(printed=printed, kind="number", number=signed * number(match["number"], decimal), comparator=sign)
    if match := _TITRE.fullmatch(text):
        titre = re.sub(r"[.,]", "", match["number"])
        sign = comparator(match["comparator"] or "")
        return Value(printed=printed, kind="titre", number=float(titre), comparator=sign)
    if match := _INTERVAL.fullmatch(text):
        low, high = number(match["low"], decimal), number(match["high"], decimal)
        if low <= high:
            return Value(printed=printed, kind="interval", number=low, high=high)
    if word := in_words(text):
        return Value(printed=printed, kind="text", text=word)
    return None


def in_words(printed: str) -> str | None:
    """The English word for a qualitative result: `negativ`, `négatif`, `NEG` -> `negative`; None if it is none."""
    key = re.sub(r"[\s\-]+", " ", printed.strip(" .()[]*")).casefold()
    if found := _words().get(key):
        return found
    if re.fullmatch(r"(?:\+{1,4}|[1-4]\s?\+|\+[1-4]|\+/-|\(\+\)|\u00b1)", printed.strip()):
        return printed.strip().replace(" ", "")
    return None


@cache
def _words() -> dict[str, str]:
    """`results.tsv`: the English word, then how it is printed elsewhere."""
    known: dict[str, str] = {}
    for english, printed in rows("results.tsv"):
        for word in (english, *printed.split("|")):
            known[re.sub(r"[\s\-]+", " ", word).casefold()] = english
    return known


_TOKENS = re.compile(r"(?<![\d.,/:\-\w])\d+([.,])(\d+)(?![\d.,/:\w]|-\d+-)")


def decimal_sign(texts: Iterable[str]) -> Decimal:
    """The decimal sign of a document, from all its numbers: most of those that can be read in one way only.

    `0,123` and `1,2` can only be decimals, `1,234` may be either and does not count. A tie is a point.
    """
    commas = points = 0
    for text in texts:
        for match in _TOKENS.finditer(text):
            if _GROUPED.fullmatch(match[0]):
                continue
            commas += match[1] == ","
            points += match[1] == "."
    return "," if commas > points else "."


def decimal_beside(printed: str, beside: Iterable[str], usual: Decimal) -> Decimal:
    """The decimal sign for one text: the document's (`usual`), unless its number would part thousands by a sign that
    what stands beside it, its own range or value, has as a decimal sign: `1.234` beside `0.4-4.0`."""
    grouped = next((match[0] for match in _TWO_WAYS.finditer(printed) if usual not in match[0]), "")
    if not grouped:
        return usual
    other: Decimal = "." if usual == "," else ","
    signs = {
        match[1] for text in (printed, *beside) for match in _TOKENS.finditer(text) if not _GROUPED.fullmatch(match[0])
    }
    return other if signs == {other} else usual
