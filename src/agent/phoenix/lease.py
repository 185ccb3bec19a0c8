"""The thread that keeps leases alive, whatever the event loop is doing.

It renews thrice per lease, on a connection of its own. It stops for a job at its deadline; a body that has not ended
one renewal later blocks the event loop or ignores its cancellation, and the process ends before the lease does: nothing
else keeps it from running beside its own retry. The same when the event loop has not ticked for `WEDGED` seconds: a
wedged worker must not look alive. Where all of the process stood still, both count from when it went on. A run whose
renewal does not get through stays trusted until the lease's end, counted from before the last one that did was sent.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from agent.metrics import timed
from agent.phoenix.clock import lease_clock
from agent.phoenix.scripts import sha, text
from agent.redis_trouble import trouble
from agent.throttle import OncePer

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.phoenix.queue import LaneQueue
    from agent.phoenix.runs import Run

log = structlog.get_logger()

RENEWALS = 3
"""Per lease: two may fail before it ends."""

TICK = 1.0
"""Seconds between signs of life of the event loop."""

RETRY_RENEW = 0.5
"""Seconds until a renewal that failed is tried again."""

RENEW_TIMEOUT = 3.0
"""Seconds to connect, and for a reply."""

LONGEST_RENEWAL = 4 * RENEW_TIMEOUT
"""Seconds: to connect, for the greeting, for the script's hash, for the script."""

WEDGED = 54.0
"""Seconds without a tick of the event loop; with one look of the thread (5 s) the process has ended within a minute."""

EXIT_WEDGED = 75
"""EX_TEMPFAIL of sysexits.h: start me again."""


class Leases:
    """`start()` in the event loop's thread; `stop()` at the end."""

    def __init__(self, queue: LaneQueue, held: Callable[[], list[Run]], *, wedged: float = WEDGED) -> None:
        self._queue = queue
        self._held = held
        self._renew_every = queue.lease / RENEWALS
        self._wedged = wedged
        self._ticked = self._went_on = time.monotonic()
        self._late: dict[str, float] = {}
        """Token -> when its run was first seen past its deadline (monotonic seconds)."""
        self._stopped = threading.Event()
        self._complain = OncePer(60.0)
        self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        options = dict(queue.redis.connection_pool.connection_kwargs)
        options.pop("retry", None)
        self._client = _sync_client(queue, options)
        self._execute: Callable[..., Any] = self._client.execute_command

    def start(self) -> None:
        """Begin to renew."""
        self._loop = asyncio.get_running_loop()
        self._tick()
        self._thread.start()

    def _tick(self) -> None:
        """The event loop is alive. A timer of its own says so: no call to a server that hangs may hold it up."""
        assert self._loop is not None
        self._ticked = time.monotonic()
        if not self._stopped.is_set():
            self._loop.call_later(TICK, self._tick)

    def stop(self) -> None:
        """Renew no more; returns within a second or two."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._client.close()

    def _keep(self) -> None:
        wait = self._renew_every
        looked = time.monotonic()
        while not self._stopped.wait(wait):
            self._see_whether_it_stood_still(looked, wait)
            self._end_if_wedged()
            self._end_if_unstoppable()
            looked = time.monotonic()
            try:
                self._renew()
                wait = self._renew_every
            except (RedisError, OSError) as error:
                wait = RETRY_RENEW
                self._tell(error)
            except Exception:  # a fault of ours must not end the renewals of everything that runs
                wait = RETRY_RENEW
                log.exception("lease.renewal_fault")
            self._see_whether_it_stood_still(looked, LONGEST_RENEWAL)
            self._distrust()
            looked = time.monotonic()

    def _see_whether_it_stood_still(self, since: float, usual: float) -> None:
        """A process that was stopped, or its machine: neither the event loop nor a body had the time that went by."""
        now = time.monotonic()
        if now - since > usual + TICK:
            self._went_on = now

    def _tell(self, error: Exception) -> None:
        """A server that is away, the pump complains of; what waiting will not mend may be this connection's alone."""
        found = trouble(error)
        if found.lasting and self._complain():
            log.warning("lease.renewal_failed", error=found.said, remedy=found.remedy)
        else:
            log.debug("lease.renewal_failed", error=found.said)

    def _end_if_wedged(self) -> None:
        silent = time.monotonic() - max(self._ticked, self._went_on)
        if silent > self._wedged:
            log.critical("worker.wedged", seconds=round(silent), running=[run.id for run in self._held()])
            os._exit(EXIT_WEDGED)

    def _end_if_unstoppable(self) -> None:
        """It takes two looks: a process that was stopped between them, even in a renewal, has had no time to end it."""
        now = time.monotonic()
        held = self._held()
        self._late = {run.token: self._late.get(run.token, now) for run in held if run.deadline < now}
        for run in held:
            if max(self._late.get(run.token, now), self._went_on) <= now - self._renew_every:
                log.critical("worker.unstoppable_job", task=run.service, record_id=run.record)
                os._exit(EXIT_WEDGED)

    def _renew(self) -> None:
        now = time.monotonic()
        runs = {run.names[0]: run for run in self._held() if run.deadline > now and run.service}
        if not runs:
            return
        arguments: list[Any] = [int(self._queue.lease * 1000)]
        for run in runs.values():
            arguments += [*run.names, run.token]
        before = lease_clock()
        lost = set(self._run_script(arguments))
        for job_id, run in runs.items():
            if job_id in lost:
                self._call(run, "lost")
            else:
                run.trusted_until = before + self._queue.lease

    def _run_script(self, arguments: list[Any]) -> list[bytes]:
        prelude = self._queue.scripts.prelude
        call = (str(len(self._queue.keys)), *self._queue.keys, *arguments)
        with timed("renew"):
            try:
                reply = self._execute("EVALSHA", sha("renew", prelude), *call)
            except NoScriptError:
                reply = self._execute("EVAL", text("renew", prelude), *call)
        return list(reply)

    def _distrust(self) -> None:
        """Jobs that change things elsewhere stop when their lease may have ended; the others run on, fenced."""
        now = lease_clock()
        for run in self._held():
            if run.outside_effects and now > run.trusted_until:
                self._call(run, "distrusted")

    def _call(self, run: Run, reason: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(run.cancel, reason)


def _sync_client(queue: LaneQueue, options: dict[str, Any]) -> Redis:
    from redis import ConnectionPool
    from redis.asyncio.connection import SSLConnection as AsyncSSL
    from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnix
    from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

    wanted = queue.redis.connection_pool.connection_class
    kind: type[Any] = Connection
    if issubclass(wanted, AsyncUnix):
        kind = UnixDomainSocketConnection
    elif issubclass(wanted, AsyncSSL):
        kind = SSLConnection
    options |= {
        "socket_timeout": RENEW_TIMEOUT,
        "socket_connect_timeout": RENEW_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
    }
    return Redis(connection_pool=ConnectionPool(connection_class=kind, max_connections=2, **options))
