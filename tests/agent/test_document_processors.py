"""The processors of the document lanes, without a queue: what they take, and what a model is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reportlab.pdfgen.canvas import Canvas

from agent.phoenix.endings import Quarantined
from agent.processors.grouper import Grouper
from agent.processors.inline import process_inline
from agent.processors.parser import Parser
from agent.processors.router import Router
from pipelines.documents.parser import ModelChoice, parse_seconds
from pipelines.documents.samples import write_samples
from pipelines.errors import InputRejected, NotGranted, RecordNotFoundError
from pipelines.payload import encode_path
from tests.pipelines.documents.endpoint import endpoint, fails, says

LETTER = "we write to you about your visit of last week and hope that you are well"


@pytest.fixture
def letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pages of which the rules cannot say what they are about."""
    monkeypatch.setenv("PHAZE_DOCUMENT_ROOTS", str(tmp_path))
    canvas = Canvas(str(tmp_path / "a letter.pdf"))
    for _ in range(3):
        for line in range(6):
            canvas.drawString(60, 700 - 20 * line, LETTER)
        canvas.showPage()
    canvas.save()
    return tmp_path / "a letter.pdf"


async def route(path: Path) -> dict[str, Any]:
    found = await process_inline(Router, "r1", "ann", {"path": encode_path(path)}, api_key="key-of-ann")
    assert found is not None
    return found


async def test_a_model_is_asked_about_pages_of_which_the_rules_are_unsure_with_the_users_key(
    letter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await route(letter))["categories"] == {"other": 3}, "without a model"
    with endpoint(says({"categories": ["imaging"]})) as model:
        monkeypatch.setenv("PHAZE_DOCUMENT_MODEL", "small")
        monkeypatch.setenv("PHAZE_LLM_URL", model.url)
        found = await route(letter)
    assert found["categories"] == {"imaging": 3}
    assert found["document"] == str(letter)
    assert set(model.keys) == {"Bearer key-of-ann"}


async def test_a_model_that_is_away_holds_no_document_up(letter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(fails(503)) as model:
        monkeypatch.setenv("PHAZE_DOCUMENT_MODEL", "small")
        monkeypatch.setenv("PHAZE_LLM_URL", model.url)
        assert (await route(letter))["categories"] == {"other": 3}
    assert len(model.requests) == 1, "it is left alone then"


async def test_the_stages_fit_together_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_DOCUMENT_ROOTS", str(tmp_path))
    reports = write_samples(tmp_path)[:2]
    kept: list[Any] = []
    monkeypatch.setattr(Router, "keep_pages", lambda self, pages: kept.append([page.model_dump() for page in pages]))
    parsed = []
    for report, number in zip(reports, range(2), strict=True):
        await route(report.path)
        found = await process_inline(Parser, f"r{number}", "ann", {"pages": 1}, pages=kept[number])
        assert found is not None
        assert len(found["facts"]["biomarkers"]) == len(report.results)
        parsed.append(found["facts"])
    one = await process_inline(Grouper, "r1", "ann", {"facts": parsed[0]})
    both = await process_inline(Grouper, "ann", "ann", {"facts": parsed})
    assert one is not None
    assert both is not None
    results = [sum(len(group["results"]) for group in found["groups"]) for found in (one, both)]
    assert results == [len(reports[0].results), len(reports[0].results) + len(reports[1].results)]


async def test_what_is_no_request_of_theirs_is_quarantined(tmp_path: Path) -> None:
    for data in ({}, {"url": "https://a/", "path": "/a"}, {"path": 5}):
        with pytest.raises(Quarantined, match="bad-data"):
            await process_inline(Router, "r1", "ann", data)
    with pytest.raises(Quarantined, match="bad-data: 0"):
        await process_inline(Parser, "r1", "ann", pages=[{"number": "one"}])
    for facts in (None, "none", [{"biomarkers": [{"name": "x"}]}]):
        with pytest.raises(Quarantined, match="bad-data"):
            await process_inline(Grouper, "r1", "ann", {"facts": facts})
    with pytest.raises(RecordNotFoundError, match="pages:r1"):
        await process_inline(Parser, "r1", "ann")
    with pytest.raises(NotGranted, match="PHAZE_DOCUMENT_ROOTS"):
        await process_inline(Router, "r1", "ann", {"path": "/a.pdf"})
    with pytest.raises(InputRejected, match="bad-url"):
        await process_inline(Router, "r1", "ann", {"url": "file:///etc/passwd"})


def test_no_model_is_asked_unless_one_is_named() -> None:
    assert ModelChoice.of({"PHAZE_LLM_URL": "http://llm/v1"}) is None
    assert ModelChoice.of({"PHAZE_DOCUMENT_MODEL": "m"}) == ModelChoice(base_url="https://api.openai.com/v1", name="m")
    chosen = ModelChoice.of({"PHAZE_DOCUMENT_MODEL": "m", "PHAZE_LLM_URL": "http://llm/v1"})
    assert chosen == ModelChoice(base_url="http://llm/v1", name="m")


def test_a_slow_model_gets_the_time_it_is_given_and_so_do_its_jobs() -> None:
    chosen = ModelChoice.of({"PHAZE_DOCUMENT_MODEL": "m", "PHAZE_DOCUMENT_MODEL_SECONDS": "600"})
    assert chosen is not None
    assert chosen.as_model().timeout == 600
    usual = ModelChoice(base_url="http://llm/v1", name="m")
    assert parse_seconds(2, chosen) - parse_seconds(2, None) == 5 * (parse_seconds(2, usual) - parse_seconds(2, None))
