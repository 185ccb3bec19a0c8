"""How far work is, said from wherever it runs: a child process, a thread, or a plain script where nobody listens.

    say(0.4, "24:00 of 60:00")

Whoever runs a function sets the listener: `listening` for threads and coroutines, `set_listener` for a whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float, str], None]

_here: ContextVar[Listener | None] = ContextVar("listener", default=None)
_process: Listener | None = None


def say(fraction: float, note: str = "") -> None:
    """Say how far the work is: `fraction` in 0..1, `note` in a few words. Costs nothing where nobody listens."""
    listener = _here.get() or _process
    if listener is not None:
        listener(min(max(fraction, 0.0), 1.0), note)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear what is said inside, also by threads that are given this context."""
    token = _here.set(listener)
    try:
        yield
    finally:
        _here.reset(token)


def set_listener(listener: Listener | None) -> None:
    """Let `listener` hear what this process says, in every thread."""
    global _process
    _process = listener
