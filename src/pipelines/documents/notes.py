"""Diagnoses and procedures: what stands under their headings, or beside a code.

A line under `Diagnoses:` is one, until the next heading, a gap, or a line that goes on with a word in lower case. An
ICD-10 code with its text is one wherever it stands; a CPT code only under a heading: five digits are many things.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from pipelines.documents.dates import Order, parse_date
from pipelines.documents.facts import Diagnosis, Procedure, Span
from pipelines.documents.headings import heads
from pipelines.documents.names import plain, rows, words
from pipelines.documents.page import Line, Page
from pipelines.documents.pieces import lines_with_offsets

ICD_10 = r"(?-i:[A-TV-Z][0-9][0-9AB](?:\.[0-9A-Z]{1,4})?)"
"""A code of ICD-10, of any country's edition: https://icd.who.int/browse10."""

_MARK = r"(?:[-*\u2022\u00b7\u25aa\u2013]|\d{1,2}[.)])"
_CODED = re.compile(
    rf"^(?:{_MARK}\s*)?(?P<before>{ICD_10})\s*[-:\u2013,]?\s+(?P<after>\S.*)$"
    rf"|^(?P<text>.*\S)\s+[(\[]?(?:ICD-?10(?:-[A-Z]{{2}})?[:\s]*)?(?P<code>{ICD_10})[)\]]?$"
)
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u00b7\u25aa\u25cf\u2013]|\d{1,2}[.)]|[a-z]\))\s*")
_PROCEDURE_CODE = re.compile(
    r"[(\[]?\b(?:(?:CPT|HCPCS|OPS|CCAM|ICD-10-PCS)[:\s]*)?(?P<code>\d{5}|\d-\d{2,3}(?:\.[0-9a-z]{1,2})?|[A-Z]{4}\d{3})\b[)\]]?"
)
_DATE_AT_AN_END = re.compile(r"^(?P<before>\d[\d./-]{5,9}\d)[:\s,]+|[\s,(:]+(?P<after>\d[\d./-]{5,9}\d)\)?$")
GAP = 2.6
"""Heights of a line: a wider gap ends a section."""
LONGEST = 200
_NONE = {
    "none",
    "keine",
    "aucun",
    "aucune",
    "ninguno",
    "ninguna",
    "nessuna",
    "geen",
    "nil",
    "n/a",
    "none known",
    "brak",
    "no",
}


@dataclass(frozen=True)
class Item:
    """One entry of a section: its text without bullet, and its place in the page's text."""

    section: str
    text: str
    start: int
    end: int


@cache
def _sections() -> dict[str, str]:
    return {plain(heading): section for section, headings in rows("sections.tsv") for heading in headings.split("|")}


def heading_of(text: str) -> tuple[str, str] | None:
    """The section that a line heads, and what follows on the line; None if it heads none."""
    head, colon, rest = text.partition(":")
    section = _sections().get(" ".join(plain(head).strip(" #*-=.").split()))
    if section is None and not colon:
        return None
    if section is None:
        # `Medication list:` and its like end what stands above, but `Z.n.:` within an entry does not
        return ("end", rest) if not rest.strip() and len(head.split()) <= 5 else None
    return (section, rest) if colon or len(text.split()) <= 4 else None


def items(page: Page) -> Iterator[Item]:
    """The entries under the headings of diagnoses and procedures, lines that go on joined."""
    section = ""
    pending: Item | None = None
    inline = False  # `Diagnosis: anaemia`: nothing but a list goes on below
    last: Line | None = None
    for line, offset in lines_with_offsets(page):
        text = line.text
        gap = last is not None and line.top - last.bottom > GAP * max(last.bottom - last.top, 6.0)
        found = heading_of(text)
        if found is not None or (gap and pending is not None) or heads(line) is not None:
            if pending is not None:
                yield pending
            pending = None
            section = found[0] if found else ""
            section = "" if section == "end" else section
            inline = False
            if found and section and found[1].strip():
                inline = True
                start = offset + len(text) - len(found[1].lstrip())
                pending = Item(section, found[1].strip(), start, offset + len(text.rstrip()))
        elif section and text.strip():
            bullet = _BULLET.match(text)
            goes_on = (
                pending is not None
                and bullet is None
                and bool(re.match(r"\s*[a-zà-ÿ(]", text))
                and len(pending.text) < LONGEST
            )
            if goes_on and pending is not None:
                pending = Item(section, f"{pending.text} {text.strip()}", pending.start, offset + len(text.rstrip()))
            elif inline and bullet is None:
                section = ""
            else:
                if pending is not None:
                    yield pending
                start = bullet.end() if bullet else 0
                pending = Item(section, text[start:].strip(), offset + start, offset + len(text.rstrip()))
        last = line
    if pending is not None:
        yield pending


