"""The relay: carries the outbox of one queue to the control plane, until each entry is acknowledged.

Delivery repeats after a crash or a lost reply; the catalogue keeps one result per service, record and version, so a
second delivery changes nothing. Entries go oldest first, so that the parts of a result arrive before its end.
Of several workers on one queue one delivers, as long as it says so every few seconds; the others stand by.

A batch is as large as the lines carry in about a second, up and down; what alone takes longer is given longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import structlog
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoReply

from agent import metrics
from agent.phoenix.outbox import ENTRY_FIELD, outbox_key, refused_key, relay_key
from agent.phoenix.scripts import Scripts
from agent.redis_client import REPLY_TIMEOUT, Line
from agent.redis_trouble import trouble
from agent.throttle import OncePer

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

BATCH_ENTRIES = 200
BATCH_BYTES = 4 * 2**20
"""A batch ends at either; one entry larger than this still travels, alone."""

FIRST_BYTES = 2**18
"""Of the first batch, when nothing is known of the lines yet; each may have twice as many as the one before it."""

LEAST_BYTES = 2**12
"""A batch is allowed so many, however slow the lines are."""

QUICK, SLOW = 1.0, 4.0
"""Seconds, for reading a batch and sending it, from which the next one may be larger, and must be smaller."""

WAIT = 5.0
"""Seconds of one wait for an entry, and between looks whether the worker that delivers is still there."""

TURN = 10.0
"""Seconds after which another worker delivers, when the one that did says nothing more."""

REQUEST_TIMEOUT = 30.0
LONGEST_PATIENCE = 8
"""Times the usual time-outs: an entry of 15 MiB, the largest there is, passes a line of 130 kB/s in them."""

MAX_BACKOFF = 30.0
REFUSED_KEPT = 10_000
"""Entries that the control plane would not take, kept for the operator, newest last."""

REFUSED_BODY = frozenset({400, 413, 422})
"""Answers that say that the body is at fault: it is sent again in halves, down to the entry that spoils it."""

TOO_SLOW = frozenset({408, 504})
"""Answers that say that it took too long: less is sent at once."""

UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout)
"""Of what goes wrong on the way, what is not about the size. A control plane that waits no longer for a body hangs up,
and its answer may be lost with the line."""

NOT_TAKEN = "the control plane does not take its like: too large, or not well formed"

Batch = list[tuple[bytes, bytes]]
"""Stream id and entry as it stands there, the oldest first."""


class Refused(Exception):
    """The control plane refuses the request as a whole; nothing was acknowledged."""


class TooSlow(Refused):
    """It took too long for the control plane."""


class Relay:
    """One delivery loop: `run()` until cancelled, `drain()` before stopping."""

    def __init__(self, redis: Redis, queue: str, *, hub_url: str, agent_id: str, token: str) -> None:
        self._redis = redis
        self._scripts = Scripts(redis)
        self._line = Line(redis, REPLY_TIMEOUT)
        self._me = uuid4().hex
        self._turn = relay_key(queue)
        self._stream = outbox_key(queue)
        self._refused = refused_key(queue)
        self._client = httpx.AsyncClient(
            base_url=hub_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(REQUEST_TIMEOUT, connect=5.0),
        )
        self._path = f"/api/agents/{agent_id}/results"
        self._complain = OncePer(60.0)
        self._answered: list[tuple[bytes, str]] = []
        """Stream id and reason of refusal, or '', of what the queue server has not been told yet."""
        self._most = BATCH_ENTRIES
        self._bytes = FIRST_BYTES
        self._size = 0
        """Bytes of the batch at hand; before it was read, what it may have."""
        self._patience = 1
        """Times the usual time-outs."""
        self._reading = 0.0
        """Seconds that the batch at hand took to arrive."""
        self.delivered = 0

    async def run(self) -> None:
        """Deliver for ever; whatever is in the way costs a capped backoff and a line a minute."""
        failures = 0
        while True:
            try:
                if await self.deliver_batch(wait=WAIT) is None:
                    await asyncio.sleep(WAIT)
                failures = 0
            except Exception as error:
                failures += 1
                self._note_failure(error, failures)
                await asyncio.sleep(min(0.5 * 2 ** min(failures, 8), MAX_BACKOFF))

    def _note_failure(self, error: Exception, failures: int) -> None:
        if isinstance(error, NoReply | TooSlow | httpx.TransportError) and not isinstance(error, UNREACHED):
            self._bytes = max(LEAST_BYTES, min(self._bytes, self._size) // 2)
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)
        if not isinstance(error, RedisError | OSError | httpx.HTTPError | Refused):
            log.exception("relay.failed", failures=failures)  # a fault of ours must not end the delivery of all else
        elif self._complain():
            if isinstance(error, httpx.HTTPError | Refused):
                log.warning("relay.waiting", error=str(error) or repr(error), failures=failures)
            else:
                found = trouble(error)
                log.warning("relay.waiting", error=found.said, remedy=found.remedy, failures=failures)

    async def drain(self, timeout: float) -> bool:
        """Deliver what is left, for `timeout` seconds at most, unless another worker does. True if nothing is left."""
        try:
            async with asyncio.timeout(timeout):
                while more := await self.deliver_batch():
                    pass
                return more is not None or not await self._redis.xlen(self._stream)
        except (httpx.HTTPError, RedisError, OSError, Refused, TimeoutError) as error:
            log.info("relay.not_drained", error=str(error) or repr(error))
            return False

    async def deliver_batch(self, *, wait: float = 0.0) -> bool | None:
        """Send one batch; True if there may be more, None if it is another worker's turn. With `wait`, so many seconds
        for an entry to come. Entries leave the outbox only once they are acknowledged."""
        batch = await self._next_batch()
        if batch is None:
            return None
        if not batch and wait:
            batch = await self._first_entry(wait)
        if not batch:
            return False
        await self._deliver(batch)
        return True

    async def _next_batch(self) -> Batch | None:
        """The oldest entries, within the bounds of a batch; None if another worker delivers. Says what was answered."""
        self._size, self._line.timeout = self._bytes, REPLY_TIMEOUT * self._patience
        turn, answered = int(1000 * TURN * self._patience), self._answered
        arguments = [
            self._me,
            turn,
            self._most,
            self._bytes,
            REFUSED_KEPT,
            *(word for pair in answered for word in pair),
        ]
        began = time.monotonic()
        found = await self._scripts("relay", [self._turn, self._stream, self._refused], arguments, over=self._line)
        self._reading = time.monotonic() - began
        self._answered = []
        return None if found is None else list(zip(found[::2], found[1::2], strict=True))

    async def _first_entry(self, wait: float) -> Batch:
        """What comes next into the empty outbox, whichever worker puts it there; [] after `wait` seconds without."""
        call = ("XREAD", "COUNT", 1, "BLOCK", int(1000 * wait), "STREAMS", self._stream, "0")
        found = await self._line.execute_command(*call)
        if not found:
            return []
        self._reading = 0.0
        ((_, ((row_id, fields),)),) = found
        return [(row_id, dict(zip(fields[::2], fields[1::2], strict=True)).get(ENTRY_FIELD, b""))]

    async def _deliver(self, batch: Batch) -> None:
        self._size = sum(len(raw) for _, raw in batch)
        began = time.monotonic() - self._reading
        refusals = {index: "not JSON" for index, (_, raw) in enumerate(batch) if not _is_json(raw)}
        sent = [index for index in range(len(batch)) if index not in refusals]
        if sent:
            answer = await self._post([batch[index][1] for index in sent])
            if answer is None and len(batch) > 1:
                self._most = max(1, len(batch) // 2)
                return
            refusals |= {0: NOT_TAKEN} if answer is None else {sent[index]: reason for index, reason in answer.items()}
        self._answered = [(row_id, refusals.get(index, "")) for index, (row_id, _) in enumerate(batch)]
        for reason in refusals.values():
            log.error("relay.refused", reason=reason, kept_in=self._refused)
        self.delivered += len(batch) - len(refusals)
        metrics.DELIVERED.inc(len(batch) - len(refusals))
        self._most = min(self._most * 2, BATCH_ENTRIES)
        self._adapt(time.monotonic() - began)

    def _adapt(self, took: float) -> None:
        """Size the next batch by how long this one took. It may be twice as large as what was seen to be quick."""
        if took < QUICK:
            self._bytes = min(2 * self._bytes, max(2 * self._size, FIRST_BYTES), BATCH_BYTES)
            self._patience = max(1, self._patience // 2)
        elif took > SLOW:
            self._bytes = max(LEAST_BYTES, min(self._bytes, self._size) // 2)

    async def _post(self, entries: list[bytes]) -> dict[int, str] | None:
        """index -> reason of the entries that were refused one by one; None if the body as a whole was."""
        # Spliced, not decoded and encoded again: what was settled is what arrives.
        body = b'{"entries":[' + b",".join(entries) + b"]}"
        response = await self._client.post(
            self._path,
            content=body,
            headers={"Content-Type": "application/json"},
            timeout=httpx.Timeout(REQUEST_TIMEOUT * self._patience, connect=5.0),
        )
        if response.status_code in REFUSED_BODY:
            return None
        if response.status_code != httpx.codes.OK:
            kind = TooSlow if response.status_code in TOO_SLOW else Refused
            raise kind(f"{self._client.base_url} answered {response.status_code}: {response.text[:200]}")
        try:
            rows = response.json()["refused"]
            refused = {range(len(entries))[int(row["index"])]: _reason(row["reason"]) for row in rows}
            if any(int(row["index"]) < 0 for row in rows):
                raise IndexError
            return refused
        except (ValueError, TypeError, KeyError, IndexError):
            raise Refused(f"{self._client.base_url} answered no list of refusals: {response.text[:200]}") from None

    async def close(self) -> None:
        """Let another worker deliver at once, and close the HTTP client."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(2.0):
                if await self._redis.get(self._turn) == self._me.encode():
                    await self._redis.delete(self._turn)
        await self._line.close()
        await self._client.aclose()


def _reason(said: Any) -> str:
    """A reason in words that can be stored; none at all would mean that it was taken."""
    return str(said).encode("utf-8", "replace").decode() or "no reason given"


def _is_json(raw: bytes) -> bool:
    """Whether it can stand in the middle of a JSON body: an object in UTF-8, without a byte order mark."""
    try:
        return isinstance(json.loads(raw.decode("utf-8")), dict)
    except (ValueError, RecursionError):
        return False
