"""Retry-After as servers write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.retry_after import retry_after

DATE = "Mon, 01 Jan 2029 10:00:00 GMT"


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Mon, 01 Jan 2029 10:00:30 GMT", 30.0),
        ("Mon, 01 Jan 2029 09:00:00 GMT", 0.0),
        ("99999999999999", 999999999.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("\N{SUPERSCRIPT TWO}", None),
    ],
)
def test_seconds_and_dates_are_understood_and_nothing_else(said: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": said, "date": DATE}) == seconds


def test_a_date_counts_only_beside_the_servers_own() -> None:
    assert retry_after({"retry-after": DATE}) is None
    assert retry_after({}) is None


@given(st.text(), st.text())
def test_any_header_is_a_wait_or_none(said: str, date: str) -> None:
    found = retry_after({"retry-after": said, "date": date})
    assert found is None or found >= 0
