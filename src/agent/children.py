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
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, ParamSpec, TypeVar

import structlog
from pebble import ProcessExpired, ProcessPool

from agent.child import NICER, OF_ITSELF, STOPS, ChildError, ChildTimeout, describe, guarded, settle_in
from agent.metrics import CHILDREN_ENDED
from pipelines.errors import ChildDied, NotGranted
from pipelines.payer import ApiKey, Spent, set_payer
from pipelines.saying import Listener, set_listener

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["NICER", "ChildError", "ChildTimeout", "Children"]

log = structlog.get_logger()

MOST_SAID = 400
"""Bytes of one thing said: far less than PIPE_BUF, so that a pipe takes it whole or not at all (pipe(7))."""

STOP_GRACE = 10.0
"""Seconds that are waited for killed children to be gone."""

AS_ASKED = 79
"""The exit code of a child that ends after its share of jobs."""


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

    def run(self) -> None:
        super().run()
        sys.exit(AS_ASKED)

    @property
    def exitcode(self) -> int | None:
        """0 for an end that was asked for alone: pebble overlooks a process that ends with 0, and its job with it."""
        code = super().exitcode
        return {AS_ASKED: 0, 0: OF_ITSELF}.get(code, code) if code is not None else None

    def terminate(self) -> None:
        self.kill()


class _Spawn(multiprocessing.context.SpawnContext):
    Process = _Child


def prepare_child(parent: int, memory_bytes: int, said: Connection | None = None) -> None:
    """Runs first in each child: see `settle_in`; what the job says of its progress goes into `said`."""
    settle_in(parent, memory_bytes)
    set_payer(_Nobody())
    if said is not None:
        os.set_blocking(said.fileno(), False)
        set_listener(lambda fraction, note: _write(said, fraction, note))


class _Nobody:
    """Who pays here: calls to models are made by the task itself, or where what they came to cannot be lost."""

    async def api_key(self) -> ApiKey:
        raise NotGranted("nobody pays in `ctx.child`; call the model in the task, or use `ctx.child_as_user`")

    def spent(self, spent: Spent) -> None:
        raise NotGranted("nobody counts in `ctx.child`; call the model in the task, or use `ctx.child_as_user`")


def _write(said: Connection, fraction: float, note: str) -> None:
    """A line into the pipe; nothing where it is full or gone, because work never waits for who watches it."""
    line = json.dumps([fraction, note[: MOST_SAID // 8]]).encode() + b"\n"
    with contextlib.suppress(OSError):
        os.write(said.fileno(), line[-MOST_SAID:])


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
        """Kill the child. Blocks until pebble's threads have ended: one of them may just be handing on the pipe."""
        self.pool.stop()  # type: ignore[no-untyped-call]  # pebble's own gap
        self.pool.join()
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
            slot = await self._slot(number)
            future = slot.pool.schedule(guarded, args=(function, args, kwargs), timeout=timeout)
        except RuntimeError:  # its process died while idle: the pool says so only now
            await self._discard(number)
            slot = await self._slot(number)
            future = slot.pool.schedule(guarded, args=(function, args, kwargs), timeout=timeout)
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
            raise ChildDied(f"its child process {error.pid} {describe(error.exitcode)}") from None
        except (BrokenProcessPool, FutureCancelled) as error:
            await self._discard(number)
            CHILDREN_ENDED.labels("died").inc()
            raise ChildDied(f"its child process ended before it could start the job ({error!r})") from None
        return result

    async def _slot(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None or not slot.pool.active:
            await self._discard(number)
            slot = self._slots[number] = Slot(self._memory, self._max_jobs, self._context)
        return slot

    async def _discard(self, number: int) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            log.warning("child.pool_replaced", slot=number)
            await _ended([slot], STOP_GRACE)

    async def close(self, grace: float = STOP_GRACE) -> None:
        """Kill all children and wait for their ends, `grace` seconds at most."""
        slots, self._slots = list(self._slots.values()), {}
        await _ended(slots, grace)


async def _ended(slots: list[Slot], grace: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await asyncio.gather(*(asyncio.to_thread(slot.stop) for slot in slots))
