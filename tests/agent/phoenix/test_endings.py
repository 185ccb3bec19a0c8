"""What is written of a result, whichever of two writers of JSON writes it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from agent.phoenix.endings import _plain_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text('neuNl\\"é\x7f')
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@given(VALUES)
@example(2**64)
@example(-(2**63) - 1)
@example({"a": float("nan")})
@example(1e-7)
@example(5e-324)
@example("\ud800")
def test_the_quick_writer_says_what_the_slow_one_says_or_nothing(value: Any) -> None:
    text = _plain_json(value)
    assert text is None or text == text.encode("ascii").decode()
    assert text is None or repr(json.loads(text)) == repr(value)


def test_it_is_the_usual_one_and_its_keys_are_sorted_where_that_is_wanted() -> None:
    import orjson

    assert _plain_json({"outcome": "done", "n": [1, 2.5, True]}) == '{"outcome":"done","n":[1,2.5,true]}'
    assert _plain_json({"b": 1, "a": 2}, orjson.OPT_SORT_KEYS) == '{"a":2,"b":1}'
