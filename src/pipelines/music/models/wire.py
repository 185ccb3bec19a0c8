"""As much of protocol buffers as a graph of TensorFlow 1 needs: fields of a message, read and written.

The encoding is https://protobuf.dev/programming-guides/encoding/. A message is an iterable of (number, value): an int
for varints, bytes for everything else.
"""

from __future__ import annotations

from collections.abc import Iterator

Field = tuple[int, int | bytes]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_BYTES = 10
"""A varint of 64 bits has no more."""


class BadMessage(ValueError):
    """The bytes are no message, or end too early."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it)."""
    value = 0
    for shift in range(0, 7 * MOST_BYTES, 7):
        if at >= len(data):
            raise BadMessage("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise BadMessage("a number of more than ten bytes")


def write_varint(value: int) -> bytes:
    """Negative values as protobuf writes them: two's complement in 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a message in order. Raises BadMessage."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = read_varint(data, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise BadMessage(f"field {number} is of kind {kind}")
        if at + size > len(data):
            raise BadMessage(f"field {number} ends beyond the message")
        yield number, data[at : at + size]
        at += size


def whole(data: bytes, number: int, default: int = 0) -> int:
    """The last value of a varint field."""
    return next((value for n, value in reversed(list(fields(data))) if n == number and isinstance(value, int)), default)


def parts(data: bytes, number: int) -> list[bytes]:
    """All values of a bytes field."""
    return [value for n, value in fields(data) if n == number and isinstance(value, bytes)]


def part(data: bytes, number: int) -> bytes:
    """The last value of a bytes field; empty if there is none."""
    return (parts(data, number) or [b""])[-1]


def put(number: int, value: int | bytes) -> bytes:
    """One field."""
    if isinstance(value, int):
        return write_varint(number << 3 | VARINT) + write_varint(value)
    return write_varint(number << 3 | BYTES) + write_varint(len(value)) + value
