"""Text out of other people's tags, made fit to store and show."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 2_000
"""Characters kept of one value; lyrics and comments are cut, artists and titles never are that long."""


def clean(text: str) -> str:
    """NFC, without control characters and lone surrogates, white space collapsed, cut at 2,000 characters."""
    text = text[: 4 * LONGEST].encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    text = unicodedata.normalize("NFC", re.sub(r"\s+", " ", text))
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs", "Cn"))
    return text.strip()[:LONGEST]


def leading_number(text: str) -> int | None:
    """`3/12` -> 3, `03` -> 3; None if it does not begin with one, or it is absurd."""
    match = re.match(r"\s*(\d{1,4})(?!\d)", text)
    return int(match.group(1)) if match and int(match.group(1)) else None


def year(text: str) -> int | None:
    """The first plausible year (1000 to 2999) in a date such as `2011-07-19` or `19.07.2011`."""
    match = re.search(r"(?<!\d)([12]\d{3})(?!\d)", text)
    return int(match.group(1)) if match else None


def tempo(text: str) -> float | None:
    """`128`, `128.00`, `127,9` -> BPM between 20 and 999; None otherwise."""
    match = re.match(r"\s*(\d{2,3}(?:[.,]\d+)?)(?!\d)", text)
    value = float(match.group(1).replace(",", ".")) if match else 0.0
    return value if 20 <= value < 1000 else None
