"""The loop that puts on the lanes what the catalogue still owes.

The catalogue is the truth about what is owed, the queue about what waits or runs. A job is marked in the catalogue
only after the queue took it, and enqueueing is idempotent by key: killed between the two, the next hub does it again,
to no effect. A job of another version that waits under its key (the file or the profile has changed since) gives way;
one that runs is waited for. A job that a queue was given and no longer knows (a server that lost its data) is queued
again, once it is certain that its result is not on its way: every outbox entry from before that look has been
delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from itertools import groupby

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from agent.hub.catalogue import Catalogue, CatalogueUnavailable
from agent.hub.debts import Debt
from agent.lanes import lane_for_task, queue_name
from agent.phoenix.keys import queued_key
from agent.phoenix.outbox import outbox_key
from agent.producer import Producer
from agent.redis_client import reply
from agent.redis_trouble import trouble
from agent.throttle import OncePer

log = structlog.get_logger()

PERIOD = 5.0
"""Seconds between passes when nobody pokes."""

BATCH = 500
"""Jobs that are queued, or looked at, between two writes to the catalogue."""

WINDOW = 10_000
"""Jobs that may wait on one queue: the rest waits in the catalogue, where it costs the queue server no memory. Jobs
that wait for a retry do not count, so that a hundred thousand failures do not stop the others."""

CHECK_AFTER = 60.0
"""Seconds that a queued job is trusted to be on its queue."""

QUEUE_TIMEOUT = 30.0
"""Seconds for one conversation with the queue server."""

MAX_BACKOFF = 30.0


class Reconciler:
    """`poke()` when something new may be owed; `run()` until cancelled."""

    def __init__(
        self,
        catalogue: Catalogue,
        producer: Producer,
        redis: Redis,
        *,
        indexed: Callable[[], float] = lambda: 0.0,
        check_after: float = CHECK_AFTER,
    ) -> None:
        """`indexed`: the moment (Unix seconds) before which all recorded fingerprints are in the index."""
        self._catalogue = catalogue
        self._producer = producer
        self._redis = redis
        self._indexed = indexed
        self._check_after = check_after
        self._poked = asyncio.Event()
        self._complain = OncePer(60.0)
        self._suspects: dict[Debt, int] = {}
        """Jobs that their queue did not know, and when (the server's milliseconds)."""

    def poke(self) -> None:
        """Look soon."""
        self._poked.set()

    async def run(self) -> None:
        """Reconcile for ever; what fails is tried again after a capped backoff, and said once a minute."""
        failures = 0
        while True:
            self._poked.clear()
            try:
                await self.reconcile()
                failures = 0
            except (RedisError, OSError, CatalogueUnavailable) as error:
                failures += 1
                if self._complain():
                    remedy = None if isinstance(error, CatalogueUnavailable) else trouble(error).remedy
                    log.warning("reconciler.waiting", error=str(error) or repr(error), remedy=remedy, failures=failures)
            except Exception:
                failures += 1
                log.exception("reconciler.failed", failures=failures)
            if failures:
                await asyncio.sleep(min(0.25 * 2 ** min(failures, 8), MAX_BACKOFF))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):  # wait_for may swallow a cancel that comes with the poke
                    await self._poked.wait()

    async def reconcile(self) -> None:
        """One pass: queue what is owed, then look after what was queued long ago."""
        for agent_id, service in await asyncio.to_thread(self._catalogue.owed_kinds):
            await self._enqueue(agent_id, service)
        if await self._check() + await self._requeue_lost():
            self.poke()

    async def _enqueue(self, agent_id: str, service: str) -> None:
        queued = 0
        outdated: list[Debt] = []
        while (room := await self._room(agent_id, service)) > 0:
            look = partial(self._catalogue.owed, indexed=self._indexed())
            debts = await asyncio.to_thread(look, agent_id, service, min(BATCH, room))
            async with asyncio.timeout(QUEUE_TIMEOUT):
                outdated += [debt for debt in debts if not await self._has_its_job(debt)]
            if debts:
                await asyncio.to_thread(self._catalogue.mark, queued=debts)
            queued += len(debts)
            if len(debts) < BATCH:
                break
        if outdated:  # tried again with the next pass: the one that runs is of another version
            await asyncio.to_thread(self._catalogue.forget, outdated)
        if queued > len(outdated):
            log.info("reconciler.queued", agent=agent_id, task=service, jobs=queued - len(outdated))

    async def _has_its_job(self, debt: Debt) -> bool:
        """Queue it; False where a job of another version runs under its key."""
        asked = (debt.agent_id, debt.service, debt.record_id, debt.payload())
        return await self._producer.enqueue(*asked) or await self._producer.supersede(*asked)

    async def _room(self, agent_id: str, service: str) -> int:
        queue = queue_name(agent_id, lane_for_task(service))
        async with asyncio.timeout(QUEUE_TIMEOUT):
            return WINDOW - await reply(self._redis.llen(queued_key(queue)))

    async def _check(self) -> int:
        """Ask the queues about jobs they were given a while ago; how many they do not know, or know otherwise."""
        due = await asyncio.to_thread(self._catalogue.unchecked, self._check_after, BATCH)
        unknown = 0
        for (agent_id, service), group in groupby(sorted(due, key=_queue_of), key=_queue_of):
            debts = list(group)
            async with asyncio.timeout(QUEUE_TIMEOUT):
                known = await self._producer.pending(agent_id, service, [debt.record_id for debt in debts])
                # After the look: a job that ended before it has its result in the outbox by now.
                seconds, micros = await self._redis.time()
            missing = [debt for debt in debts if debt.record_id not in known]
            self._suspects |= dict.fromkeys(missing, seconds * 1000 + micros // 1000)
            outdated = [debt for debt in debts if known.get(debt.record_id) not in (None, debt.version)]
            if outdated:
                await asyncio.to_thread(self._catalogue.forget, outdated)
            unknown += len(missing) + len(outdated)
        if due:
            await asyncio.to_thread(self._catalogue.mark, checked=due)
        return unknown

    async def _requeue_lost(self) -> int:
        """Queue the suspects again whose results cannot be on their way any more; how many."""
        lost: list[Debt] = []
        for (agent_id, service), group in groupby(sorted(self._suspects, key=_queue_of), key=_queue_of):
            oldest = await self._oldest_undelivered(queue_name(agent_id, lane_for_task(service)))
            lost += [debt for debt in group if oldest is None or oldest > self._suspects[debt]]
        if not lost:
            return 0
        self._suspects = {debt: seen for debt, seen in self._suspects.items() if debt not in set(lost)}
        forgotten = await asyncio.to_thread(self._catalogue.forget, lost)
        if forgotten:
            log.warning("reconciler.jobs_lost", jobs=forgotten, remedy="queued again")
        return forgotten

    async def _oldest_undelivered(self, queue: str) -> int | None:
        """Milliseconds (the server's clock) of the oldest entry in a queue's outbox; None if it is empty."""
        async with asyncio.timeout(QUEUE_TIMEOUT):
            entries = await self._redis.xrange(outbox_key(queue), count=1)
        return int(entries[0][0].split(b"-")[0]) if entries else None


def _queue_of(debt: Debt) -> tuple[str, str]:
    return debt.agent_id, debt.service
