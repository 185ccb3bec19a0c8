"""Nodes of a frozen TensorFlow graph, written out: enough for the converters, and for a test's graph of three nodes.

Field numbers are those of tensorflow/core/framework: graph.proto, node_def.proto, attr_value.proto, tensor.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipelines.music.models.wire import fields, part, parts, put

FLOAT, INT32, BOOL = 1, 3, 10
"""types.proto: DataType."""

PRODUCER = 27
"""The version of TensorFlow's graphs in which all the ops used here mean what they mean."""

Attributes = dict[str, bytes]


@dataclass(frozen=True)
class Node:
    """One node. `attributes`: name -> an encoded AttrValue."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    attributes: Attributes = field(default_factory=dict)

    def encode(self) -> bytes:
        """A field `node` of GraphDef."""
        attributes = (put(5, put(1, key.encode()) + put(2, value)) for key, value in self.attributes.items())
        inputs = (put(3, name.encode()) for name in self.inputs)
        return put(1, put(1, self.name.encode()) + put(2, self.op.encode()) + b"".join([*inputs, *attributes]))

    @classmethod
    def decode(cls, data: bytes) -> Node:
        """From a NodeDef."""
        return cls(
            name=part(data, 1).decode(),
            op=part(data, 2).decode(),
            inputs=tuple(value.decode() for value in parts(data, 3)),
            attributes={part(entry, 1).decode(): part(entry, 2) for entry in parts(data, 5)},
        )


def encode_graph(nodes: Iterable[Node]) -> bytes:
    """A GraphDef."""
    return b"".join(node.encode() for node in nodes) + put(4, put(1, PRODUCER))


def decode_graph(data: bytes) -> list[Node]:
    """The nodes of a GraphDef. Raises BadMessage."""
    return [Node.decode(value) for number, value in fields(data) if number == 1 and isinstance(value, bytes)]


def of_type(kind: int) -> bytes:
    return put(6, kind)


def of_bool(value: bool) -> bytes:
    return put(5, int(value))


def of_text(value: str) -> bytes:
    return put(2, value.encode())


def of_whole(value: int) -> bytes:
    return put(3, value)


def of_list(values: Sequence[int]) -> bytes:
    return put(1, b"".join(put(3, value) for value in values))


def of_shape(*sizes: int) -> bytes:
    """-1: any size."""
    return put(7, _shape(sizes))


def of_tensor(kind: int, shape: Sequence[int], content: bytes) -> bytes:
    """`content`: the values, row by row, little-endian."""
    return put(8, put(1, kind) + put(2, _shape(shape)) + put(4, content))


def _shape(sizes: Sequence[int]) -> bytes:
    return b"".join(put(2, put(1, size)) for size in sizes)


def constant(name: str, kind: int, shape: Sequence[int], content: bytes) -> Node:
    """A node that is a value."""
    return Node(name, "Const", (), {"dtype": of_type(kind), "value": of_tensor(kind, shape, content)})


def needed(nodes: Iterable[Node], outputs: Iterable[str], stop: Iterable[str] = ()) -> list[Node]:
    """The nodes that `outputs` depend on, in their order; what `stop` depends on is left out. Raises KeyError."""
    by_name = {node.name: node for node in nodes}
    ends = frozenset(stop)
    wanted: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop().lstrip("^").partition(":")[0]
        if name in wanted:
            continue
        wanted.add(name)
        if name not in ends:
            waiting += by_name[name].inputs
    return [node for name, node in by_name.items() if name in wanted]
