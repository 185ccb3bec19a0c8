"""Names that are none: `stopwords.tsv`."""

from __future__ import annotations

import re
from functools import cache

from pipelines.documents.names import plain, rows

LONGEST_NAME = 90
MOST_WORDS = 10


@cache
def _stopped() -> tuple[frozenset[str], tuple[str, ...]]:
    table = {
        kind: [" ".join(plain(word).split()) for word in words.split("|")] for kind, words in rows("stopwords.tsv")
    }
    return frozenset(table["is"]), tuple(table["starts"])


def is_no_name(name: str) -> bool:
    """True for what is printed before a number and names no analyte: `Page`, `Desirable`, a sentence."""
    text = " ".join(plain(name).strip(" .:*-()[]").split())
    exact, starts = _stopped()
    if re.fullmatch(r"\([^()]*\)", name.strip()):  # a method, under the name whose second unit this line has
        return True
    if not re.search(r"[^\W\d_]", text) or text in exact:
        return True
    if re.search(r"[<>≤≥=]\s*\d|\d\s*(?:mg|g|ng|mmol|u|iu|ie|ui)/", text):
        return True
    if len(text) > LONGEST_NAME or len(text.split()) > MOST_WORDS:
        return True
    return any(
        text.startswith(word)
        and not text[len(word) : len(word) + 1].isalnum()
        and text[len(word) : len(word) + 1] != "-"
        for word in starts
    )
