"""The sample set that ships: the same each time, and what it says is on its pages."""

from __future__ import annotations

from pathlib import Path

from pipelines.documents.categories import judge
from pipelines.documents.extract import read_pages
from pipelines.documents.samples import write_samples


def test_the_samples_are_the_same_each_time_and_say_what_they_should(tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "a")
    again = write_samples(tmp_path / "b")
    assert [a.path.read_bytes() for a in samples] == [b.path.read_bytes() for b in again]
    for sample in samples:
        (page,) = read_pages(sample.path)
        assert judge(page).categories == ["lab_results"]
        for result in sample.results:
            wanted = [text for text in (result.name, result.value, result.unit, result.reference, result.flag) if text]
            assert any([cell.text for cell in line.cells][: len(wanted)] == wanted for line in page.lines), result
    assert len({result.date for sample in samples for result in sample.results}) == 4
