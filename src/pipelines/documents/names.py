"""What a printed name means: the project's own table of analytes (`names.tsv`) and of specimens (`specimens.tsv`).

A name is known by its words, whatever their order, case, accents and punctuation: `Cholesterol, HDL` is `HDL
cholesterol`. Nothing here guesses; likeness is the grouper's.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib import resources

_IN_LATIN = {
    "\u03b1": " alpha ", "\u03b2": " beta ", "\u03b3": " gamma ", "\u03b4": " delta ", "\u00e6": "ae", "\u0153": "oe",
    "\u00df": "ss", "\u00f8": "o", "\u0142": "l", "\u0131": "i",
}  # fmt: skip
"""Greek letters by name; letters that are no letter with an accent."""

_LOOKALIKE = str.maketrans(
    "\u0410\u0412\u0421\u0415\u041d\u041a\u041c\u041e\u0420\u0422\u0425\u0430\u0441\u0435\u043e\u0440\u0445",
    "ABCEHKMOPTXaceopx",
)
"""Cyrillic letters that look Latin, for names that mix both: a vitamin's B, the T of T4."""


@dataclass(frozen=True)
class Analyte:
    """What is measured. `mass`: a chemical formula with charge, or g/mol; empty where none is meant."""

    slug: str
    name: str
    specimen: str
    conventional: str
    si: str
    mass: str


def rows(table: str) -> list[list[str]]:
    """A data file of this room: its lines divided by tabs, without comments."""
    text = resources.files("pipelines.documents").joinpath(table).read_text("utf-8")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]


@cache
def words(kind: str) -> tuple[str, ...]:
    """The words of one kind in `words.tsv`; KeyError if it has no such kind."""
    return tuple({row[0]: row[1] for row in rows("words.tsv")}[kind].split("|"))


def plain(text: str) -> str:
    """Lower case, without accents; Greek letters in words. A sharp s before a hyphen is a beta: `\u00df-HCG`."""
    text = text.replace("\u00df-", " beta ").casefold()
    for letter, word in _IN_LATIN.items():
        text = text.replace(letter, word)
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def tokens(name: str) -> tuple[str, ...]:
    """The words of a name in order of the alphabet; `#`, `%` and `/` count as words, `+` and `-` of an ion do not."""
    return tuple(sorted(re.findall(r"\w+|[%#/]", plain(name).translate(_LOOKALIKE).replace("_", " "))))


@cache
def analytes() -> dict[str, Analyte]:
    """By slug."""
    return {row[0]: Analyte(row[0], row[1], row[2], row[3], row[4], row[5].strip("-")) for row in rows("names.tsv")}


@cache
def aliases() -> dict[tuple[str, ...], tuple[str, ...]]:
    """Words of a name -> the slugs that are called so: more than one where unit or specimen must tell them apart."""
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    for slug, name, *_, printed in rows("names.tsv"):
        for alias in (name, *printed.split("|")):
            key = tokens(alias)
            if key and slug not in known.get(key, ()):
                known[key] = (*known.get(key, ()), slug)
    return known


@cache
def _specimens() -> dict[tuple[str, ...], str]:
    return {tokens(word): row[0] for row in rows("specimens.tsv") for word in (row[0], *row[1].split("|"))}


@cache
def specimen_named(text: str) -> str | None:
    """`urine` of `Urin`, `24h-Urin`; None if it names no specimen. Single letters count only where asked for alone."""
    return _specimens().get(tokens(text))


@cache
def specimen_within(text: str) -> str | None:
    """The specimen that a heading or a longer text speaks of: `Klinische Chemie (Serum)`."""
    if found := specimen_named(text):
        return found if len(text.strip()) > 2 else None
    words = re.findall(r"[\w-]+", text)
    for length in (3, 2, 1):
        for start in range(len(words) - length + 1):
            candidate = " ".join(words[start : start + length])
            if len(candidate) > 2 and (found := specimen_named(candidate)):
                return found
    return None


@cache
def specimen_in_name(name: str) -> str:
    """`urine` of `Amylase im Urin` and `U-Amylase`, `csf` of `Glucose CSF`; empty where the name says no specimen but
    blood: that is the usual one, and `Occult blood` is what is looked for."""
    if re.match(r"d?U-(?=\w)", name):
        return "urine"
    words = re.findall(r"\w+", name)
    parts = [" ".join(words[at : at + size]) for size in (1, 2, 3) for at in range(len(words) - size + 1)]
    said = (specimen_named(part) for part in parts if len(part) > 2)
    return next((found for found in said if found in ("urine", "stool", "csf", "saliva")), "")


def _variants(name: str) -> list[str]:
    """The name as printed, then without what laboratories add: method, specimen, notes, what stands in brackets."""
    found = [name]
    bracketed = re.findall(r"[(\[]([^()\[\]]*)[)\]]", name)
    outer = re.sub(r"\s*[(\[][^()\[\]]*[)\]]\s*", " ", name).strip(" ,;:-")
    if outer and outer != name:
        if all(_is_remark(part) for part in bracketed):
            found.append(outer)
        elif len(bracketed) == 1 and not _is_remark(bracketed[0]):
            first, second = aliases().get(tokens(outer), ()), aliases().get(tokens(bracketed[0]), ())
            if set(first) & set(second):
                found.append(bracketed[0] if len(second) < len(first) else outer)
    for candidate in list(found):
        head, comma, tail = candidate.rpartition(",")
        if comma and _is_remark(tail):
            found.append(head)
        first_word, _, rest = candidate.partition(" ")
        prefix = re.match(r"([SPBUsu])-(?=\w)|(?:S|P|B|U|fS|fP|Serum|Plasma|Urine?)[.\s-]+(?=\w)", candidate)
        if prefix:
            found.append(candidate[prefix.end() :])
        words = candidate.split()
        if len(words) > 1 and _is_remark(words[-1]):
            found.append(" ".join(words[:-1]))
        if len(words) > 2 and _is_remark(" ".join(words[-2:])):
            found.append(" ".join(words[:-2]))
        if rest and first_word.casefold() in ("serum", "plasma", "s-", "p-"):
            found.append(rest)
    return found


@cache
def _remarks() -> frozenset[tuple[str, ...]]:
    return frozenset(tokens(word) for word in words("remark"))


def _is_remark(text: str) -> bool:
    return tokens(text) in _remarks() or specimen_named(text) is not None


@cache
def known(name: str) -> tuple[str, ...]:
    """The slugs that a printed name may stand for, by the alias table alone; empty if it is not there."""
    for variant in _variants(" ".join(name.split())[:120]):
        if found := aliases().get(tokens(variant)):
            return found
    return ()
