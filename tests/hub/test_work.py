from __future__ import annotations

from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, METADATA
from tests.hub.deliveries import AGENT, result, scan, seen


def test_work_counts_what_was_finished_since(catalogue: Catalogue) -> None:
    scan(catalogue, "/m", [seen("/m/a"), seen("/m/b%0A"), seen("/m/c")])
    entries = [
        result(ANALYSIS, 1, "/m/a", started_at=100.0, finished_at=104.0),
        result(ANALYSIS, 2, "/m/b%0A", started_at=101.0, finished_at=110.0),
        result(METADATA, 1, "/m/a", started_at=100.0, finished_at=101.0),
        result(METADATA, 2, "/m/b%0A", started_at=10.0, finished_at=20.0),
    ]
    assert catalogue.record(AGENT, entries + entries) == [None] * 8
    analysis, tags = catalogue.work_since(100.0)
    assert (analysis.service, analysis.jobs, analysis.wall, analysis.busy) == (ANALYSIS, 2, 10.0, 13.0)
    assert (analysis.slowest, analysis.slowest_path) == (9.0, "/m/b\ufffd")
    assert (tags.service, tags.jobs, tags.busy) == (METADATA, 1, 1.0)
    assert catalogue.work_since(1000.0) == []
