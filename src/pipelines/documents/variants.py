"""Genetic variants: HGVS names, rsIDs, genotypes and zygosity, line by line.

HGVS nomenclature: https://hgvs-nomenclature.org. Gene symbols follow HGNC's form (upper-case letters and digits).
"""

from __future__ import annotations

import re
from typing import Literal

from pipelines.documents.facts import Span, Variant
from pipelines.documents.names import plain, words
from pipelines.documents.page import Page
from pipelines.documents.pieces import lines_with_offsets

Zygosity = Literal["", "heterozygous", "homozygous", "hemizygous", "compound heterozygous", "wild type"]

_POSITION = r"[-*]?\d+(?:[+-]\d+)?"
_CHANGE = r"(?:[ACGT]>[ACGT]|del[ACGT]*(?:ins[ACGT]+)?|dup[ACGT]*|ins[ACGT]+|inv|=)"
_CODING = re.compile(rf"(?<![\w.])(?P<coding>[cgmn]\.(?:\(?{_POSITION}(?:_{_POSITION})?\)?{_CHANGE}))")
_AMINO = r"(?:[A-Z][a-z]{2}|[A-Z*])"
_PROTEIN = re.compile(
    rf"(?<![\w.])(?P<protein>p\.\(?(?:{_AMINO}\d+(?:_{_AMINO}\d+)?(?:fs(?:\*|Ter|X)?\d*|{_AMINO}fs(?:\*|Ter|X)?\d*|del(?:ins[A-Za-z]+)?|dup|ins[A-Za-z]+|=|\*|Ter|X|{_AMINO})|0\??|\?|=)\)?)"
)
_RSID = re.compile(r"(?<![\w])(?P<rsid>rs\d{2,12})(?!\w)", re.I)
_TRANSCRIPT = re.compile(r"(?<!\w)(?P<transcript>(?:NM|NR|NG|NC|NP|LRG|ENST)_?\d+(?:\.\d+)?(?:t\d+)?)(?!\w)")
_GENE = re.compile(r"(?<![\w.\-])(?P<gene>[A-Z][A-Z0-9]{1,7}(?:-[A-Z0-9]{1,4})?|C\d+orf\d+)(?![\w.\-])")
_GENOTYPE = re.compile(
    r"(?<![\w/])(?P<genotype>[ACGT]{1,3}\s?[/|;]\s?[ACGT]{1,3}|(?<=\s)[ACGT]{2}|[ACGTDI]\s?/\s?[ACGTDI]|\*\d+[A-Z]?\s?/\s?\*\d+[A-Z]?)(?![\w/])"
)
_ZYGOSITY: tuple[tuple[Zygosity, str], ...] = (
    ("compound heterozygous", r"compound het\w*|compound-het\w*|het\w* compos\w*|eterozigote compost\w*"),
    ("hemizygous", r"h[ae]?emizyg\w*|hemicig\w*|emizigo\w*|hemi"),
    ("heterozygous", r"heterozyg\w*|heterocig\w*|eterozigo\w*|heterozig\w*|het|гетерозиг\w*|h\u00e9t\u00e9rozyg\w*"),
    ("homozygous", r"homozyg\w*|homocig\w*|omozigo\w*|homozig\w*|hom|гомозиг\w*"),
    ("wild type", r"wild[- ]?type|wildtyp\w*|type sauvage|tipo salvaje|tipo selvatico|not mutated|no mutation|wt"),
)
_CONTEXT = 90
"""Characters around a variant in which its gene, genotype and zygosity are looked for, on its own line."""


def variants(page: Page) -> list[Variant]:
    """The variants of a page, one for each place where one is named; c. and p. of one line are one."""
    found = []
    gene_above = ""
    for line, offset in lines_with_offsets(page):
        text = line.text
        marks = _groups(text)
        if not marks:
            only = _GENE.fullmatch(re.sub(r"^(?:gene|gen)\s*:\s*", "", text.strip(), flags=re.I))
            gene_above = (
                only["gene"] if only and only["gene"] not in words("no gene") else (gene_above if text.strip() else "")
            )
            continue
        for index, (start, end) in enumerate(marks):
            left = marks[index - 1][1] if index else max(0, start - _CONTEXT)
            right = marks[index + 1][0] if index + 1 < len(marks) else min(len(text), end + _CONTEXT)
            found.append(_variant(text, (left, start, end, right), gene_above, page.number, offset))
    return found


def _groups(text: str) -> list[tuple[int, int]]:
    """Where variants are named: c., p. and rs of the same one stand within a few words of each other."""
    marks: list[tuple[str, int, int]] = sorted(
        (
            (kind, match.start(), match.end())
            for kind, pattern in (("c", _CODING), ("p", _PROTEIN), ("r", _RSID))
            for match in pattern.finditer(text)
        ),
        key=lambda mark: mark[1],
    )
    groups: list[tuple[set[str], int, int]] = []
    for kind, start, end in marks:
        if (
            groups
            and kind not in groups[-1][0]
            and start - groups[-1][2] <= _CONTEXT // 2
            and not re.search(r"[;\n]", text[groups[-1][2] : start])
        ):
            kinds, first, _ = groups[-1]
            groups[-1] = ({*kinds, kind}, first, end)
        else:
            groups.append(({kind}, start, end))
    return [(start, end) for _, start, end in groups]


def _variant(text: str, at: tuple[int, int, int, int], gene_above: str, page: int, offset: int) -> Variant:
    left, start, end, right = at
    named, before, after = text[start:end], text[left:start], text[end:right]
    coding, protein, rsid = _CODING.search(named), _PROTEIN.search(named), _RSID.search(named)
    transcript = _TRANSCRIPT.search(before) or _TRANSCRIPT.search(named)
    genes = [
        match["gene"] for match in _GENE.finditer(_TRANSCRIPT.sub(" ", before)) if match["gene"] not in words("no gene")
    ]
    genes += [
        match["gene"]
        for match in _GENE.finditer(named + " " + after.strip().split("  ")[0])
        if match["gene"] not in words("no gene") and rsid is not None and coding is None
    ]
    genotype = _GENOTYPE.search(after) if coding is None or rsid is not None else None
    return Variant(
        gene=(genes[-1] if before and genes else genes[0] if genes else gene_above),
        transcript=transcript["transcript"] if transcript else "",
        coding=coding["coding"] if coding else "",
        protein=_balanced(protein["protein"]) if protein else "",
        rsid=rsid["rsid"].lower() if rsid else "",
        genotype="".join(genotype["genotype"].split()) if genotype else "",
        zygosity=zygosity(after) or zygosity(before),
        span=Span(page=page, start=offset + start, end=offset + end),
    )


def _balanced(protein: str) -> str:
    """Without the bracket that the sentence closes, not the name."""
    return protein if protein.count("(") == protein.count(")") else protein.replace("(", "").replace(")", "")


def zygosity(text: str) -> Zygosity:
    """The first zygosity that a text names, in English."""
    said = [
        (match.start(), name)
        for name, pattern in _ZYGOSITY
        if (match := re.search(rf"(?<![^\W_])(?:{pattern})(?![^\W_])", plain(text)))
    ]
    compound = [name for _, name in said if name == "compound heterozygous"]
    return compound[0] if compound else min(said, default=(0, ""))[1]
