"""The pump: ends what has ended and claims what there is room for, in one round trip.

Under load several runs end together, and a lone one never waits for company. Two lines to the server take turns, so
that one step is on its way while the jobs of the other run. While nothing is queued a connection of its own waits with
a BLMOVE of a list onto itself, which moves nothing: there is no moment at which a job is taken and not yet owned.

A step whose answer was lost is sent again: a settle that got through says so. What it claimed was never heard of; it is
given back to the head of the queue before the next claim.

    dry:     nothing to claim is known --(BLMOVE returns, a slot becomes free, a retry is due)--> not dry
    not dry: a step asks for claims, which makes it dry --(it got all it asked for, or there is more)--> not dry
    unsure:  a step failed that may have claimed --(no other is on its way: what is unheard of is given back)--> sure
    closing: nothing is claimed any more; lines end when all that ended is settled
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Protocol

import structlog
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoReply

from agent import metrics
from agent.cancelling import end
from agent.phoenix.pulse import Turns
from agent.redis_client import Line
from agent.throttle import OncePer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.phoenix.queue import LaneQueue
    from agent.phoenix.runs import Ending, Run

log = structlog.get_logger()

LINES = 2
MOST = 1_000
"""Claims or endings of one step, so that no script holds the server for long."""

IDLE_WAIT = 5
"""Seconds of one blocking wait; below the connection's reply time-out."""

STEP_TIMEOUT = 5.0
"""Seconds for one step's answer: a line that went dead in silence costs no lease. Doubled each time that one passes it,
and the step halved, so that large results get through a thin line."""

LONGEST_STEP = 30.0
SLOWEST_LINE = 2**16
"""Bytes a second: what is too much for LONGEST_STEP at that rate, one large result, is given as long as it takes."""

STEP_BYTES = 4 * 2**20
"""Of endings in one step; a larger one travels alone."""

MAX_BACKOFF = 10.0


class Slots(Protocol):
    """Whose slots the pump fills: a worker."""

    id: str
    lane: str
    concurrency: int

    def known(self) -> list[str]:
        """Tokens of all runs that are ours: those that run, and those that have ended and are not settled yet."""

    def room(self) -> int:
        """Jobs that may be claimed now."""

    def begin(self, run: Run) -> None:
        """Start a claimed run."""

    def note(self, endings: Sequence[Ending], answers: Sequence[str]) -> None:
        """What became of endings."""


