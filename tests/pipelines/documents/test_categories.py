"""What pages are about, by rules, and when a model is asked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from pipelines.documents.categories import categorised, classified_by, judge
from pipelines.documents.extract import read_pages
from pipelines.documents.page import Category, Cell, Line, Page
from pipelines.errors import TryLater
from tests.pipelines.documents.reports import LAYOUTS, Layout, make
from tests.pipelines.documents.reports.letters import LETTERS, Letter


def pages_of(pdf: bytes, folder: Path) -> list[Page]:
    path = folder / "document.pdf"
    path.write_bytes(pdf)
    return read_pages(path)


def page_of(text: str) -> Page:
    lines = [Line(cells=[Cell(text=line, left=0, right=9)], top=0, bottom=9) for line in text.splitlines()]
    return Page(number=1, width=9, height=9, source="text", lines=lines)


@pytest.mark.parametrize("letter", LETTERS, ids=lambda letter: letter.name)
def test_a_letter_is_known_for_what_it_is(letter: Letter, tmp_path: Path) -> None:
    (page,) = pages_of(letter.pdf(), tmp_path)
    found = judge(page)
    assert set(found.categories) == set(letter.categories)
    assert found.sure == (letter.categories != ("other",))


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x.scan is None], ids=lambda layout: layout.name)
def test_every_page_of_a_lab_report_is_surely_lab_results_and_nothing_else(layout: Layout, tmp_path: Path) -> None:
    for page in pages_of(make(layout, 5).pdf, tmp_path):
        assert judge(page).categories == ["lab_results"]
        assert judge(page).sure


async def test_a_model_is_asked_only_where_the_rules_are_unsure() -> None:
    asked: list[str] = []

    async def model(text: str) -> list[Category] | None:
        asked.append(text)
        return ["imaging", "other", "imaging"]

    sure = page_of("Reference range: see below. Serum sodium 140 mmol/L")
    hinted = page_of("Your operation is on Monday.")
    unknown = page_of("Dear Sir or Madam, " + "we write to you about your visit. " * 10)
    short = page_of("Page 3")
    assert (await categorised(sure, judge(sure), model)).categories == ["lab_results"]
    assert (await categorised(short, judge(short), model)).categories == ["other"]
    assert asked == []
    assert (await categorised(hinted, judge(hinted), model)).categories == ["imaging", "other"]
    assert (await categorised(unknown, judge(unknown), model)).categories == ["imaging", "other"]
    assert asked == [hinted.text, unknown.text]
    assert (await categorised(hinted, judge(hinted), None)).categories == ["procedures"]


async def test_a_model_without_an_answer_leaves_what_the_rules_say() -> None:
    async def model(text: str) -> None:
        return None

    hinted = page_of("Your operation is on Monday.")
    assert (await categorised(hinted, judge(hinted), model)).categories == ["procedures"]


async def test_a_client_is_asked_with_the_key_and_what_it_cannot_answer_is_left_to_the_rules() -> None:
    class Client:
        error: Exception | None = None
        keys: list[SecretStr | None] = []  # noqa: RUF012 - one client, one test

        async def ask(self, instructions, text, answer, key):  # type: ignore[no-untyped-def]
            self.keys.append(key)
            if self.error is not None:
                raise self.error
            return answer.model_validate({"categories": ["genetics"]})

    client, key = Client(), SecretStr("k")

    async def the_key() -> SecretStr:
        return key

    model = classified_by(client, the_key, (ValueError,))
    page = page_of("Your operation is on Monday.")
    assert (await categorised(page, judge(page), model)).categories == ["genetics"]
    assert client.keys == [key]
    client.error = ValueError("it refuses")
    assert (await categorised(page, judge(page), model)).categories == ["procedures"]
    client.error = TryLater("it is busy")
    with pytest.raises(TryLater):
        await categorised(page, judge(page), model)
    patient = classified_by(client, the_key, (), (TryLater,))
    calls = len(client.keys)
    for _ in range(2):
        assert (await categorised(page, judge(page), patient)).categories == ["procedures"]
    assert len(client.keys) == calls + 1, "one that is away is left alone"


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text_has_a_category(text: str) -> None:
    assert judge(page_of(text)).categories


@pytest.mark.parametrize("piece", ["a", "a b ", "ct ", "1 a 1,1 ", "variant ", "c.1_"])
def test_no_text_takes_long(piece: str) -> None:
    begun = time.monotonic()
    judge(page_of(piece * 200_000))
    assert time.monotonic() - begun < 10
