"""What stands in an entry: whatever bytes somebody writes, it is understood or refused with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.phoenix.streams import BadEntry, as_fields, as_text, decoded, version_of

NAMES = st.sampled_from([b"record_id", b"user_id", b"data", b"version", b"url"]) | st.binary(max_size=12)
VALUES = st.binary(max_size=40) | st.sampled_from([b"r1", b"{}", b'{"a": 1e999}', b"[]", b'{"b": "\\ud800"}', b"1"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6))
def test_any_entry_is_understood_or_refused(pairs: list[tuple[bytes, bytes]]) -> None:
    fields = [part for pair in pairs for part in pair]
    try:
        entry = decoded(fields)
    except BadEntry:
        return
    assert entry.record_id
    assert entry.user_id
    json.dumps(entry.data, allow_nan=False)


@given(st.dictionaries(st.binary(max_size=12), st.binary(max_size=40), max_size=6))
def test_a_letter_keeps_fields_to_the_letter(pairs: dict[bytes, bytes]) -> None:
    fields = [part for pair in pairs.items() for part in pair]
    assert as_fields(json.loads(json.dumps(as_text(fields)))) == fields


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=3))
def test_a_version_is_the_datas_whatever_its_order_or_blanks(data: dict[str, object]) -> None:
    texts = [json.dumps(data, indent=2).encode(), json.dumps(dict(reversed(data.items()))).encode()]
    entries = [decoded([b"record_id", b"r", b"user_id", b"u", b"data", text]) for text in texts]
    assert entries[0].version == entries[1].version == version_of("u", entries[0].data)
    assert version_of("v", data) != version_of("u", data)


def test_equal_names_are_refused_and_data_wins_over_a_flat_field() -> None:
    base = [b"record_id", b"r", b"user_id", b"u"]
    with pytest.raises(BadEntry, match="record_id stands there twice"):
        decoded([*base, b"record_id", b"s"])
    assert decoded([*base, b"n", b"1", b"data", b'{"n": 2}']).data == {"n": 2}
    assert decoded([*base, b"version", b"v-1"]).version == "v-1"
