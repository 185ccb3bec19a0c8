"""What the tests run in child processes; top-level, because spawned children import it."""

from __future__ import annotations

import ctypes
import errno
import os
import time

from pipelines.errors import InputRejected, RecordNotFoundError
from pipelines.saying import say


def add(left: int, right: int) -> int:
    return left + right


def pid() -> int:
    return os.getpid()


def environment() -> dict[str, str]:
    return dict(os.environ)


def oom_score_adj() -> int:
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:  # noqa: PTH123 - as plain as can be
        return int(file.read())


def niceness() -> int:
    """How much this process yields."""
    return os.nice(0)


def crash() -> None:
    ctypes.string_at(0)


def hear_that_memory_ended(how: str) -> None:
    """As libraries tell of it: C++ through a binding, the system, the loader, and what hides such a cause."""
    if how == "c++":
        raise ValueError("std::bad_alloc")
    if how == "system":
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if how == "loader":
        raise ImportError("libx.so.1: failed to map segment from shared object")
    raise InputRejected("corrupt", "it cannot be read") from MemoryError()


def exit_at_once(code: int) -> None:
    os._exit(code)


def eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(32 * 2**20))


def spin() -> None:
    while True:
        pass


def spin_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def spin_in_c(seconds: float) -> None:
    """Holds the GIL and the interpreter, as essentia does: no signal handler of Python's runs meanwhile."""
    libc = ctypes.PyDLL(None)
    libc.usleep(int(seconds * 1e6))


def nap(seconds: float) -> str:
    time.sleep(seconds)
    return "rested"


class Odd(Exception):
    """Cannot be unpickled: its constructor wants two arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)
        self.second = second


def raise_odd() -> None:
    raise Odd(1, 2)


def reject() -> None:
    raise InputRejected("too-short", "0.2 s")


def lose() -> None:
    raise RecordNotFoundError("gone.mp3")


def unpicklable() -> object:
    return lambda: None


def say_steps(steps: int, pause: float) -> str:
    for step in range(1, steps + 1):
        say(step / steps, f"step {step}")
        time.sleep(pause)
    return "said"


def say_a_lot() -> str:
    for step in range(100_000):
        say(step / 100_000, "x" * 10_000)
    return "said"


def say_and_crash() -> None:
    say(0.5, "half")
    crash()
