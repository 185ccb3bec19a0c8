"""Messages and graphs are written and read back the same, and broken ones are told."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.music.models.checkpoint import TABLE_MAGIC, read_index
from pipelines.music.models.graph import (
    FLOAT,
    Node,
    constant,
    decode_graph,
    encode_graph,
    needed,
    of_bool,
    of_type,
)
from pipelines.music.models.wire import BadMessage, fields, put, read_varint, write_varint

values = st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=40))


@given(st.lists(st.tuples(st.integers(1, 2**20), values), max_size=12))
def test_a_message_reads_back_as_it_was_written(message: list[tuple[int, int | bytes]]) -> None:
    assert list(fields(b"".join(put(number, value) for number, value in message))) == message


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_number_reads_back(number: int) -> None:
    encoded = write_varint(number)
    assert read_varint(encoded, 0) == (number % 2**64, len(encoded))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_told_not_to_be(data: bytes) -> None:
    try:
        for number, _ in fields(data):
            assert number >= 0
    except BadMessage:
        pass


def test_a_graph_reads_back() -> None:
    nodes = [
        Node("in", "Placeholder", (), {"dtype": of_type(FLOAT)}),
        constant("w", FLOAT, (2,), struct.pack("<2f", 1, 2)),
        Node("out", "Mul", ("in", "w"), {"T": of_type(FLOAT), "flag": of_bool(True)}),
    ]
    assert decode_graph(encode_graph(nodes)) == nodes


def test_only_what_an_output_needs_is_kept() -> None:
    nodes = [Node("a", "X"), Node("b", "X", ("a",)), Node("c", "X", ("b:1", "^a")), Node("d", "X", ("c",))]
    assert [node.name for node in needed(nodes, ["c"])] == ["a", "b", "c"]
    assert [node.name for node in needed(nodes, ["d"], stop=["c"])] == ["c", "d"]
    with pytest.raises(KeyError):
        needed(nodes, ["nowhere"])


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\xff" * 40 + TABLE_MAGIC, b"\0" * 40 + TABLE_MAGIC])
def test_an_index_that_is_none_is_told(data: bytes) -> None:
    with pytest.raises((BadMessage, struct.error)):
        read_index(data)
