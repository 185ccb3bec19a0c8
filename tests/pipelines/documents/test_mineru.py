"""Pages read by a MinerU server: a scripted one for its answers and faults, and a real one (marker `mineru`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pipelines.documents.mineru import MinerU
from pipelines.documents.router import run
from pipelines.documents.router_settings import RouterSettings
from pipelines.errors import InputRejected, NotGranted, TryLater
from tests.pipelines.documents.reports import by_name, make
from tests.pipelines.documents.site import Site, ok, serving

SIZES = {1: (600.0, 800.0), 2: (600.0, 800.0)}
TABLE = r"""| Test | Result | Units |
| --- | --- | --- |
| **Sodium** | 140 |  |
| CRP | &lt; 5 | mg/L |
| A\|B ratio | > 1.5 | a &amp; b |"""
HTML = "<table><tr><td>Iron</td><td colspan='2'>&lt;b&gt; 60</td></tr><tr><th>x</th></tr></table>"
BLOCKS = [
    {"type": "table", "bbox": [0.1, 0.5, 0.9, 0.7], "content": TABLE, "image_source": "data:image/jpeg;base64,AAAA"},
    {"type": "text", "bbox": [0.1, 0.1, 0.5, 0.15], "content": "# **Northgate** Laboratories"},
    {"type": "table", "bbox": [0.1, 0.8, 0.9, 0.9], "content": HTML},
    {"type": "image", "bbox": [0.1, 0.2, 0.2, 0.3], "content": None},
]


def answer(status: str = "completed", blocks: object = BLOCKS) -> bytes:
    content = {"structured_content": {"pages": [{"page_idx": 0, "blocks": blocks}]}}
    file = {"name": "document.pdf", "status": status, "error": {"message": "broken"}, "content": content}
    return ok(json.dumps({"status": status, "files": [file]}).encode(), "content-type: application/json")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "report.pdf"
    path.write_bytes(make(by_name("plain-columns"), 1).pdf)
    return path


def reader(site: Site, **how: object) -> MinerU:
    return MinerU(site.url("").rstrip("/"), **how)  # type: ignore[arg-type]


async def test_blocks_become_lines_and_tables_become_cells_in_their_places(document: Path) -> None:
    async with serving() as site:
        site.answers["/v1/file_parse"] = answer()
        (page,) = await reader(site, tier="flash").read(document, SIZES)
    assert (page.number, page.source, page.width) == (1, "mineru", 600.0)
    assert [[cell.text for cell in line.cells] for line in page.lines] == [
        ["Northgate Laboratories"],
        ["Test", "Result", "Units"],
        ["Sodium", "140"],
        ["CRP", "< 5", "mg/L"],
        ["A|B ratio", "> 1.5", "a & b"],
        ["Iron", "<b> 60"],
        ["x"],
    ]
    crp = page.lines[3]
    assert 400 < crp.top < crp.bottom <= 560
    assert 60 <= crp.cells[0].left < crp.cells[1].left < crp.cells[2].left < 540
    assert crp.cells[2].left == page.lines[1].cells[2].left
    head = site.heads[0]
    assert "tier=flash" in head
    assert "output_formats=structured_content" in head


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_tried_later(status: int, document: Path) -> None:
    async with serving() as site:
        site.answers["/v1/file_parse"] = ok(b"{}", "retry-after: 7", status=f"{status} Busy")
        with pytest.raises(TryLater, match=str(status)) as error:
            await reader(site).read(document, SIZES)
        assert error.value.after == 7.0


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"files": []}', b'{"files": [{"status": "completed"}]}', b"[1]"])
async def test_a_server_that_is_no_mineru_is_an_operators_matter(body: bytes, document: Path) -> None:
    async with serving() as site:
        site.answers["/v1/file_parse"] = ok(body)
        with pytest.raises(TryLater, match=r"127\.0\.0\.1"):
            await reader(site).read(document, SIZES)
        del site.answers["/v1/file_parse"]
        with pytest.raises(TryLater, match="PHAZE_MINERU_URL"):
            await reader(site).read(document, SIZES)


async def test_no_answer_in_time_is_tried_later_and_a_key_that_is_wanted_is_said(document: Path) -> None:
    async with serving() as site:
        site.answers["/v1/file_parse"] = site.endless(b"", b"", pause=0.05)
        with pytest.raises(TryLater):
            await reader(site, seconds=1).read(document, SIZES)
        site.answers["/v1/file_parse"] = ok(b"{}", status="401 Unauthorized")
        with pytest.raises(NotGranted):
            await reader(site).read(document, SIZES)
        closed = site.port
    with pytest.raises(TryLater):
        await MinerU(f"http://127.0.0.1:{closed}").read(document, SIZES)


@pytest.mark.parametrize("said", [ok(b'{"error": {}}', status="400 Bad Request"), answer("failed"), answer(blocks=[])])
async def test_a_document_that_it_cannot_read_is_read_here(said: bytes, document: Path) -> None:
    async with serving() as site:
        site.answers["/v1/file_parse"] = said
        settings = RouterSettings(roots=(document.parent,), mineru=reader(site))
        result = await run(path=document, settings=settings)
    assert [page.source for page in result.pages] == ["text"]


async def test_what_it_says_of_a_document_that_it_cannot_read_is_passed_on(document: Path) -> None:
    async with serving() as site:
        site.answers["/v1/file_parse"] = answer("failed")
        with pytest.raises(InputRejected, match="broken"):
            await reader(site).read(document, SIZES)


@contextlib.contextmanager
def real_server(folder: Path) -> Iterator[str]:
    """The one that PHAZE_TEST_MINERU_URL names, or the program PHAZE_TEST_MINERU started here; skipped without."""
    if url := os.environ.get("PHAZE_TEST_MINERU_URL"):
        yield url
        return
    program = os.environ.get("PHAZE_TEST_MINERU")
    if not program:
        pytest.skip("set PHAZE_TEST_MINERU to a mineru-api program (pip install mineru, in an environment of its own)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [program, "--tier", "flash", "--port", str(port), "--upload-dir", str(folder / "uploads")]
    with (folder / "mineru.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)})
    try:
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/v1/health", timeout=10).is_success:
                    break
            assert process.poll() is None, (folder / "mineru.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.mineru
@pytest.mark.timeout(900)
def test_a_real_mineru_reads_a_report(tmp_path: Path) -> None:
    report = make(by_name("bordered"), 1)
    path = tmp_path / "report.pdf"
    path.write_bytes(report.pdf)
    with real_server(tmp_path) as url:
        settings = RouterSettings(roots=(tmp_path,), mineru=MinerU(url, tier="flash"))
        result = asyncio.run(run(path=path, settings=settings))
    (page,) = result.pages
    assert page.source == "mineru"
    assert page.categories == ["lab_results"]
    cells = [[cell.text for cell in line.cells] for line in page.lines]
    found = [row for row in report.rows if any(line[:2] == [row.name, row.value] for line in cells)]
    assert len(found) >= 0.9 * len(report.rows)
