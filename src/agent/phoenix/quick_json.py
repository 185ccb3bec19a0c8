"""JSON as `json` reads and writes it, by orjson where the two say the same: a good part of what a short job costs."""

from __future__ import annotations

import json
from typing import Any

import orjson

STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
"""For orjson to refuse some of what `json` refuses."""

DIGITS_ALIKE = bytes.maketrans(b"0123456789", b"0" * 10)
LONG_NUMBER = b"0" * 19
"""As many digits fit 64 bits; of an integer with more orjson makes a float."""


def dumps(value: Any) -> str | None:
    """What `json` would write, without spaces, at a quarter of the cost; None where it may mean something else.

    That is where there are characters beyond ASCII, integers beyond 64 bits, and nulls, which orjson makes of NaN too.
    """
    try:
        text = orjson.dumps(value, option=STRICT)
    except (TypeError, ValueError):
        return None
    return text.decode() if text.isascii() and b"null" not in text else None


def loads(text: str | bytes) -> Any:
    """What `json` would read, and its errors: what orjson refuses (NaN, lone surrogates) `json` is asked for."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if LONG_NUMBER not in raw.translate(DIGITS_ALIKE):
        try:
            return orjson.loads(raw)
        except ValueError:
            pass
    return json.loads(text)
