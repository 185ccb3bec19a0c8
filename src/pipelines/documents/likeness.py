"""Names that are nearly in the alias table: a letter lost by the recogniser, another ending, one word more.

rapidfuzz's token_sort_ratio of 80 and more, and then the words that tell analytes apart must be the very same: `T3` is
never `T4`, `direct` never `indirect`, `HbA1c` never `Hemoglobin`. WRatio is not used: it takes a part for the whole.
"""

from __future__ import annotations

import re
from functools import cache

from pipelines.documents.names import aliases, plain, rows, tokens

LIKE = 80.0
"""token_sort_ratio, of 100."""

SHORTEST = 5
"""Letters: in a shorter name one letter is all the difference."""

_TELLING = re.compile(
    r"^(?:free|total|direct\w*|indirect\w*|conjugated|unconjugated|ionized|corrected|absolute|urine|stool|ratio|index|fasting|reverse|active|"
    r"pancreatic|non|anti\w*|antibod\w*|immature|mean|saturation|receptor|binding|frei\w*|gesamt\w*|direkt\w*|indirekt\w*|libre|livre|libera?|libero|totale?s?|"
    r"directa|indirecta|diretta|indiretta|conjuguee|ionisiert\w*|ionise\w*|absolut\w*|soluble|hs|us|alpha|beta|gamma|delta|mass|intact|nitrogen|igg|igm|iga|ige)$"
)


@cache
def _choices() -> tuple[list[str], list[tuple[str, ...]]]:
    """The aliases that are long enough to be alike, as text and as the key of the table."""
    keys = [key for key in aliases() if sum(map(len, key)) >= SHORTEST]
    return [" ".join(key) for key in keys], keys


def _telling(words: tuple[str, ...]) -> frozenset[str]:
    """Words that are not allowed to differ: with a digit, of up to three letters, or of the list above."""
    return frozenset(word for word in words if len(word) <= 3 or any(c.isdigit() for c in word) or _TELLING.match(word))


@cache
def _squashed() -> dict[str, set[tuple[str, ...]]]:
    """Aliases without spaces and punctuation -> their slugs: `Harnstoff-N` may be printed, or read, as `HarnstoffN`."""
    known: dict[str, set[tuple[str, ...]]] = {}
    for row in rows("names.tsv"):
        for alias in (row[1], *row[6].split("|")):
            for glued in (squash(alias), "".join(tokens(alias))):  # in either order of the words
                known.setdefault(glued, set()).add(aliases()[tokens(alias)])
    return known


def squash(name: str) -> str:
    return re.sub(r"[\W_]", "", plain(name))


def _word_by_word(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Each word of one has a word of the other that is like it, and none is left over."""
    from rapidfuzz import fuzz

    left = list(others)
    for word in words:
        best = max(left, key=lambda other: fuzz.ratio(word, other), default="")
        if not best or fuzz.ratio(word, best) < LIKE:
            return False
        left.remove(best)
    return not left


@cache
def alike(name: str) -> tuple[str, ...]:
    """The slugs of the alias that is most like a printed name; none if it is not like enough, or others are as like."""
    from rapidfuzz import fuzz, process

    words = tokens(name)
    if sum(map(len, words)) < SHORTEST or len(name) > 120:
        return ()
    if found := _squashed().get(squash(name)):
        return next(iter(found)) if len(found) == 1 else ()
    texts, keys = _choices()
    near = process.extract(" ".join(words), texts, scorer=fuzz.token_sort_ratio, score_cutoff=LIKE, limit=20)
    fitting = [
        (score, keys[index])
        for _, score, index in near
        if _telling(words) == _telling(keys[index]) and _word_by_word(words, keys[index])
    ]
    if not fitting:
        return ()
    best = max(score for score, _ in fitting)
    slugs = {aliases()[key] for score, key in fitting if score >= best - 2}
    return next(iter(slugs)) if len(slugs) == 1 else ()
