"""Text out of other people's tags."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music import text


@given(st.text(st.characters(codec=None), max_size=300))
def test_any_text_becomes_storable_and_stays_so(dirty: str) -> None:
    clean = text.clean(dirty)
    json.loads(json.dumps(clean)).encode("utf-8")
    assert unicodedata.is_normalized("NFC", clean)
    assert all(unicodedata.category(c) not in ("Cc", "Cs") for c in clean)
    assert text.clean(clean) == clean


def test_decomposed_accents_lone_surrogates_and_controls_are_mended() -> None:
    assert text.clean("Bjo\u0308rk\x00\ud800 \n live") == "Björk live"


@pytest.mark.parametrize(
    ("tag", "number"), [("3/12", 3), ("03", 3), ("A1", None), ("0", None), ("", None), ("99999", None)]
)
def test_track_numbers(tag: str, number: int | None) -> None:
    assert text.leading_number(tag) == number


@pytest.mark.parametrize(("tag", "year"), [("2011-07-19", 2011), ("19.07.1999", 1999), ("0000", None), ("12345", None)])
def test_years(tag: str, year: int | None) -> None:
    assert text.year(tag) == year


@pytest.mark.parametrize(
    ("tag", "bpm"), [("128", 128), ("127,9", 127.9), ("174.00 BPM", 174), ("0", None), ("fast", None)]
)
def test_tempi(tag: str, bpm: float | None) -> None:
    assert text.tempo(tag) == bpm
