"""Precision and recall of (name, value, unit) on synthetic lab reports, by layout. `make bench-documents`

    python -m benchmarks.documents [--seeds 10] [--scans 2] [--layout NAME]... [--write]

By rules alone, and with a model too where the environment names one (OPENAI_MODEL, OPENAI_BASE_URL, OPENAI_API_KEY).
Layouts that were held out while the rules were written are reported apart. A scanned page costs 10 CPU-seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.pipelines.documents.reports import HELD_OUT, LAYOUTS, Layout, Report, make
from tests.pipelines.documents.scoring import Score, score

from pipelines.documents.extract import read_pages
from pipelines.documents.page import Page
from pipelines.documents.parser import model_of_the_environment, parse_by_rules, parse_pages
from pipelines.documents.recognise import is_there, recognise

FILE = Path(__file__).resolve().parent / "RESULTS-DOCUMENTS.md"
FIRST_SEED = 1000
"""Seeds below are for looking at while rules are written; the figures are of reports that nobody looked at."""

BARS = {False: (0.95, 0.98), True: (0.85, 0.95)}
"""Least recall and precision, of printed layouts (False) and of scanned ones (True)."""


@dataclass
class Result:
    """What came of one layout, or of several."""

    name: str
    rules: Score = field(default_factory=Score)
    model: Score = field(default_factory=Score)
    reports: int = 0
    pages: int = 0
    seconds: float = 0.0

    def __iadd__(self, other: Result) -> Result:
        self.rules += other.rules
        self.model += other.model
        self.reports += other.reports
        self.pages += other.pages
        self.seconds += other.seconds
        return self


def pages_of(report: Report) -> list[Page]:
    """The pages as the router reads them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.pdf"
        path.write_bytes(report.pdf)
        pages = read_pages(path)
        return [recognise(path, page.number) for page in pages] if report.scanned else pages


def measure(layout: Layout, seeds: int, with_model: bool) -> Result:
    result = Result(layout.name)
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        report = make(layout, seed)
        pages = pages_of(report)
        began = time.perf_counter()
        facts = parse_by_rules(pages)
        result.seconds += time.perf_counter() - began
        result.rules += score(facts.biomarkers, report.rows)
        result.reports += 1
        result.pages += len(pages)
        if with_model:
            parsed = asyncio.run(parse_pages(pages, *model_of_the_environment(), facts=facts))
            result.model += score(parsed.facts.biomarkers, report.rows)
    return result


def table(results: list[Result], with_model: bool) -> Iterator[str]:
    yield "| layout | reports | results | precision | recall |" + (
        " with model: precision | recall |" if with_model else ""
    )
    yield "|---|---|---|---|---|" + ("---|---|" if with_model else "")
    total = summed(results)
    total.name = "**all**"
    for result in [*results, total]:
        rules, model = result.rules, result.model
        row = f"| {result.name} | {result.reports} | {rules.printed} | {rules.precision:.3f} | {rules.recall:.3f} |"
        yield row + (f" {model.precision:.3f} | {model.recall:.3f} |" if with_model else "")


def summed(results: list[Result]) -> Result:
    total = Result("")
    for result in results:
        total += result
    return total


def verdict(results: list[Result], is_scanned: bool) -> str:
    total = summed(results)
    recall, precision = BARS[is_scanned]
    met = total.rules.recall >= recall and total.rules.precision >= precision
    each = 1000 * total.seconds / max(total.pages, 1)
    return (
        f"precision {total.rules.precision:.3f} (bar {precision}), recall {total.rules.recall:.3f} (bar {recall}): "
        f"{'met' if met else 'NOT met'}; {total.rules.printed} results on {total.pages} pages, {each:.0f} ms a page"
    )


def report_lines(measured: dict[str, Result], with_model: bool) -> Iterator[str]:
    yield "# Lab reports: precision and recall of (name, value, unit)"
    yield ""
    yield f"Written by `make bench-documents` on {os.cpu_count()} cores, by rules alone" + (
        f", and with {os.environ['OPENAI_MODEL']}." if with_model else "; no model was configured."
    )
    yield "A result counts as right if name, value and unit are the printed characters; found twice is once wrong."
    yield "The reports are synthetic (tests/pipelines/documents/reports); the truth is what was printed on them."
    yield "Of the layouts held out only names and scores were seen while the rules were written, never a page."
    yield ""
    for is_scanned, kind in ((False, "Printed"), (True, "Scanned")):
        for held, what in (({False, True}, "all layouts"), ({True}, "only those held out")):
            if results := _chosen(measured, is_scanned, held):
                yield f"- {kind}, {what}: {verdict(results, is_scanned)}."
    for is_scanned, kind in ((False, "Printed"), (True, "Scanned, read by rapidocr")):
        for held, what in (({False}, "layouts that the rules were written with"), ({True}, "layouts held out")):
            if results := _chosen(measured, is_scanned, held):
                yield from ("", f"## {kind}: {what}", "", *table(results, with_model))


def _chosen(measured: dict[str, Result], is_scanned: bool, held: set[bool]) -> list[Result]:
    return [
        measured[layout.name]
        for layout in LAYOUTS
        if layout.name in measured and (layout.scan is not None) == is_scanned and (layout.name in HELD_OUT) in held
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="reports of each printed layout")
    parser.add_argument("--scans", type=int, default=2, help="reports of each scanned layout")
    parser.add_argument(
        "--layout", action="append", choices=[n.name for n in LAYOUTS], metavar="NAME", help="only these"
    )
    parser.add_argument("--write", action="store_true", help="write RESULTS-DOCUMENTS.md")
    asked = parser.parse_args()
    if asked.write and asked.layout:
        parser.error(f"{FILE.name} is of all layouts: leave --layout out")
    with_model = model_of_the_environment()[0] is not None
    if asked.scans and not is_there():
        sys.stderr.write("rapidocr is not installed (extra `ocr`): scanned layouts are left out\n")
        asked.scans = 0
    measured = {}
    for layout in LAYOUTS:
        seeds = asked.seeds if layout.scan is None else asked.scans
        if seeds and (not asked.layout or layout.name in asked.layout):
            measured[layout.name] = measure(layout, seeds, with_model)
            sys.stderr.write(f"{layout.name}\n")
    lines = "\n".join(report_lines(measured, with_model)) + "\n"
    sys.stdout.write(lines)
    if asked.write:
        FILE.write_text(lines, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
