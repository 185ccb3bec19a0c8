"""Child processes for work that may block, crash, hang or eat memory: one job is lost then, never the worker.

One slot is one single-process pebble pool, because processes that share a pool share a lock, and a process that the
kernel kills may die holding it. Slots start when first needed and are replaced after `max_jobs` calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import multiprocessing.context
import os
import pickle
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import structlog
from pebble import ProcessExpired, ProcessPool

from agent.metrics import CHILDREN_ENDED
from pipelines.errors import ChildDied, TaskError
from pipelines.lifeline import die_with_parent
from pipelines.saying import Listener, set_listener

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

OOM_SCORE_FIRST = 1000
"""oom_score_adj(5): the kernel ends these before anything else when memory ends."""

STOPS = (signal.SIGTERM, signal.SIGINT)
"""What a worker is asked to end with, and its children do not hear."""


MOST_SAID = 400
"""Bytes of one thing said: far less than PIPE_BUF, so that a pipe takes it whole or not at all (pipe(7))."""

NICER = 10
"""Steps of nice(2) below the worker: where cores are scarce, what takes a moment goes before what takes minutes."""


class ChildTimeout(TimeoutError):
    """The function ran past its time and its process was killed."""


class ChildError(Exception):
    """The function raised something that is not a `TaskError`; holds its type, text and traceback as text.

    Foreign exceptions stay in the child: some cannot be pickled, and one that fails to unpickle would break the pool.
    """


class _Child(multiprocessing.context.SpawnProcess):
    """A child that its worker alone ends: what pebble says politely, and a child takes no notice of, is a kill."""

    def start(self) -> None:
        """From its first moment: what is held back here, `prepare_child` throws away."""
        resource_tracker.ensure_running()  # later its start would lift the mask
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def terminate(self) -> None:
        self.kill()


class _Spawn(multiprocessing.context.SpawnContext):
    Process = _Child


def prepare_child(parent: int, memory_bytes: int, said: Connection | None = None) -> None:
    """Runs first in each child: end when the worker does or says, be the kernel's first choice, yield, stay under the
    cap;
    what the job says of its progress goes into `said`.

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
    if said is not None:
        os.set_blocking(said.fileno(), False)
        set_listener(lambda fraction, note: _write(said, fraction, note))


