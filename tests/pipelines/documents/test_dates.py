"""Which day a result is of, in files that hold one report and in those that hold several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.documents.dates import Label, Taken, parse_date
from pipelines.documents.labs import biomarkers
from tests.pipelines.documents.pages import page

GLUCOSE = "Test | Result | Unit | Reference\nGlucose | 95 | mg/dL | 70-99"
SODIUM = "Test | Result | Unit | Reference\nSodium | 140 | mmol/L | 135-145"


def days(*texts: str) -> list[str]:
    return [found.date for found in biomarkers([page(text, number) for number, text in enumerate(texts, 1)])]


def test_a_page_has_the_day_that_it_names_and_else_that_of_the_page_before() -> None:
    pages = (f"Collected: 01-Jan-2024\n{GLUCOSE}", SODIUM, f"Collected: 05-Feb-2024\n{GLUCOSE}", SODIUM)
    assert days(*pages) == ["2024-01-01", "2024-01-01", "2024-02-05", "2024-02-05"]


def test_a_day_at_a_pages_foot_is_of_all_of_it() -> None:
    pages = (f"{GLUCOSE}\n\n\n\nCollected: 01-Jan-2024", f"{SODIUM}\n\n\n\nCollected: 05-Feb-2024")
    assert days(*pages) == ["2024-01-01", "2024-02-05"]


def test_of_two_reports_on_a_page_each_has_its_own_day() -> None:
    assert days(f"Collected: 01-Jan-2024\n{GLUCOSE}\nCollected: 05-Feb-2024\n{SODIUM}") == ["2024-01-01", "2024-02-05"]


def test_two_days_above_one_table_are_neither() -> None:
    assert days(f"Urine collected: 01-Jan-2024\nBlood collected: 02-Jan-2024\n{GLUCOSE}") == [""]


def test_the_day_of_an_earlier_sample_is_nobodys() -> None:
    comment = "The previous sample, collected 12 Dec 2023, gave the same."
    assert days(f"Collected: 01-Jan-2024\n{GLUCOSE}\n{comment}\nSodium | 140 | mmol/L | 135-145") == ["2024-01-01"] * 2


@pytest.mark.parametrize("printed", ["03-Apr-24", "03-Apr-24 08:15", "03/Apr/2024", "03/APR/24", "3 Apr 2024 08:15"])
def test_a_month_by_name_can_be_read_in_one_way(printed: str) -> None:
    assert days(f"Collected: {printed}\n{GLUCOSE}") == ["2024-04-03"]


@pytest.mark.parametrize(
    ("heads", "found"),
    [
        ("13-Jan-23 | 14-Feb-24", ["2023-01-13", "2024-02-14"]),
        ("03/04/2023 | 05/06/2024", ["", ""]),
        ("Jan 2023 | Feb 2024", ["", ""]),
        ("2023 | 2024", ["", ""]),
        ("01/2023 | 02/2024", ["", ""]),
    ],
)
def test_under_days_each_result_has_its_columns_day_and_never_the_documents(heads: str, found: list[str]) -> None:
    text = f"Collected: 14-Feb-2024\nTest | {heads} | Unit | Reference\nGlucose | 88 | 95 | mg/dL | 70-99"
    both = biomarkers([page(text)])
    assert [fact.value.printed for fact in both] == ["88", "95"]
    assert [fact.date for fact in both] == found


@pytest.mark.parametrize(
    "line", ["Collected:    Received: 02-Jan-2024", "Entnahme:  Eingang: 02.01.2024", "Prélevé le  Né le 13/01/1960"]
)
def test_a_label_without_a_day_does_not_take_the_next_ones(line: str) -> None:
    assert days(f"{line}\n{GLUCOSE}") == [""]
    assert days(f"{line}\n{GLUCOSE}\nCollected: 01-Jan-2024") == ["2024-01-01"]


def test_a_title_with_a_year_heads_no_table() -> None:
    found = biomarkers([page("Collected: 14-Feb-2024\nAnalysis | 2024\nSodium | 140 | mmol/L | 135-145")])
    assert [(fact.value.printed, fact.date) for fact in found] == [("140", "2024-02-14")]


@pytest.mark.parametrize("printed", ["3 May 12:00", "12-May-12:30", "3-May-2", "8-OHD-24"])
def test_no_hour_is_a_year(printed: str) -> None:
    assert parse_date(printed, "dmy") == ""


@given(
    st.lists(st.builds(Label, st.integers(1, 4), st.integers(0, 20), st.sampled_from(["2024-01-01", "2024-01-02"]))),
    st.integers(1, 5),
    st.integers(0, 25),
)
def test_a_day_is_never_taken_from_below_another_page(labels: list[Label], number: int, line: int) -> None:
    taken = Taken(tuple(sorted(labels, key=Label.place)))
    reach = {label.day for label in labels if label.page <= number}
    assert taken.on(number, line) in {"", *reach, *({labels[0].day} if len({one.day for one in labels}) == 1 else ())}
