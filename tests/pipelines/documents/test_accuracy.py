"""The rules on synthetic reports: the bars that `make bench-documents` measures at length."""

from __future__ import annotations

from pathlib import Path

from pipelines.documents.extract import read_pages
from pipelines.documents.parser import parse_by_rules
from pipelines.errors import InputRejected
from tests.pipelines.documents.reports import LAYOUTS, make
from tests.pipelines.documents.scoring import Score, score

SEED = 7


def test_printed_layouts_reach_the_bars_by_rules_alone(tmp_path: Path) -> None:
    total = Score()
    for layout in LAYOUTS:
        if layout.scan is None:
            report = make(layout, SEED)
            path = tmp_path / f"{layout.name}.pdf"
            path.write_bytes(report.pdf)
            pages = read_pages(path)
            facts = parse_by_rules(pages)
            total += score(facts.biomarkers, report.rows)
            for fact in facts.biomarkers:
                printed = pages[fact.span.page - 1].text[fact.span.start : fact.span.end]
                assert fact.value.printed in printed
    assert total.recall >= 0.95, total
    assert total.precision >= 0.98, total


def test_awkward_documents_break_nothing(cases: Path) -> None:
    for path in sorted((cases / "pdf").glob("*.pdf")):
        try:
            pages = read_pages(path)
        except InputRejected:
            continue
        for fact in parse_by_rules(pages).biomarkers:
            assert fact.value.printed
