"""What is written of a result, whichever of two writers of JSON writes it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from saq.job import Job

from agent.phoenix.endings import _plain_json, version_of
from agent.phoenix.runs import Run

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


def test_it_is_the_usual_one() -> None:
    assert _plain_json({"outcome": "done", "n": [1, 2.5, True]}) == '{"outcome":"done","n":[1,2.5,true]}'


def test_the_version_of_arguments_is_the_same_in_every_release() -> None:
    reply = [b"saq:job:q:work:1", b"{}", b"work", b"1", b"7", None, None]
    run = Run(reply, claimed_before=0.0, lease=15.0)
    run.job = Job("work", kwargs={"b": [1, 2.5, None], "a": {"d": "é", "c": 1e16}})
    stored = "e2e7b8b64d7000785aac7406ed970c8ae6d5c51826d7cd048032adc7d484ca79"
    assert version_of(run) == stored, "markers name it: done jobs would run again"
