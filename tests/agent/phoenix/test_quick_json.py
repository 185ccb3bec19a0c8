"""One JSON, whichever of two libraries writes or reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.phoenix import quick_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text('neuNl\\"é\x7f')
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
TEXTS = (
    VALUES.map(json.dumps)
    | st.builds(json.dumps, VALUES, ensure_ascii=st.just(False))
    | st.text('{}[]",:0123456789.eE+-\\ud8NaInfity truefalsn\n\x00', max_size=12)
    | st.from_regex(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
)


@given(VALUES)
@example(2**64)
@example(-(2**63) - 1)
@example({"a": float("nan")})
@example(1e-7)
@example(5e-324)
@example("\ud800")
def test_the_quick_writer_says_what_the_slow_one_says_or_nothing(value: Any) -> None:
    text = quick_json.dumps(value)
    assert text is None or text == text.encode("ascii").decode()
    assert text is None or repr(json.loads(text)) == repr(value)


def test_it_is_the_usual_one() -> None:
    assert quick_json.dumps({"outcome": "done", "n": [1, 2.5, True]}) == '{"outcome":"done","n":[1,2.5,true]}'


def outcome(load: Any, text: str | bytes) -> str:
    try:
        return repr(load(text))
    except (ValueError, RecursionError) as error:
        return type(error).__name__


@given(TEXTS)
@example("-0")
@example("1e400")
@example("9223372036854775807")
@example("18446744073709551616")
@example("-9223372036854775809")
@example('{"a": 1, "a": 2}')
@example('"\\ud800"')
@example('"\ud800"')
@example("\ufeff1")
@example("[" * 100_000)
@example("[" * 900 + "]" * 900)
def test_the_quick_reader_reads_what_the_slow_one_reads_and_refuses_what_it_refuses(text: str) -> None:
    assert outcome(quick_json.loads, text) == outcome(json.loads, text)


@pytest.mark.parametrize("text", [b'{"a": "\xff"}', '{"a": 1}'.encode("utf-16"), b"\xef\xbb\xbf1", b""])
def test_bytes_are_read_as_json_reads_them(text: bytes) -> None:
    assert outcome(quick_json.loads, text) == outcome(json.loads, text)
