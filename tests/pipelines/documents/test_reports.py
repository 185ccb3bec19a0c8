"""The generator: the same report from the same seed, and its truth stands on its pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.documents.extract import read_pages
from tests.pipelines.documents.reports import HELD_OUT, LAYOUTS, Layout, Report, make
from tests.pipelines.documents.reports.analytes import ANALYTES, FINDINGS, LANGUAGES

TABLES = [layout for layout in LAYOUTS if layout.scan is None and layout.arrangement == "table" and not layout.centred]


def name_of(layout: Layout) -> str:
    return layout.name


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_a_seed_makes_the_same_bytes_and_another_seed_another_report(layout: Layout) -> None:
    first = make(layout, 1)
    assert make(layout, 1) == first
    assert make(layout, 2).rows != first.rows


@pytest.mark.parametrize("layout", TABLES, ids=name_of)
def test_all_that_is_said_of_a_result_is_read_on_one_line(layout: Layout, tmp_path: Path) -> None:
    report = make(layout, 3)
    assert len(report.rows) >= 10
    pages = read_pages(written(report, tmp_path))
    assert {page.source for page in pages} == {"text"}
    for row in report.rows:
        parts = [row.name.split()[0], row.value, row.unit, row.reference, row.flag]
        assert any(all(part in line.text for part in parts) for line in pages[row.page - 1].lines), row


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.scan is not None], ids=name_of)
def test_a_scan_holds_no_text(layout: Layout, tmp_path: Path) -> None:
    assert not any(page.lines for page in read_pages(written(make(layout, 3), tmp_path)))


def test_a_third_of_the_layouts_is_held_out_with_every_kind_among_the_open_ones() -> None:
    assert len(HELD_OUT) * 3 == len(LAYOUTS)
    held = [layout for layout in LAYOUTS if layout.name in HELD_OUT]
    assert any(layout.scan for layout in held)
    assert {layout.printing.language for layout in held} == set(LANGUAGES)


def written(report: Report, folder: Path) -> Path:
    path = folder / "report.pdf"
    path.write_bytes(report.pdf)
    return path


def test_no_language_has_one_name_for_two_tests() -> None:
    for language in LANGUAGES:
        names = [entry.names[language] for entry in (*ANALYTES, *FINDINGS)]
        assert len(set(names)) == len(names)
