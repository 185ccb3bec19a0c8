"""Scans, read by what is to be seen on them; with the models in the wheel and no network."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pypdfium2
import pytest
from PIL import Image
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from pipelines.documents.page import Page
from pipelines.documents.recognise import recognise
from tests.pipelines.documents.reports import by_name, make

# No socket may be connected, and no name resolved, while a page is recognised in a process that does nothing else.
OFFLINE = """
import socket, sys
from pathlib import Path

def no(*_, **__):
    raise AssertionError("the network was asked")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = no
from pipelines.documents.recognise import recognise
print(recognise(Path(sys.argv[1]), 1).model_dump_json())
"""


@pytest.mark.timeout(300)  # ten CPU-seconds
def test_a_scanned_report_is_read_without_any_network(tmp_path: Path) -> None:
    report = make(replace(by_name("scanned-plain"), rows=(6, 8), comments=0), 4)
    path = tmp_path / "scan.pdf"
    path.write_bytes(report.pdf)
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, path], capture_output=True, text=True, check=True, timeout=280
    )
    page = Page.model_validate_json(done.stdout)
    assert page.source == "ocr"
    assert (round(page.width), round(page.height)) == (612, 792)
    whole = [
        row
        for row in report.rows
        if any(row.name in line.text and row.value in [cell.text for cell in line.cells] for line in page.lines)
    ]
    assert len(whole) >= 0.85 * len(report.rows)


def picture_of(lines: list[str], degrees: float) -> bytes:
    """A small picture of text, turned counter-clockwise, as a PDF of its size."""
    file = io.BytesIO()
    canvas = Canvas(file, pagesize=(260, 110), invariant=1)
    canvas.setFont("Helvetica", 11)
    for number, line in enumerate(lines):
        canvas.drawString(25, 80 - 22 * number, line)
    canvas.save()
    with pypdfium2.PdfDocument(file.getvalue()) as document:
        picture = document[0].render(scale=200 / 72).to_pil().convert("L")
    picture = picture.rotate(degrees, expand=True, fillcolor=255, resample=Image.Resampling.BICUBIC)
    out = io.BytesIO()
    size = (picture.width * 72 / 200, picture.height * 72 / 200)
    canvas = Canvas(out, pagesize=size, invariant=1)
    canvas.drawImage(ImageReader(picture), 0, 0, *size)
    canvas.save()
    return out.getvalue()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("degrees", [2, 90, 180, 270])
def test_a_scan_is_turned_upright_and_its_lines_are_straight(degrees: int, tmp_path: Path) -> None:
    path = tmp_path / "scan.pdf"
    path.write_bytes(
        picture_of(["Natrium          140 mmol/l", "Kalium           4,1 mmol/l", "Glukose          95 mg/dl"], degrees)
    )
    page = recognise(path, 1)
    assert [line.text.split()[0] for line in page.lines] == ["Natrium", "Kalium", "Glukose"]
    for line, value in zip(page.lines, ("140", "4,1", "95"), strict=True):
        assert value in line.text
    assert page.width > page.height
