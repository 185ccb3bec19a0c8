"""Circuit breakers: what a task leans on is left alone while it fails, and its jobs wait at no cost.

    CLOSED --(5 failures in a row)--> OPEN --(60 s)--> HALF_OPEN --(3 successes)--> CLOSED
                                        ^----(any failure)----'

The state is the server's, one script shared by all workers; local time decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx
import structlog
from redis.exceptions import RedisError

from agent.phoenix import keys
from agent.phoenix.endings import CircuitHeld, NotStarted
from agent.redis_client import AWAY, persist, reply
from pipelines.errors import InputRejected, RecordNotFoundError

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from agent.phoenix.scripts import Scripts

log = structlog.get_logger()

FAILURES = 5
OPEN_MS = 60_000
SUCCESSES = 3
PROBES = 3
"""Permits in the whole fleet while half open."""

PERMIT_MS = 60_000
"""A permit's end, should its prober never answer; a running one keeps its place in the epoch."""

ASK_WAIT = 5.0
"""Seconds that a job waits for a server that is away before it is given back."""

TELL_WAIT = 1.0
"""Seconds for an outcome to be told. One that is not costs the circuit one count, and its permit ends by itself."""

Forced = Literal["open", "closed", "none"]


@dataclass(frozen=True)
class Circuit:
    """One circuit as an operator sees it. `opened`: Unix seconds, 0 if never."""

    name: str
    state: str
    epoch: int
    failures: int
    successes: int
    opened: float
    forced: str
    reason: str
    probes: int
    parked: int


class Breakers:
    """All circuits, on one server."""

    def __init__(self, scripts: Scripts, redis: Redis, *, open_ms: int = OPEN_MS, permit_ms: int = PERMIT_MS) -> None:
        self._scripts = scripts
        self._redis = redis
        self._numbers = (FAILURES, open_ms, SUCCESSES, PROBES, permit_ms)

    @contextlib.asynccontextmanager
    async def guard(self, circuit: str | None, owner: str) -> AsyncIterator[None]:
        """Run the body if the circuit lets it through, and tell how it went; telling never changes what it came to.

        Raises CircuitHeld, and NotStarted where the server cannot be asked.
        """
        if circuit is None:
            yield
            return
        try:
            verdict, epoch = await persist(lambda: self._call("ask", circuit, owner), ASK_WAIT)
        except AWAY as error:
            raise NotStarted(f"the circuit {circuit} could not be asked: {error}") from None
        if verdict != b"pass":
            raise CircuitHeld(circuit)
        try:
            yield
        except BaseException as error:
            await self._tell(circuit, owner, epoch, outcome_of(error))
            raise
        await self._tell(circuit, owner, epoch, "ok")

    async def _tell(self, circuit: str, owner: str, epoch: int, outcome: str) -> None:
        try:
            async with asyncio.timeout(TELL_WAIT):
                await self._call("tell", circuit, owner, epoch, outcome)
        except (RedisError, OSError) as error:
            log.warning("breaker.not_told", circuit=circuit, outcome=outcome, error=f"{type(error).__name__}: {error}")

    async def force(self, circuit: str, forced: Forced, reason: str) -> None:
        """Hold a circuit open or closed whatever happens, or (`none`) give it back to itself, closed."""
        await self._call("force", circuit, forced, reason)

    async def look(self, circuit: str) -> Circuit:
        """One circuit."""
        state, epoch, failures, successes, opened, forced, reason, probes = await self._call("look", circuit)
        parked = await reply(self._redis.llen(keys.parked_key(circuit)))
        return Circuit(
            circuit,
            state.decode(),
            int(epoch),
            int(failures),
            int(successes),
            int(opened) / 1000,
            forced.decode(),
            reason.decode(),
            int(probes),
            parked,
        )

    async def all(self) -> list[Circuit]:
        """Every circuit that was ever used, by name."""
        names = sorted(name.decode() for name in await reply(self._redis.smembers(keys.CIRCUITS)))
        return [await self.look(name) for name in names]

    async def room(self, circuit: str) -> int:
        """How many of the jobs that wait for it may go: 0, the probes that are free, or (closed) any number."""
        state, *_, forced, _, probes = await self._call("look", circuit)
        if forced == b"open" or (forced == b"none" and state == b"open"):
            return 0
        if state == b"half_open" and forced == b"none":
            return max(0, PROBES - int(probes))
        return 1_000_000

    async def _call(self, operation: str, circuit: str, *rest: Any) -> Any:
        names = [keys.breaker_key(circuit), keys.permits_key(circuit), keys.CIRCUITS]
        return await self._scripts("breaker", names, [operation, circuit, *self._numbers, *rest])


def outcome_of(error: BaseException) -> str:
    """What an exception says about the dependency: it failed, it worked, or nothing.

    Connect errors, time-outs, 5xx and 429 are the dependency failing; not-found and rejected input are it working.
    """
    if isinstance(error, InputRejected | RecordNotFoundError):
        return "ok"
    if isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        return "failed" if code >= 500 or code == httpx.codes.TOO_MANY_REQUESTS else "ok"
    if isinstance(error, ConnectionError | TimeoutError | httpx.TransportError):
        return "failed"
    return "void"
