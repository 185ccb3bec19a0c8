"""Printed values mean what a reader of the page would say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.documents.ranges import parse_range, unit_of_range
from pipelines.documents.values import decimal_sign, number, parse_value


@pytest.mark.parametrize(
    ("printed", "decimal", "number", "comparator"),
    [
        ("5.4", ".", 5.4, None),
        ("1,2", ".", 1.2, None),
        ("1.2", ",", 1.2, None),
        ("<0.5", ".", 0.5, "<"),
        ("< 0,5", ",", 0.5, "<"),
        ("≥ 90", ".", 90, ">="),
        ("> OR = 60", ".", 60, ">="),
        ("kleiner als 5", ",", 5, "<"),
        ("1.2e3", ".", 1200, None),
        ("1,2 x 10^3", ",", 1200, None),
        ("2.4 × 10⁴", ".", 24000, None),
        ("1,234", ".", 1234, None),
        ("1,234", ",", 1.234, None),
        ("1.234", ",", 1234, None),
        ("1.234", ".", 1.234, None),
        ("0,123", ".", 0.123, None),
        ("1.234,5", ".", 1234.5, None),
        ("1,234.5", ",", 1234.5, None),
        ("12 500", ",", 12500, None),
        ("2,45,000", ".", 245000, None),
        ("1,23,45,678.5", ",", 12345678.5, None),
        ("-2.5", ".", -2.5, None),
        (".5", ".", 0.5, None),
    ],
)
def test_numbers(printed: str, decimal: str, number: float, comparator: str | None) -> None:
    value = parse_value(printed, decimal)  # type: ignore[arg-type]
    assert value is not None
    assert (value.printed, value.kind, value.number, value.comparator) == (printed, "number", number, comparator)


@pytest.mark.parametrize(
    ("printed", "kind", "number", "high", "text"),
    [
        ("0-2", "interval", 0, 2, None),
        ("1:80", "titre", 80, None, None),
        ("<1:10", "titre", 10, None, None),
        ("Negative", "text", None, None, "negative"),
        ("négatif", "text", None, None, "negative"),
        ("nicht nachweisbar", "text", None, None, "not detected"),
        ("Non-Reactive", "text", None, None, "not reactive"),
        ("2+", "text", None, None, "2+"),
        ("+++", "text", None, None, "+++"),
    ],
)
def test_values_that_are_no_plain_number(
    printed: str, kind: str, number: float | None, high: float | None, text: str | None
) -> None:
    value = parse_value(printed)
    assert value is not None
    assert (value.kind, value.number, value.high, value.text) == (kind, number, high, text)


@pytest.mark.parametrize(
    "printed",
    ["", "abc", "2024-03-05", "12/03/2024", "08:30", "5.", "1.2.3", "(555) 123-4567", "3-1", "36D0912345", "1,2,3"],
)
def test_what_is_no_value_is_none(printed: str) -> None:
    assert parse_value(printed) is None


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_the_grammar_and_what_is_printed_is_kept(printed: str) -> None:
    for decimal in (".", ","):
        value = parse_value(printed, decimal)  # type: ignore[arg-type]
        assert value is None or value.printed == printed
        found = parse_range(printed, decimal)  # type: ignore[arg-type]
        assert found is None or found.printed == printed


@given(st.floats(0, 1e6), st.integers(0, 4), st.sampled_from([".", ","]), st.sampled_from(["", "<", ">", "≤", ">="]))
def test_a_number_survives_being_printed(value: float, decimals: int, decimal: str, sign: str) -> None:
    printed = f"{value:.{decimals}f}"
    parsed = parse_value(sign + printed.replace(".", decimal), decimal)  # type: ignore[arg-type]
    assert parsed is not None
    assert parsed.number == float(printed)


@given(st.integers(0, 10**9), st.sampled_from([".", ","]))
def test_thousands_are_parted_by_what_is_not_the_decimal_sign(value: int, decimal: str) -> None:
    grouped = f"{value:,}".replace(",", "." if decimal == "," else ",")
    assert number(grouped, decimal) == value  # type: ignore[arg-type]


def test_the_decimal_sign_is_the_documents() -> None:
    assert decimal_sign(["Kalium 4,2 mmol/l", "Leukozyten 6.500", "am 05.03.2024", "CRP 0,3"]) == ","
    assert decimal_sign(["WBC 5,400", "Glucose 5.4", "version 1.2.3"]) == "."
    assert decimal_sign([]) == "."


@pytest.mark.parametrize(
    ("printed", "low", "high"),
    [
        ("12.0-15.5", 12, 15.5),
        ("[3.5 – 5.1]", 3.5, 5.1),
        ("(3.5-5.1 mmol/L)", 3.5, 5.1),
        ("70 - 99 mg/dL", 70, 99),
        ("120 à 155", 120, 155),
        ("bis 40", None, 40),
        ("<150", None, 150),
        (">= 60", 60, None),
        ("M: 13-17", 13, 17),
        ("-2 - 2", -2, 2),
    ],
)
def test_reference_ranges(printed: str, low: float | None, high: float | None) -> None:
    found = parse_range(printed)
    assert found is not None
    assert (found.low, found.high) == (low, high)


def test_the_unit_of_a_range_is_told_apart() -> None:
    assert unit_of_range("70 - 99 mg/dL") == "mg/dL"
    assert unit_of_range("(3.5-5.1 mmol/L)") == "mmol/L"
    assert unit_of_range("70 - 99") is None
