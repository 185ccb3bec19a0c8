"""Two dates of birth are two persons, in whatever language and order they are printed."""

from __future__ import annotations

import pytest

from pipelines.documents.parser import parse_pages
from pipelines.documents.persons import births, doubt
from tests.pipelines.documents.pages import page


@pytest.mark.parametrize(
    "line",
    [
        "DOB: 03/04/1980   Sex: F",
        "Date of Birth 3 Apr 1980 (44 yrs)",
        "Geb.-Datum: 03.04.1980",
        "Patient: Ann Example, geb. 03.04.1980",
        "Born: Apr 3, 1980",
        "Né(e) le : 03/04/1980",
        "Fecha de nacimiento: 1980-04-03",
        "Collected: 12/05/2024   D.O.B. 03/04/80",
        "Дата рождения: 03.04.1980",
        "出生日期：1980-04-03",
    ],
)
def test_a_date_of_birth_is_known_by_its_label(line: str) -> None:
    assert births([page(line)]) == {"1980-03-04": [1]}


@pytest.mark.parametrize(
    "line",
    [
        "Collected: 03/04/1980",
        "Mother's DOB: 01/01/1950",
        "DOB:       Collected: 01/02/2020",
        "DOB  Collected 01/02/2020",
        "birth weight 3.2 kg",
    ],
)
def test_other_dates_are_none(line: str) -> None:
    assert births([page(line)]) == {}


def test_one_person_whose_date_laboratories_write_in_other_ways_is_one() -> None:
    found = births([page("DOB: 04/03/1980"), page("Geburtsdatum: 03.04.1980", number=2)])
    assert found == {"1980-03-04": [1, 2]}
    assert doubt(found) == ""


async def test_a_document_of_two_persons_is_partial_and_names_the_pages() -> None:
    parsed = await parse_pages([page("DOB: 04/03/1980"), page("nothing", number=2), page("DOB: 07/09/1951", number=3)])
    assert (parsed.outcome, parsed.reason) == ("partial", "several-persons")
    assert parsed.warnings == ["pages 1, 3 print 2 dates of birth: its results may be of several persons"]
    alone = await parse_pages([page("DOB: 04/03/1980\nDOB: 07/09/1951")])
    assert alone.warnings == ["page 1 prints 2 dates of birth: its results may be of several persons"]
