"""The relay: carries the outbox of one queue to the control plane, until each entry is acknowledged.

Delivery repeats after a crash or a lost reply; the catalogue keeps one result per service, record and version, so a
second delivery changes nothing. Entries go oldest first, so that the parts of a result arrive before its end.
Of several workers on one queue one delivers, as long as it says so every few seconds; the others stand by.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import structlog
from redis.exceptions import RedisError

from agent import metrics
from agent.phoenix.outbox import ENTRY_FIELD, outbox_key, refused_key, relay_key
from agent.throttle import OncePer

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

BATCH_ENTRIES = 200
BATCH_BYTES = 4 * 2**20
"""A batch ends at either; one entry larger than this still travels, alone."""

WAIT = 5.0
"""Seconds of one wait for an entry, and between looks whether the worker that delivers is still there."""

TURN = 10.0
"""Seconds after which another worker delivers, when the one that did says nothing more."""

REQUEST_TIMEOUT = 30.0
MAX_BACKOFF = 30.0
REFUSED_KEPT = 10_000
"""Entries that the control plane would not take, kept for the operator, newest last."""

REFUSED_BODY = frozenset({400, 413, 422})
"""Answers that say that the body is at fault: it is sent again in halves, down to the entry that spoils it."""

NOT_TAKEN = "the control plane does not take its like: too large, or not well formed"


class Refused(Exception):
    """The control plane refuses the request as a whole; nothing was acknowledged."""


class Relay:
    """One delivery loop: `run()` until cancelled, `drain()` before stopping."""

    def __init__(self, redis: Redis, queue: str, *, hub_url: str, agent_id: str, token: str) -> None:
        self._redis = redis
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
        self._most = BATCH_ENTRIES
        self.delivered = 0

    async def run(self) -> None:
        """Deliver for ever; an unreachable control plane or queue server costs a capped backoff and a line a minute."""
        failures = 0
        while True:
            try:
                if await self._has_turn():
                    if await self._something_to_deliver():
                        await self.deliver_batch()
                else:
                    await asyncio.sleep(WAIT)
                failures = 0
            except (RedisError, OSError):
                failures += 1  # the pump says so
            except (httpx.HTTPError, Refused) as error:
                failures += 1
                if self._complain():
                    log.warning("relay.waiting", error=str(error) or repr(error), failures=failures)
            except Exception:  # a fault of ours must not end the delivery of everything else
                failures += 1
                log.exception("relay.failed", failures=failures)
            if failures:
                await asyncio.sleep(min(0.5 * 2 ** min(failures, 8), MAX_BACKOFF))

    async def _has_turn(self) -> bool:
        """Whether it is this worker that delivers, for another while. A second one would only repeat what it does."""
        if await self._redis.set(self._turn, self._me, nx=True, px=int(TURN * 1000)):
            return True
        if await self._redis.get(self._turn) != self._me.encode():
            return False
        return bool(await self._redis.pexpire(self._turn, int(TURN * 1000)))

    async def _something_to_deliver(self) -> bool:
        """Wait until the outbox holds something, whichever worker puts it there; False after a while without."""
        return bool(await self._redis.xread({self._stream: "0"}, count=1, block=int(WAIT * 1000)))

    async def drain(self, timeout: float) -> bool:
        """Deliver what is left, for `timeout` seconds at most, unless another worker does. True if nothing is left."""
        try:
            async with asyncio.timeout(timeout):
                if not await self._has_turn():
                    return not await self._redis.xlen(self._stream)
                while await self.deliver_batch():
                    pass
        except (httpx.HTTPError, RedisError, OSError, Refused, TimeoutError):
            return False
        return True

    async def deliver_batch(self) -> bool:
        """Send one batch; True if there may be more. Entries leave the outbox only once they are acknowledged."""
        batch = await self._next_batch()
        if not batch:
            return False
        refusals = {index: "not JSON" for index, (_, raw) in enumerate(batch) if not _is_json(raw)}
        sent = [index for index in range(len(batch)) if index not in refusals]
        if sent:
            answer = await self._post([batch[index][1] for index in sent])
            if answer is None and len(batch) > 1:
                self._most = max(1, len(batch) // 2)
                return True
            refusals |= {0: NOT_TAKEN} if answer is None else {sent[index]: reason for index, reason in answer.items()}
        self._most = min(self._most * 2, BATCH_ENTRIES)
        async with self._redis.pipeline(transaction=True) as pipe:
            for index, reason in refusals.items():
                fields: dict[Any, Any] = {"reason": reason, ENTRY_FIELD: batch[index][1]}
                pipe.xadd(self._refused, fields, maxlen=REFUSED_KEPT, approximate=True)
            pipe.xdel(self._stream, *(row_id for row_id, _ in batch))
            await pipe.execute()
        for reason in refusals.values():
            log.error("relay.refused", reason=reason, kept_in=self._refused)
        self.delivered += len(batch) - len(refusals)
        metrics.DELIVERED.inc(len(batch) - len(refusals))
        return True

    async def _next_batch(self) -> list[tuple[bytes, bytes]]:
        """(stream id, raw entry) of the oldest entries, within the bounds of a batch."""
        batch: list[tuple[bytes, bytes]] = []
        size = 0
        for row_id, fields in await self._redis.xrange(self._stream, count=self._most):
            raw = fields.get(ENTRY_FIELD, b"")
            if batch and size + len(raw) > BATCH_BYTES:
                break
            batch.append((row_id, raw))
            size += len(raw)
        return batch

    async def _post(self, entries: list[bytes]) -> dict[int, str] | None:
        """index -> reason of the entries that were refused one by one; None if the body as a whole was."""
        # Spliced, not decoded and encoded again: what was settled is what arrives.
        body = b'{"entries":[' + b",".join(entries) + b"]}"
        response = await self._client.post(self._path, content=body, headers={"Content-Type": "application/json"})
        if response.status_code in REFUSED_BODY:
            return None
        if response.status_code != httpx.codes.OK:
            raise Refused(f"{self._client.base_url} answered {response.status_code}: {response.text[:200]}")
        try:
            rows = response.json()["refused"]
            refused = {range(len(entries))[int(row["index"])]: str(row["reason"]) for row in rows}
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
        await self._client.aclose()


def _is_json(raw: bytes) -> bool:
    """Whether it can stand in the middle of a JSON body: an object in UTF-8, without a byte order mark."""
    try:
        return isinstance(json.loads(raw.decode("utf-8")), dict)
    except (ValueError, RecursionError):
        return False
