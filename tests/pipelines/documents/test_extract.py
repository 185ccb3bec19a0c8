"""The pages of a PDF from its own text: what stands together is read together, whichever way the page is turned."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reportlab.pdfgen.canvas import Canvas

from pipelines.documents.extract import MOST_CHARACTERS, read_pages
from pipelines.documents.lines import Word, lines_of
from pipelines.documents.page import Page
from pipelines.errors import InputRejected
from tests.pipelines.documents.reports.sheet import Sheet


def read(pdf: bytes, folder: Path) -> Page:
    path = folder / "page.pdf"
    path.write_bytes(pdf)
    (page,) = read_pages(path)
    return page


def canvas() -> tuple[Canvas, io.BytesIO]:
    file = io.BytesIO()
    made = Canvas(file, pagesize=(600, 400), invariant=1)
    made.setFont("Helvetica", 10)
    return made, file


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
@pytest.mark.parametrize("turned", [0, 90, 180, 270])
def test_a_page_is_read_upright_however_it_lies(turned: int, rotate: int, tmp_path: Path) -> None:
    sheet = Sheet("a4", "Helvetica", turned, rotate)
    sheet.text(100, 200, "Sodium", 10)
    sheet.text(300, 200, "140", 10)
    sheet.text(100, 220, "Potassium", 10)
    page = read(sheet.finish(), tmp_path)
    assert [[cell.text for cell in line.cells] for line in page.lines] == [["Sodium", "140"], ["Potassium"]]
    assert (round(page.width), round(page.height)) == (595, 842)
    first = page.lines[0]
    assert first.cells[0].left == pytest.approx(100, abs=2)
    assert first.cells[1].left == pytest.approx(300, abs=2)
    assert first.top < 200 < first.bottom


def test_the_order_in_which_a_page_was_written_does_not_matter(tmp_path: Path) -> None:
    made, file = canvas()
    for x, texts in ((300, ("140", "4.1")), (50, ("Sodium", "Potassium")), (400, ("mmol/L", "mmol/L"))):
        for number, text in enumerate(texts):
            made.drawString(x, 300 - 20 * number, text)
    made.save()
    page = read(file.getvalue(), tmp_path)
    assert page.text == "Sodium  140  mmol/L\nPotassium  4.1  mmol/L"


def test_letters_that_stand_apart_are_one_word_and_words_without_spaces_are_several(tmp_path: Path) -> None:
    made, file = canvas()
    text = made.beginText(50, 300)
    text.setCharSpace(1.5)
    text.textOut("Hemoglobin 11,1")
    text.setCharSpace(0)
    made.drawText(text)
    made.drawString(50, 250, "White")
    made.drawString(80, 250, "Cells")
    made.save()
    assert read(file.getvalue(), tmp_path).text == "Hemoglobin 11,1\nWhite Cells"


def test_an_exponent_stays_one_and_a_footnote_mark_after_a_word_is_only_text(tmp_path: Path) -> None:
    sheet = Sheet("a4", "Helvetica")
    sheet.raised(100, 100, "10^9/L", 10)
    sheet.raised(100, 130, "10^12/L", 10)
    sheet.raised(100, 160, "Glucose^2", 10)
    assert read(sheet.finish(), tmp_path).text.splitlines() == ["10⁹/L", "10¹²/L", "Glucose2"]


def test_type_of_any_scale_and_on_a_cropped_page_is_measured_in_points(tmp_path: Path) -> None:
    made, file = canvas()
    made.setCropBox((20, 30, 580, 390))
    made.saveState()
    made.scale(10, 10)
    made.setFont("Helvetica", 1)
    made.drawString(10, 30, "Sodium 140")
    made.restoreState()
    made.save()
    page = read(file.getvalue(), tmp_path)
    assert (page.width, page.height) == (560, 360)
    (line,) = page.lines
    assert line.text == "Sodium 140"
    assert line.cells[0].left == pytest.approx(80, abs=2)
    assert line.bottom == pytest.approx(90 + 2, abs=2)


def test_a_page_of_more_characters_than_any_page_has_is_rejected(tmp_path: Path) -> None:
    made, file = canvas()
    for number in range(MOST_CHARACTERS // 1000 + 1):
        made.drawString(10, number * 2, f"{number:03} " * 250)
    made.save()
    with pytest.raises(InputRejected, match="too-large"):
        read(file.getvalue(), tmp_path)


words = st.builds(
    lambda text, left, top, em: Word(text, left, left + len(text) * em / 2, top, top + em, em),
    st.text("ab1.", min_size=1, max_size=5),
    st.floats(0, 600),
    st.floats(0, 800),
    st.floats(4, 20),
)


@given(st.lists(words, max_size=30))
def test_no_word_is_lost_or_doubled_and_all_is_in_order(found: list[Word]) -> None:
    lines = lines_of(found)
    read_back = "".join(cell.text.replace(" ", "") for line in lines for cell in line.cells)
    plain = read_back.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789"))
    assert sorted(plain) == sorted("".join(word.text for word in found))
    assert all(line.top <= line.bottom for line in lines)
    for line in lines:
        assert [cell.left for cell in line.cells] == sorted(cell.left for cell in line.cells)


@pytest.mark.parametrize("rotate", [0, 90])
def test_what_lies_beyond_a_pages_edges_is_not_read(rotate: int, tmp_path: Path) -> None:
    made, file = canvas()
    made.setCropBox((100, 100, 400, 700))
    made.setPageRotation(rotate)
    for x, y, text in (
        (150, 400, "Glucose"),
        (150, 50, "below"),
        (150, 750, "above"),
        (20, 400, "left"),
        (500, 400, "right"),
    ):
        made.drawString(x, y, text)
    made.drawString(380, 300, "across")
    made.save()
    assert {cell.text for line in read(file.getvalue(), tmp_path).lines for cell in line.cells} == {
        "Glucose",
        "across",
    }
