"""The headings of a laboratory's table: which column is which (`headers.tsv`), in many languages."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, cast

from pipelines.documents.dates import is_period
from pipelines.documents.names import plain, rows
from pipelines.documents.page import Line
from pipelines.documents.pieces import Word, is_date, words

Column = Literal["name", "result", "flag", "unit", "reference", "previous", "specimen", "date", "other"]

COVERED = 0.6
"""Of a line's words, that must be headings of columns, for the line to be a table's head."""


@dataclass(frozen=True)
class Head:
    """One column: its role, where its heading stands, which of the tables side by side it is of.

    `dated`: the printed date, month or year that heads the column.
    """

    role: Column
    left: float
    right: float
    group: int = 0
    dated: str = ""


@cache
def _phrases() -> dict[str, Column]:
    found: dict[str, Column] = {}
    for role, printed in rows("headers.tsv"):
        for phrase in printed.split("|"):
            found.setdefault(_key(phrase), cast(Column, role))
    return found


def _key(text: str) -> str:
    return re.sub(r"[\s:*]+", " ", plain(text)).strip() or text


def label(some: list[Word], *, alone: bool) -> tuple[Column, int] | None:
    """The heading that some words begin with and how many words it is: `Normal range: 4.0 - 5.6`; None if with none.

    A colon ends it, or (`alone`) the words themselves do.
    """
    for size in range(min(5, len(some)), 0, -1):
        text = " ".join(word.text for word in some[:size])
        ends = text.endswith(":") or (size < len(some) and some[size].text == ":") or (alone and size == len(some))
        if ends and (role := _phrases().get(_key(text.rstrip(" :")))):
            return role, size + (size < len(some) and some[size].text == ":")
    return None


def _split_camel(cell: list[Word]) -> list[Word]:
    """`FlagResult`: two headings printed without a space between them."""
    found = []
    for word in cell:
        match = re.fullmatch(r"([^\W\d_]*[^\W\d_A-Z])([A-ZÄÖÜÉ][^\W\d_]+)", word.text)
        if match and all(_key(part) in _phrases() for part in match.groups()):
            middle = word.left + (word.right - word.left) * match.end(1) / len(word.text)
            found.append(replace(word, text=match[1], right=middle, end=word.start + match.end(1)))
            found.append(replace(word, text=match[2], left=middle, start=word.start + match.end(1)))
        else:
            found.append(word)
    return found


def heads(line: Line) -> list[Head] | None:
    """The columns that a line heads, from left to right; None if it is no table's head."""
    found: list[tuple[Head, int]] = []
    unmatched = matched = 0
    for index, cell in enumerate(words(line, 0)):
        cell = _split_camel(cell)
        at = 0
        while at < len(cell):
            for size in range(min(6, len(cell) - at), 0, -1):
                some = cell[at : at + size]
                text = " ".join(word.text for word in some)
                role = _phrases().get(_key(text)) or _phrases().get(_key(text).strip("()[].,;/ "))
                if role is None and (is_date(text) or is_period(text)):
                    found.append((Head("date", some[0].left, some[-1].right, dated=text), index))
                    break
                if role is not None:
                    found.append((Head(role, some[0].left, some[-1].right), index))
                    matched += size
                    break
            else:
                size = 1
                unmatched += 1
            at += size
    if matched < COVERED * (matched + unmatched) or not _is_head(found):
        return None
    return _grouped([head for head, _ in found])


def is_more_of_a_head(line: Line) -> bool:
    """True for a second line of headings (`Range` under `Reference`): headings' words and dates, nothing else."""
    every = [word for cell in words(line, 0) for word in cell]
    known = {word for phrase in _phrases() for word in phrase.split()}
    return bool(every) and all(_key(word.text) in known or _key(word.text).strip("()[].") in known for word in every)


def beside(before: list[Head] | None, found: list[Head]) -> list[Head]:
    """The columns that hold from a new head on: its own, and those of tables that stand wholly to its left or right."""
    left, right = min(head.left for head in found), max(head.right for head in found)
    kept = []
    for group in {head.group for head in before or []}:
        table = [head for head in before or [] if head.group == group]
        if max(head.right for head in table) < left or min(head.left for head in table) > right:
            kept.append(table)
    groups = [[head for head in found if head.group == group] for group in sorted({head.group for head in found})]
    tables = sorted([*kept, *groups], key=lambda table: table[0].left)
    return [replace(head, group=number) for number, table in enumerate(tables) for head in table]


def _is_head(found: list[tuple[Head, int]]) -> bool:
    columns = {head.role for head, _ in found if not head.dated}
    days = [head.dated for head, _ in found if head.dated]
    dated = len(days) > 1 or any(is_date(day) for day in days) or (bool(days) and bool(columns & {"unit", "reference"}))
    cells = len({index for _, index in found})
    if cells < 2 and len(columns) < 3:
        return False
    named = "name" in columns and ("result" in columns or dated or {"unit", "reference"} <= columns)
    return named or ("result" in columns and bool(columns & {"unit", "reference"}))


def _grouped(found: list[Head]) -> list[Head]:
    """Tables side by side are told apart by their names' columns; dates head results, unless there is a result."""
    columns: list[Head] = []
    group = 0
    has_result = any(head.role == "result" for head in found)
    for head in found:
        if head.role == "name" and any(
            column.role in ("result", "name") and column.group == group for column in columns
        ):
            if any(column.role == "result" and column.group == group for column in columns):
                group += 1
            else:  # `Test  Parameter  Result`: the second says more of the first
                head = replace(head, role="other")
        role = head.role
        if head.dated:
            before = columns[-1] if columns else None
            if (
                before is not None
                and before.group == group
                and before.role in ("result", "previous")
                and not before.dated
            ):
                columns[-1] = replace(before, right=head.right, dated=head.dated)
                continue
            role = "previous" if has_result else "result"
        columns.append(replace(head, role=role, group=group))
    return columns