def _write(said: Connection, fraction: float, note: str) -> None:
    """A line into the pipe; nothing where it is full or gone, because work never waits for who watches it."""
    line = json.dumps([fraction, note[: MOST_SAID // 8]]).encode() + b"\n"
    with contextlib.suppress(OSError):
        os.write(said.fileno(), line[-MOST_SAID:])


def _guarded(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        result = function(*args, **kwargs)
        pickle.dumps(result)
        return result
    except TaskError:
        raise
    except MemoryError:
        raise ChildDied("the job passed its child process's memory cap (PHAZE_CHILD_MEMORY_MB)") from None
    except Exception as error:
        raise ChildError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from None


class Slot:
    """One child process after another, and the pipe through which they say how far they are."""

    def __init__(self, memory: int, max_jobs: int, context: BaseContext) -> None:
        self._hear, self._say = context.Pipe(duplex=False)
        os.set_blocking(self._hear.fileno(), False)
        self.pool = ProcessPool(
            max_workers=1,
            max_tasks=max_jobs,
            initializer=prepare_child,
            initargs=(os.getpid(), memory, self._say),
            context=context,
        )

    @contextlib.contextmanager
    def heard_by(self, listener: Listener | None) -> Iterator[None]:
        """Pass on what the job says meanwhile; called on the event loop, a few words at a time."""
        self._drain(None)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._hear.fileno(), self._drain, listener)
        try:
            yield
        finally:
            if not self._hear.closed:
                loop.remove_reader(self._hear.fileno())

    def _drain(self, listener: Listener | None) -> None:
        """What is in the pipe; of several things said at once the last counts."""
        with contextlib.suppress(BlockingIOError):
            lines = os.read(self._hear.fileno(), 1 << 16).splitlines()
            if lines and listener is not None:
                with contextlib.suppress(ValueError):
                    fraction, note = json.loads(lines[-1])
                    listener(float(fraction), str(note))

    def stop(self) -> None:
        self.pool.stop()  # type: ignore[no-untyped-call]  # pebble's own gap
        self._hear.close()
        self._say.close()


class Children:
    """At most `slots` child processes, each running one function at a time."""

    def __init__(self, slots: int, *, memory_mb: int = 4096, max_jobs: int = 100) -> None:
        self._memory = memory_mb * 2**20
        self._max_jobs = max_jobs
        self._context = _Spawn()
        # Last in, first out: warm processes are used again before cold ones are started.
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(slots)):
            self._free.put_nowait(slot)
        self._slots: dict[int, Slot] = {}

    async def run(
        self,
        timeout: float,
        function: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function` in a child; `timeout` seconds from the moment a process has taken it.

        Raises ChildTimeout, ChildDied, ChildError, or the TaskError that it raised. A cancel kills the process.
        """
        return await self.run_heard(None, timeout, function, *args, **kwargs)

    async def run_heard(
        self, listener: Listener | None, timeout: float, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same, and `listener` hears on the event loop what the function says (`pipelines.saying.say`)."""
        number = await self._free.get()
        try:
            return await self._run_in(number, listener, timeout, function, args, kwargs)
        finally:
            self._free.put_nowait(number)

    async def _run_in(
        self,
        number: int,
        listener: Listener | None,
        timeout: float,
        function: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        try:
            slot = self._slot(number)
            future = slot.pool.schedule(_guarded, args=(function, args, kwargs), timeout=timeout)
        except RuntimeError:  # its process died while idle: the pool says so only now
            self._discard(number)
            slot = self._slot(number)
            future = slot.pool.schedule(_guarded, args=(function, args, kwargs), timeout=timeout)
        try:
            with slot.heard_by(listener):
                result: T = await asyncio.wrap_future(future)
        except ChildDied:  # it said so itself before its end
            CHILDREN_ENDED.labels("memory").inc()
            raise
        except FutureTimeout:
            CHILDREN_ENDED.labels("timeout").inc()
            raise ChildTimeout(f"killed after {timeout:.0f} s") from None
        except ProcessExpired as error:
            CHILDREN_ENDED.labels("died").inc()
            raise ChildDied(f"its child process {error.pid} {_describe(error.exitcode)}") from None
        except (BrokenProcessPool, FutureCancelled) as error:
            self._discard(number)
            CHILDREN_ENDED.labels("died").inc()
            raise ChildDied(f"its child process ended before it could start the job ({error!r})") from None
        return result

    def _slot(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None or not slot.pool.active:
            self._discard(number)
            slot = self._slots[number] = Slot(self._memory, self._max_jobs, self._context)
        return slot

    def _discard(self, number: int) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            log.warning("child.pool_replaced", slot=number)
            slot.stop()

    async def close(self, grace: float = 10.0) -> None:
        """Kill all children and wait for their ends, `grace` seconds at most."""
        slots, self._slots = list(self._slots.values()), {}
        for slot in slots:
            slot.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(asyncio.to_thread(slot.pool.join) for slot in slots))


_AT_THE_CAP = ", as native code does at its memory cap (PHAZE_CHILD_MEMORY_MB) or by a fault of its own"
_HINTS: dict[int, str] = {
    signal.SIGABRT: _AT_THE_CAP,
    signal.SIGSEGV: _AT_THE_CAP,
    signal.SIGTRAP: _AT_THE_CAP,
    signal.SIGKILL: ", as the kernel does where memory runs out (fewer slots, or more memory for the worker)",
}
"""Signal -> what it most often means here. Python code that meets the cap says so itself."""


def _describe(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        try:
            name = signal.Signals(-exitcode).name
        except ValueError:
            name = f"signal {-exitcode}"
        return f"was ended by {name}{_HINTS.get(-exitcode, '')}"
    return f"ended with exit code {exitcode}"
