"""What an exception tells of the service that a task called: the HTTP status it answered, or that it was out of reach.

Client libraries each have their own types; they are known by name, so that none of them need be installed or loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

Symptom = int | Literal["unreachable"]

UNREACHABLE = {
    "builtins": {"ConnectionError", "TimeoutError"},
    "httpx": {"TransportError"},
    "httpx2": {"TransportError"},
    "openai": {"APIConnectionError"},
    "anthropic": {"APIConnectionError"},
    "requests": {"ConnectionError", "Timeout"},
    "urllib": {"URLError"},
    "urllib3": {"TimeoutError", "NewConnectionError", "ProtocolError"},
    "aiohttp": {"ClientConnectionError"},
}
"""Package -> its types that stand, with all that derive from them, for a service that was not reached."""

DEEPEST = 8
"""Causes that are looked at behind an exception."""


def symptom_of(error: BaseException) -> Symptom | None:
    """An HTTP status from 400 on, `unreachable`, or None for what says nothing of a service.

    What a library raised `from` another exception stands for that one as well.
    """
    for one in causes(error):
        told = getattr(one, "symptom", None)
        if told == "unreachable" or _is_status(told):
            return told
        if isinstance(one, Exception) and (status := _status(one)) is not None:
            return status
        if any(kind.__name__ in UNREACHABLE.get(kind.__module__.partition(".")[0], ()) for kind in type(one).__mro__):
            return "unreachable"
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, and what it was raised from."""
    one: BaseException | None = error
    for _ in range(DEEPEST):
        if one is None:
            return
        yield one
        one = one.__cause__


def _status(error: Exception) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            found: Any = getattr(holder, name, None)
            if _is_status(found):
                return int(found)
    return None


def _is_status(value: Any) -> bool:
    return isinstance(value, int) and 400 <= value <= 599
