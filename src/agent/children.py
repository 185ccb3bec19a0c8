"""Child processes for work that may block, crash, hang or eat memory: one job is lost then, never the worker.

One slot is one single-process pebble pool, because processes that share a pool share a lock, and a process that the
kernel kills may die holding it. Slots start when first needed and are replaced after `max_jobs` calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import resource
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import structlog
from pebble import ProcessExpired, ProcessPool

from agent.metrics import CHILDREN_ENDED
from pipelines.errors import ChildDied, TaskError
from pipelines.lifeline import die_with_parent

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

OOM_SCORE_FIRST = 1000
"""oom_score_adj(5): the kernel ends these before anything else when memory ends."""

NICER = 10
"""Steps of nice(2) below the worker: where cores are scarce, what takes a moment goes before what takes minutes."""


class ChildTimeout(TimeoutError):
    """The function ran past its time and its process was killed."""


class ChildError(Exception):
    """The function raised something that is not a `TaskError`; holds its type, text and traceback as text.

    Foreign exceptions stay in the child: some cannot be pickled, and one that fails to unpickle would break the pool.
    """


def prepare_child(parent: int, memory_bytes: int) -> None:
    """Runs first in each child: end with the worker, be the kernel's first choice, yield, stay under the cap.

    RLIMIT_DATA counts private writable memory (heap, anonymous maps, thread stacks), since Linux 4.7: unlike
    RLIMIT_AS it leaves out mapped files and libraries, which TensorFlow maps by the gigabyte.
    """
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_FIRST), "ascii")
    os.nice(NICER)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


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


class Children:
    """At most `slots` child processes, each running one function at a time."""

    def __init__(self, slots: int, *, memory_mb: int = 4096, max_jobs: int = 100) -> None:
        self._memory = memory_mb * 2**20
        self._max_jobs = max_jobs
        self._context = multiprocessing.get_context("spawn")
        # Last in, first out: warm processes are used again before cold ones are started.
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(slots)):
            self._free.put_nowait(slot)
        self._pools: dict[int, ProcessPool] = {}

    async def run(self, timeout: float, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a child; `timeout` seconds from the moment a process has taken it.

        Raises ChildTimeout, ChildDied, ChildError, or the TaskError that it raised. A cancel kills the process.
        """
        slot = await self._free.get()
        try:
            return await self._run_in(slot, timeout, function, args, kwargs)
        finally:
            self._free.put_nowait(slot)

    async def _run_in(
        self,
        slot: int,
        timeout: float,
        function: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        try:
            pool = self._pool(slot)
            future = pool.schedule(_guarded, args=(function, args, kwargs), timeout=timeout)
        except RuntimeError:  # its process died while idle: the pool says so only now
            self._discard(slot)
            pool = self._pool(slot)
            future = pool.schedule(_guarded, args=(function, args, kwargs), timeout=timeout)
        try:
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
            self._discard(slot)
            CHILDREN_ENDED.labels("died").inc()
            raise ChildDied(f"its child process ended before it could start the job ({error!r})") from None
        return result

    def _pool(self, slot: int) -> ProcessPool:
        pool = self._pools.get(slot)
        if pool is None or not pool.active:
            self._discard(slot)
            pool = ProcessPool(
                max_workers=1,
                max_tasks=self._max_jobs,
                initializer=prepare_child,
                initargs=(os.getpid(), self._memory),
                context=self._context,
            )
            self._pools[slot] = pool
        return pool

    def _discard(self, slot: int) -> None:
        pool = self._pools.pop(slot, None)
        if pool is not None:
            log.warning("child.pool_replaced", slot=slot)
            pool.stop()  # type: ignore[no-untyped-call]  # pebble's own gap

    async def close(self, grace: float = 10.0) -> None:
        """Kill all children and wait for their ends, `grace` seconds at most."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.stop()  # type: ignore[no-untyped-call]  # pebble's own gap
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(asyncio.to_thread(pool.join) for pool in pools))


def _describe(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        try:
            name = signal.Signals(-exitcode).name
        except ValueError:
            name = f"signal {-exitcode}"
        return f"was ended by {name}"
    return f"ended with exit code {exitcode}"
