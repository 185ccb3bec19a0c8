"""The router, from a URL or a path to sorted pages, with the engine's own children, ended and hung for real."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from reportlab.pdfgen.canvas import Canvas

from pipelines.context import InlineContext, policy_of
from pipelines.documents import pages, recognise
from pipelines.documents.addresses import networks_of
from pipelines.documents.router import Routed, RoutePayload, route_document, run
from pipelines.documents.router_settings import RouterSettings
from pipelines.errors import InputRejected
from pipelines.payload import encode_path
from tests.pipelines.documents import in_children as functions
from tests.pipelines.documents.in_children import in_children
from tests.pipelines.documents.reports import by_name, make
from tests.pipelines.documents.site import ok, serving

CASES = {
    "base.pdf": "done",
    "bomb.pdf": "done",
    "dense.pdf": "unreadable",
    "empty.pdf": "empty",
    "enc_owner_only.pdf": "done",
    "enc_user.pdf": "encrypted",
    "garbage_prefix.pdf": "done",
    "html.pdf": "not-a-pdf",
    "huge_page.pdf": "done",
    "trunc.pdf": "corrupt",
    "zero_pages.pdf": "corrupt",
}


def printed(*texts: str) -> bytes:
    """A page for each text; an empty one for an empty text."""
    file = io.BytesIO()
    canvas = Canvas(file, invariant=1)
    for text in texts:
        for number, line in enumerate(text.splitlines()):
            canvas.drawString(50, 750 - 20 * number, line)
        canvas.showPage()
    canvas.save()
    return file.getvalue()


LAB = "Laboratory report, reference range\nSodium 140 mmol/L 135-145\nPotassium 4.1 mmol/L 3.5-5.1"


async def routed(path: Path, **how: object) -> Routed:
    return await run(path=path, settings=RouterSettings(roots=(path.parent,)), **how)  # type: ignore[arg-type]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "three.pdf"
    path.write_bytes(printed(LAB, LAB, LAB))
    return path


async def test_a_report_is_routed_from_a_url(tmp_path: Path) -> None:
    report = make(by_name("two-pages"), 1)
    async with serving() as site, in_children() as context:
        site.answers["/report"] = ok(report.pdf, "content-type: text/plain")
        settings = RouterSettings(networks=networks_of("127.0.0.0/8"))
        result = await run(url=site.url("/report?signature=s3cret"), settings=settings, context=context)
    assert result.outcome == "done"
    assert [page.number for page in result.pages] == [1, 2]
    assert [page.categories for page in result.pages] == [["lab_results"], ["lab_results"]]
    assert result.bytes == len(report.pdf)
    assert context.calls == ["look_at_all", "judge_all"]
    assert "s3cret" not in result.model_dump_json()


async def test_the_task_takes_what_its_payload_says_and_settings_from_the_environment(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = RoutePayload(version="v1", path=encode_path(three))
    monkeypatch.setenv("PHAZE_DOCUMENT_ROOTS", f"/nowhere:{three.parent}")
    monkeypatch.setenv("PHAZE_DOCUMENT_MAX_PAGES", "2")
    heard: list[float] = []
    result = await route_document(InlineContext(on_progress=lambda fraction, note: heard.append(fraction)), payload)
    assert [page.number for page in result.pages] == [1, 2]
    assert [(page.number, page.last, page.reason) for page in result.skipped] == [(3, 3, "too-many-pages")]
    assert (result.outcome, result.reason) == ("partial", "1 of 3 pages: too-many-pages")
    assert heard[-1] == 1.0


def test_a_payload_names_a_url_or_a_path_and_shows_no_url() -> None:
    for wrong in ({}, {"url": "http://a/", "path": "/a"}):
        with pytest.raises(ValueError, match="either url or path"):
            RoutePayload(version="v1", **wrong)  # type: ignore[arg-type]
    payload = RoutePayload(version="v1", url="https://a.example/x?signature=s3cret")
    assert "s3cret" not in repr(payload)
    policy = policy_of(route_document)
    assert policy.dependency is not None
    assert policy.dependency(payload) == "documents:a.example"
    assert policy.timeout(payload) > pages.ALL_SCANS


@pytest.mark.parametrize("name", ["NETWORKS=10.0.0.0/99", "MAX_MB=0", "MAX_PAGES=many"])
def test_a_wrong_setting_is_named(name: str) -> None:
    variable, _, value = f"PHAZE_DOCUMENT_{name}".partition("=")
    with pytest.raises(ValueError, match=variable):
        RouterSettings.of({variable: value})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.cases if name == "bomb.pdf" else ()) for name in CASES]
)
@pytest.mark.timeout(400)
async def test_no_awkward_document_crashes_or_hangs_anything(name: str, cases: Path) -> None:
    async with in_children() as context, asyncio.timeout(380):
        try:
            outcome = (await routed(cases / "pdf" / name, context=context)).outcome
        except InputRejected as error:
            outcome = error.reason  # type: ignore[assignment]
    assert outcome == CASES[name]


def test_every_shared_awkward_document_has_its_test(cases: Path) -> None:
    assert {path.name for path in (cases / "pdf").glob("*.pdf")} <= set(CASES)


async def test_pages_done_skipped_and_failed_are_all_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "four.pdf"
    path.write_bytes(printed(LAB, "", "3", LAB))
    monkeypatch.setattr(recognise, "is_there", lambda: False)
    result = await routed(path)
    assert [page.number for page in result.pages] == [1, 4]
    assert [(page.number, page.reason.split(":")[0]) for page in result.skipped] == [(2, "blank"), (3, "needs-ocr")]
    assert "phaze-agent[ocr]" in result.skipped[1].reason
    assert result.outcome == "partial"
    assert result.reason is not None
    assert result.reason.startswith("1 of 4 pages: needs-ocr")


async def test_a_document_of_empty_pages_is_done(tmp_path: Path) -> None:
    path = tmp_path / "empty.pdf"
    path.write_bytes(printed("", ""))
    result = await routed(path)
    assert (result.outcome, result.pages, len(result.skipped)) == ("done", [], 2)


@pytest.mark.parametrize("kind", ["dies_of", "hangs_at"])
async def test_a_page_that_ends_or_hangs_its_reader_costs_itself(
    kind: str, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "look_at_all", getattr(functions, f"{kind}_all"))
    monkeypatch.setattr(pages, "look_at", getattr(functions, f"{kind}_page_2"))
    if kind == "hangs_at":
        monkeypatch.setattr(pages, "ALL_PAGES", 1.0)
        monkeypatch.setattr(pages, "ONE_PAGE", 10.0)
    async with in_children() as context:
        result = await routed(three, context=context)
    assert [page.number for page in result.pages] == [1, 3]
    assert [page.number for page in result.failed] == [2]
    assert result.failed[0].reason == (pages.ENDED if kind == "dies_of" else "not done within 10 s")
    assert result.outcome == "partial"


async def test_a_document_that_nobody_can_open_is_rejected(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "look_at_all", functions.dies_of_all)
    monkeypatch.setattr(pages, "page_count", functions.dies_of_opening)
    async with in_children() as context:
        with pytest.raises(InputRejected) as error:
            await routed(three, context=context)
    assert error.value.reason == "unreadable"


async def test_a_scan_that_ends_its_recogniser_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "two.pdf"
    path.write_bytes(printed(LAB, "7"))
    monkeypatch.setattr(recognise, "is_there", lambda: True)
    monkeypatch.setattr(recognise, "recognise", functions.dies_of_recognising)
    async with in_children() as context:
        result = await routed(path, context=context)
    assert [page.number for page in result.pages] == [1]
    assert [(page.number, page.reason) for page in result.failed] == [(2, pages.ENDED)]


async def test_the_end_of_the_runs_own_time_is_no_fault_of_a_page(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfTime(InlineContext):
        async def child(self, function, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            raise TimeoutError("the job's time is over")

    with pytest.raises(TimeoutError):
        await routed(three, context=OutOfTime())
