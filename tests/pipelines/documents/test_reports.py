"""The generator: the same report from the same seed, and its truth stands on its pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.documents.extract import read_pages
from tests.pipelines.documents.reports import LAYOUTS, Layout, make
from tests.pipelines.documents.reports.analytes import ANALYTES, FINDINGS, LANGUAGES

PRINTED = [layout for layout in LAYOUTS if layout.scan is None]


def ids(layout: Layout) -> str:
    return layout.name


@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_a_seed_makes_the_same_bytes_and_another_seed_another_report(layout: Layout) -> None:
    first = make(layout, 1)
    assert make(layout, 1) == first
    assert make(layout, 2).rows != first.rows


@pytest.mark.parametrize("layout", PRINTED, ids=ids)
def test_name_and_value_of_every_result_are_read_on_one_line(layout: Layout, tmp_path: Path) -> None:
    report = make(layout, 3)
    path = tmp_path / "report.pdf"
    path.write_bytes(report.pdf)
    pages = read_pages(path)
    assert {page.source for page in pages} == {"text"}
    split = [
        row
        for row in report.rows
        if not any(row.value in line.text and row.name.split()[0] in line.text for line in pages[row.page - 1].lines)
    ]
    assert not split


def test_no_language_has_one_name_for_two_tests() -> None:
    for language in LANGUAGES:
        names = [entry.names[language] for entry in (*ANALYTES, *FINDINGS)]
        assert len(set(names)) == len(names)