class Pump:
    """`start()` it, `add()` what ends; `close()` settles what is left."""

    def __init__(self, queue: LaneQueue, slots: Slots) -> None:
        self._queue = queue
        self._slots = slots
        self._share = min(MOST, -(-slots.concurrency // LINES))
        self._ended: list[Ending] = []
        self.unsettled: dict[str, Run] = {}
        """Token -> run that has ended, until the server has said what became of it."""
        self._asked = 0
        """Claims that are on their way."""
        self._steps = 0
        self._failures = 0
        self._batch = MOST
        self._patience = STEP_TIMEOUT
        self._unsure = False
        """Whether a step failed that may have claimed something."""
        self._dry = False
        self._in_vain = 0
        """Waits in a row that found something at once, since a claim last took anything."""
        self._nothing_asked = asyncio.Event()
        self._nothing_asked.set()
        self._stopping = False
        self._closing = False
        self._wake = asyncio.Event()
        self._lines: list[asyncio.Task[None]] = []
        self._waiter: asyncio.Task[None] | None = None
        self.turns = Turns()
        self._complain = OncePer(60.0)

    def start(self) -> None:
        """Begin to claim."""
        self._lines = [asyncio.create_task(self._steps_of_one_line(), name=f"line-{n}") for n in range(LINES)]

    def add(self, ending: Ending) -> None:
        """Settle this with the next step."""
        self.unsettled[ending.run.token] = ending.run
        self._ended.append(ending)
        self.wake()

    def wake(self) -> None:
        """There may be something to claim again."""
        self._dry = False
        self._wake.set()

    async def claim_no_more(self) -> None:
        """Once this returns, no run begins any more; what ends is still settled."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience + 1.0):
                await self._nothing_asked.wait()

    async def close(self, within: float) -> None:
        """Settle what has ended, for `within` seconds at most."""
        self._stopping = self._closing = True
        self._wake.set()
        if self._lines:
            await asyncio.wait(self._lines, timeout=within)
        await end([task for task in (*self._lines, self._waiter) if task is not None], within=1.0)

    def _wanted(self) -> int:
        if self._stopping:
            return 0
        return max(0, min(self._share, self._batch, self._slots.room() - self._asked))

    async def _steps_of_one_line(self) -> None:
        """Until closed and nothing is left to settle; never cancelled within a step, whose answer would be lost."""
        line = Line(self._queue.redis, STEP_TIMEOUT)
        try:
            while not (self._closing and not self._ended):
                wanted = self._wanted()
                nothing = not self._ended and (self._dry or wanted < 1)
                if nothing or (self._unsure and self._steps):
                    if self._dry and wanted > 0 and self._waiter is None:
                        self._waiter = asyncio.create_task(self._wait_for_jobs(), name="idle")
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                if not await self._step(line, wanted):
                    await asyncio.sleep(min(0.1 * 2 ** min(self._failures, 10), MAX_BACKOFF))
        finally:
            await line.close()

    async def _step(self, line: Line, wanted: int) -> bool:
        """One round trip; False if it failed."""
        ended = self._next_endings()
        self._steps += 1
        self._asked += wanted
        if wanted:
            self._nothing_asked.clear()
        self._dry = True  # the other line asks once this one has found enough
        line.timeout = self._patience
        if self._patience > LONGEST_STEP:
            self.turns.may_last(self._patience)
        try:
            if self._unsure:
                await self._give_back_unheard(line)
            answers, claimed, more = await self._queue.step(self._slots.id, self._slots.lane, wanted, ended, over=line)
        except Exception as error:
            self._note_failure(error, ended, wanted)
            return False
        finally:
            self._steps -= 1
            self._asked -= wanted
            if not self._asked:
                self._nothing_asked.set()
            if self._unsure or self._closing:
                self._wake.set()
        self._failures = 0
        self.turns.answer()
        self._batch = min(MOST, 2 * self._batch)
        self._patience = max(STEP_TIMEOUT, self._patience / 2)
        if claimed or more:
            self._in_vain = 0
        if more or (claimed and len(claimed) == wanted):
            self.wake()
        self._hand_on(claimed, ended, answers)
        return True

    def _next_endings(self) -> list[Ending]:
        size = count = 0
        for ending in self._ended[: self._batch]:
            size += ending.size()
            if count and size > STEP_BYTES:
                break
            count += 1
        ended, self._ended = self._ended[:count], self._ended[count:]
        return ended

    def _note_failure(self, error: Exception, ended: list[Ending], wanted: int) -> None:
        self._ended = ended + self._ended  # the same endings again: a settle that got through answers so
        self._unsure = self._unsure or wanted > 0
        self._dry = False
        self._failures += 1
        self.turns.end()
        metrics.STEP_FAILURES.inc()
        if isinstance(error, NoReply):
            self._batch = max(1, min(self._batch, max(wanted, len(ended))) // 2)
            size = sum(ending.size() for ending in ended)
            self._patience = min(2 * self._patience, max(LONGEST_STEP, size / SLOWEST_LINE))
        if not isinstance(error, RedisError | OSError):  # a fault of ours must not end the pump
            log.exception("worker.step_failed", failures=self._failures)
        elif self._complain():
            log.warning("queue.unreachable", queue=self._queue.name, error=str(error), failures=self._failures)

    def _hand_on(self, claimed: Sequence[Run], ended: Sequence[Ending], answers: Sequence[str]) -> None:
        for ending in ended:
            self.unsettled.pop(ending.run.token, None)
        for run in claimed:
            self._slots.begin(run)
        try:
            self._slots.note(ended, answers)
        except Exception:  # words about what is done must not end the pump
            log.exception("worker.note_failed")

    async def _give_back_unheard(self, line: Line) -> None:
        """No other step is on its way: whatever is claimed in our name and not known here was never heard of."""
        if given := await self._queue.unheard(self._slots.id, self._slots.known(), over=line):
            metrics.GIVEN_BACK.inc(given)
            log.warning("worker.claims_given_back", jobs=given)
        self._unsure = False

    async def _wait_for_jobs(self) -> None:
        """Until the queue holds something; a queue that holds only what may not be taken is not asked in a loop."""
        key = self._queue.keys[0]
        try:
            if self._in_vain > 1:
                await asyncio.sleep(0.05 if self._in_vain == 2 else 1.0)
            started = time.monotonic()
            while await self._queue.redis.blmove(key, key, IDLE_WAIT, "LEFT", "LEFT") is None:
                self.turns.answer()
            self._in_vain = self._in_vain + 1 if time.monotonic() - started < 0.01 else 0
        except (RedisError, OSError):
            self.turns.end()
            await asyncio.sleep(1.0)
        finally:
            self._waiter = None
            self.wake()
