"""A checkpoint of TensorFlow 1 -> a frozen graph: variables become constants, training is switched off.

A checkpoint is three files: `.meta`, a MetaGraphDef; `.index`, a table of the variables in LevelDB's format
(tensorflow/core/lib/io/format.cc, without compression); `.data-00000-of-00001`, their values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.music.models.graph import (
    BOOL,
    FLOAT,
    Node,
    constant,
    decode_graph,
    encode_graph,
    needed,
    of_shape,
    of_type,
)
from pipelines.music.models.wire import BadMessage, part, parts, read_varint, whole

TABLE_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER = 48
"""Bytes at the end of a table: two block handles, filled up, and the magic number."""

VARIABLES = ("VariableV2", "Variable")


@dataclass(frozen=True)
class Variable:
    """Where a variable's values lie in the data file: BundleEntryProto."""

    kind: int
    shape: tuple[int, ...]
    offset: int
    size: int

    @classmethod
    def decode(cls, data: bytes) -> Variable:
        dimensions = parts(part(data, 2), 2)
        return cls(whole(data, 1), tuple(whole(size, 1) for size in dimensions), whole(data, 4), whole(data, 5))


def freeze(folder: Path, outputs: Sequence[str], *, training: str, start: str = "", shape: Sequence[int] = ()) -> bytes:
    """The graph of the checkpoint in `folder`, as far as `outputs` need it; `training` becomes the constant False.

    `start`: a node that becomes the input, of `shape` (-1: any); what it would need is left out. Raises BadMessage,
    KeyError (no such output), OSError.
    """
    nodes = decode_graph(part((folder / ".meta").read_bytes(), 2))
    values = (folder / ".data-00000-of-00001").read_bytes()
    index = read_index((folder / ".index").read_bytes())
    variables = [node.name for node in nodes if node.op in VARIABLES]
    frozen = []
    for node in needed(nodes, outputs, stop=[*variables, training, start]):
        if node.name == training:
            frozen.append(constant(node.name, BOOL, (), b"\0"))
        elif node.name == start:
            frozen.append(Node(start, "Placeholder", (), {"dtype": of_type(FLOAT), "shape": of_shape(*shape)}))
        elif node.op in VARIABLES:
            found = index[node.name]
            content = values[found.offset : found.offset + found.size]
            if len(content) != found.size:
                raise BadMessage(f"the values of {node.name} end beyond the data file")
            frozen.append(constant(node.name, found.kind, found.shape, content))
        else:
            kept = {key: value for key, value in node.attributes.items() if key != "_class"}
            frozen.append(Node(node.name, node.op, node.inputs, kept))
    return encode_graph(frozen)


def read_index(data: bytes) -> dict[str, Variable]:
    """name -> where its values are. Raises BadMessage."""
    footer = data[-FOOTER:]
    if footer[-8:] != TABLE_MAGIC:
        raise BadMessage("the index of the checkpoint is no table")
    at = 0
    for _ in range(2):  # the handle of the meta index, which is not needed
        _, at = read_varint(footer, at)
    found = {}
    for _, handle in _entries(data, *_handle(footer, at)):
        for key, value in _entries(data, *_handle(handle, 0)):
            if key:  # the empty key is the table's own header
                found[key.decode()] = Variable.decode(value)
    return found


def _handle(data: bytes, at: int) -> tuple[int, int]:
    offset, at = read_varint(data, at)
    return offset, read_varint(data, at)[0]


def _entries(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of one block; a key repeats the beginning of the one before."""
    if offset + size >= len(data) or data[offset + size] != 0:
        raise BadMessage("a block of the checkpoint's index is compressed, or beyond its end")
    block = data[offset : offset + size]
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 - 4 * restarts
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        length, at = read_varint(block, at)
        key = key[:shared] + block[at : at + fresh]
        at += fresh
        yield key, block[at : at + length]
        at += length
