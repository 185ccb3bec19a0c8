"""What every child process does first, and how it tells what a function came to. Loads little, for all pay for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import pickle
import re
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.symptoms import Symptom, causes, symptom_of
from pipelines.errors import ChildDied, TaskError
from pipelines.lifeline import die_with_parent

OOM_SCORE_FIRST = 1000
"""oom_score_adj(5): the kernel ends these before anything else when memory ends."""

STOPS = (signal.SIGTERM, signal.SIGINT)
"""What a worker is asked to end with, and its children do not hear."""

NICER = 10
"""Steps of nice(2) below the worker: where cores are scarce, what takes a moment goes before what takes minutes."""


OF_ITSELF = 1000
"""In place of exit code 0: the job ended its process as if all were well."""


class ChildTimeout(TimeoutError):
    """The function ran past its time and its process was killed."""


class ChildError(Exception):
    """The function raised something that is not a `TaskError`; holds its type, text and traceback as text.

    Foreign exceptions stay in the child: some cannot be pickled, and one that fails to unpickle would break the pool.
    `symptom`: what it told of the service that the function called (`agent.symptoms`).
    """

    def __init__(self, said: str, symptom: Symptom | None = None) -> None:
        super().__init__(said, symptom)
        self.symptom = symptom

    def __str__(self) -> str:
        return str(self.args[0])


def settle_in(parent: int, memory_bytes: int) -> None:
    """End when the worker does, be the kernel's first choice, yield, stay under the cap.

    SIGTERM and SIGINT may go to all of a worker's processes at once (systemd, Ctrl-C): what becomes of the jobs is the
    worker's to decide. The programs that a child starts ignore them likewise.

    RLIMIT_DATA counts private writable memory (heap, anonymous maps, thread stacks), since Linux 4.7: unlike
    RLIMIT_AS it leaves out mapped files and libraries, which TensorFlow maps by the gigabyte.
    """
    die_with_parent(parent)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_FIRST), "ascii")
    os.nice(NICER)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def guarded(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `function` returns, or a coroutine function comes to; what it raises as a TaskError or ChildError."""
    try:
        result = function(*args, **kwargs)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        pickle.dumps(result)
        return result
    except Exception as error:
        if any(_is_out_of_memory(one) for one in causes(error)):
            raise ChildDied("the job passed its child process's memory cap (PHAZE_CHILD_MEMORY_MB)") from None
        if isinstance(error, TaskError | ChildError):
            raise
        said = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        raise ChildError(said, symptom_of(error)) from None


_OUT_OF_MEMORY = re.compile(r"bad_alloc|cannot allocate memory|failed to map segment", re.I)
"""What C++ says through a binding, under any Python type (essentia: ValueError), and what the loader says."""


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    foreign = isinstance(error, RuntimeError | ValueError | ImportError)
    return isinstance(error, MemoryError) or (foreign and _OUT_OF_MEMORY.search(str(error)) is not None)


_AT_THE_CAP = ", as native code does at its memory cap (PHAZE_CHILD_MEMORY_MB) or by a fault of its own"
_HINTS: dict[int, str] = {
    signal.SIGABRT: _AT_THE_CAP,
    signal.SIGSEGV: _AT_THE_CAP,
    signal.SIGTRAP: _AT_THE_CAP,
    signal.SIGKILL: ", as the kernel does where memory runs out (fewer slots, or more memory for the worker)",
}
"""Signal -> what it most often means here. Python code that meets the cap says so itself."""


def describe(exitcode: int | None) -> str:
    """How a process ended: `was ended by SIGKILL`, `ended with exit code 3`."""
    if exitcode is not None and exitcode < 0:
        try:
            name = signal.Signals(-exitcode).name
        except ValueError:
            name = f"signal {-exitcode}"
        return f"was ended by {name}{_HINTS.get(-exitcode, '')}"
    return f"ended with exit code {0 if exitcode == OF_ITSELF else exitcode}"
