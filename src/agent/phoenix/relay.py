"""The relay: carries the outbox of one queue to the control plane, until each entry is acknowledged.

Delivery repeats after a crash or a lost reply; the catalogue keeps one result per service, record and version, so a
second delivery changes nothing. Entries go oldest first, so that the parts of a result arrive before its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import structlog
from redis.exceptions import RedisError

from agent.phoenix.outbox import ENTRY_FIELD, outbox_key, refused_key
from agent.throttle import OncePer

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

BATCH_ENTRIES = 200
BATCH_BYTES = 4 * 2**20
"""A batch ends at either; one entry larger than this still travels, alone."""

POLL = 5.0
"""Seconds between looks when nobody called: for entries that a worker left behind when it died."""

REQUEST_TIMEOUT = 30.0
MAX_BACKOFF = 30.0
REFUSED_KEPT = 10_000
"""Entries that the control plane would not take, kept for the operator, newest last."""


class Refused(Exception):
    """The control plane refuses the request as a whole; nothing was acknowledged."""


class Relay:
    """One delivery loop. `wake()` after writing to the outbox; `run()` until cancelled; `drain()` before stopping."""

    def __init__(self, redis: Redis, queue: str, *, hub_url: str, agent_id: str, token: str) -> None:
        self._redis = redis
        self._stream = outbox_key(queue)
        self._refused = refused_key(queue)
        self._client = httpx.AsyncClient(
            base_url=hub_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(REQUEST_TIMEOUT, connect=5.0),
        )
        self._path = f"/api/agents/{agent_id}/results"
        self._called = asyncio.Event()
        self._complain = OncePer(60.0)
        self.delivered = 0

    def wake(self) -> None:
        """There is something new to deliver."""
        self._called.set()

    async def run(self) -> None:
        """Deliver for ever; an unreachable control plane or queue server costs a capped backoff and a line a minute."""
        failures = 0
        while True:
            self._called.clear()
            try:
                more = await self.deliver_batch()
                failures = 0
            except (httpx.HTTPError, RedisError, OSError, Refused) as error:
                failures += 1
                if self._complain():
                    log.warning("relay.waiting", error=str(error) or repr(error), failures=failures)
                await asyncio.sleep(min(0.5 * 2 ** min(failures, 8), MAX_BACKOFF))
                continue
            if not more:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._called.wait(), POLL)

    async def drain(self, timeout: float) -> bool:
        """Deliver what is left, for `timeout` seconds at most. True if the outbox is empty."""
        try:
            async with asyncio.timeout(timeout):
                while await self.deliver_batch():
                    pass
        except (httpx.HTTPError, RedisError, OSError, Refused, TimeoutError):
            return False
        return True

    async def deliver_batch(self) -> bool:
        """Send one batch; True if there may be more. Entries leave the outbox only once they are acknowledged."""
        rows = await self._redis.xrange(self._stream, count=BATCH_ENTRIES)
        batch: list[tuple[bytes, bytes]] = []
        size = 0
        for row_id, fields in rows:
            raw = fields.get(ENTRY_FIELD, b"null")
            if batch and size + len(raw) > BATCH_BYTES:
                break
            batch.append((row_id, raw))
            size += len(raw)
        if not batch:
            return False
        refusals = await self._post([raw for _, raw in batch])
        async with self._redis.pipeline(transaction=True) as pipe:
            for index, reason in refusals.items():
                fields = {"reason": reason, ENTRY_FIELD: batch[index][1]}
                pipe.xadd(self._refused, fields, maxlen=REFUSED_KEPT, approximate=True)
                log.error("relay.refused", reason=reason, kept_in=self._refused)
            pipe.xdel(self._stream, *(row_id for row_id, _ in batch))
            await pipe.execute()
        self.delivered += len(batch) - len(refusals)
        return True

    async def _post(self, entries: list[bytes]) -> dict[int, str]:
        """index -> reason of the entries that were refused one by one."""
        # Spliced, not decoded and encoded again: what was settled is what arrives.
        body = b'{"entries":[' + b",".join(entries) + b"]}"
        response = await self._client.post(self._path, content=body, headers={"Content-Type": "application/json"})
        if response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE and len(entries) == 1:
            return {0: "too large for the control plane"}
        if response.status_code != httpx.codes.OK:
            raise Refused(f"{self._client.base_url} answered {response.status_code}: {response.text[:200]}")
        answer: dict[str, Any] = response.json()
        return {int(row["index"]): str(row["reason"]) for row in answer.get("refused", [])}

    async def close(self) -> None:
        """Close the HTTP client."""
        await self._client.aclose()