def diagnoses(page: Page, order: Order) -> list[Diagnosis]:
    """Of the patient: what is listed under the family's history, or as a relative's, is none."""
    every = list(items(page))
    found = [_diagnosis(page, item, order) for item in every if item.section == "diagnoses"]
    covered = [(item.start, item.end) for item in every if item.section in ("diagnoses", "family")]
    for line, offset in lines_with_offsets(page):
        match = _CODED.match(line.text.strip())
        if (
            match
            and not _is_of_a_relative(line.text)
            and not any(start < offset + len(line.text) and offset < end for start, end in covered)
        ):
            text = (match["after"] or match["text"] or "").strip(" -:,")
            if _is_words(text) and _says_icd(line.text, match):
                span = Span(page=page.number, start=offset, end=offset + len(line.text))
                found.append(Diagnosis(text=text, code=match["before"] or match["code"], date="", span=span))
    return sorted((entry for entry in found if entry), key=lambda entry: entry.span.start)


@cache
def _relatives() -> re.Pattern[str]:
    spelt = "|".join(re.escape(plain(word)) for word in words("relative"))
    who = rf"(?:{spelt})(?:['\u2019]?s)?"
    of = r"(?:in|bei|of|de|du|della?|chez|en|bij|u|\u0443)"
    return re.compile(rf"\W*(?:\w+ )?{who}\s*[:(,\u2013-]|.*\b{of} (?:\w+ )?{who}\W*$|.*[(\[]{who}[)\]]")


def _is_of_a_relative(text: str) -> bool:
    """`Mother: breast cancer`, `breast cancer in her mother`, `(mother)`."""
    return _relatives().match(plain(text)) is not None


def of_others(page: Page) -> list[tuple[int, int]]:
    """Where the page speaks of the family's diagnoses."""
    found = [(item.start, item.end) for item in items(page) if item.section == "family"]
    lines = lines_with_offsets(page)
    return found + [(offset, offset + len(line.text)) for line, offset in lines if _is_of_a_relative(line.text)]


def _says_icd(line: str, match: re.Match[str]) -> bool:
    """A code without a point (`B12`, `C30`) is one only where the line says so."""
    code = match["before"] or match["code"]
    return "." in code or "ICD" in line.upper()


def _is_words(text: str) -> bool:
    return len(text) <= LONGEST and bool(re.search(r"[^\W\d_]{3}", text)) and plain(text).strip(" .") not in _NONE


def _dated(text: str, order: Order) -> tuple[str, str]:
    match = _DATE_AT_AN_END.search(text)
    if match is None or not (date := parse_date(match["before"] or match["after"], order)):
        return text, ""
    return (text[: match.start()] + text[match.end() :]).strip(" ,:-"), date


def _diagnosis(page: Page, item: Item, order: Order) -> Diagnosis | None:
    if _is_of_a_relative(item.text):
        return None
    text, date = _dated(item.text, order)
    match = _CODED.match(text)
    code = ""
    if match:
        code = match["before"] or match["code"]
        text = (match["after"] or match["text"]).strip(" -:,")
    if not _is_words(text):
        return None
    return Diagnosis(
        text=text.rstrip("."), code=code, date=date, span=Span(page=page.number, start=item.start, end=item.end)
    )


def procedures(page: Page, order: Order) -> list[Procedure]:
    found = []
    for item in items(page):
        if item.section != "procedures":
            continue
        text, date = _dated(item.text, order)
        match = _PROCEDURE_CODE.search(text)
        code = match["code"] if match else ""
        if match:
            text = " ".join((text[: match.start()] + " " + text[match.end() :]).split()).strip(" ,:-")
        if _is_words(text):
            span = Span(page=page.number, start=item.start, end=item.end)
            found.append(Procedure(text=text.rstrip("."), code=code, date=date, span=span))
    return found
