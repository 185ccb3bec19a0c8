"""Circuit breakers: what a task leans on is left alone while it fails, and its jobs wait at no cost.

    CLOSED --(5 failures in a row)--> OPEN --(60 s)--> HALF_OPEN --(3 successes)--> CLOSED
                                        ^----(any failure)----'

The state is the server's, one script shared by all workers; local time decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import structlog
from redis.exceptions import RedisError

from agent.phoenix import keys
from agent.phoenix.endings import CircuitHeld, NotStarted
from agent.redis_client import AWAY, persist, reply
from agent.symptoms import symptom_of
from pipelines.errors import InputRejected, KeyRefused, RecordNotFoundError

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

TOO_MANY = 429
KEYS_FAULT = frozenset({401, 402, 403, TOO_MANY})
"""HTTP statuses by which a provider speaks of the key: unknown, not paid for, not allowed, used too often."""

Forced = Literal["open", "closed", "none"]
Outcome = Literal["ok", "failed", "void"]
Judge = Callable[[BaseException], Outcome]
"""What an exception says about a dependency: it works, it failed, or nothing."""


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
    async def guard(self, circuit: str | None, owner: str, judge: Judge | None = None) -> AsyncIterator[None]:
        """Run the body if the circuit lets it through, and tell how it went; telling never changes what it came to.

        `judge`: what an exception says about it; `outcome_of` unless given.

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
            await self._tell(circuit, owner, epoch, (judge or outcome_of)(error))
            raise
        await self._tell(circuit, owner, epoch, "ok")

    async def _tell(self, circuit: str, owner: str, epoch: int, outcome: Outcome) -> None:
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

    async def all(self, *, users: bool = False) -> list[Circuit]:
        """Every circuit that was ever used, by name; with `users` those of single users too."""
        found = await reply(self._redis.smembers(keys.CIRCUITS))
        if users:
            found |= await reply(self._redis.smembers(keys.USER_CIRCUITS))
        names = sorted(name.decode("utf-8", "replace") for name in found)
        return [await self.look(name) for name in names]

    async def _call(self, operation: str, circuit: str, *rest: Any) -> Any:
        names = [keys.breaker_key(circuit), keys.permits_key(circuit), keys.circuits_key(circuit)]
        return await self._scripts("breaker", names, [operation, circuit, *self._numbers, *rest])


def outcome_of(error: BaseException) -> Outcome:
    """What an exception says about the dependency.

    Connect errors, time-outs, 5xx and 429 are the dependency failing; not-found and rejected input are it working.
    """
    return _outcome(error, failing=lambda status: status >= 500 or status == TOO_MANY)


def outcome_for_provider(error: BaseException) -> Outcome:
    """The same of a provider that a user's own key pays: what is about the key is it working."""
    return _outcome(error, failing=lambda status: status >= 500)


def outcome_for_user(error: BaseException) -> Outcome:
    """What an exception says about a user's key at a provider: nothing, where the provider itself fails."""
    if isinstance(error, KeyRefused):
        return "failed"
    symptom = symptom_of(error)
    if symptom in KEYS_FAULT:
        return "failed"
    works = isinstance(error, InputRejected | RecordNotFoundError) or (isinstance(symptom, int) and symptom < 500)
    return "ok" if works else "void"


def _outcome(error: BaseException, failing: Callable[[int], bool]) -> Outcome:
    if isinstance(error, InputRejected | RecordNotFoundError):
        return "ok"
    symptom = symptom_of(error)
    if isinstance(symptom, int):
        return "failed" if failing(symptom) else "ok"
    return "failed" if symptom == "unreachable" else "void"
