"""Users' API keys: kept for a day where all workers find them, made by the billing service once when they are missing.

    found in api_key:user:<id> ------------------------------------------------> used
    missing --(lock: one in the fleet)--> made --(kept only by the lock's owner)--> used
            '-(locked by another)-> waits for the key, or for the lock's end
    refused by a provider (401) --(forgotten, unless there is a newer one)--> missing

A key's day begins when it is made, and no reading extends it: what was revoked is asked for anew after a day at most.
A holder of the lock that is killed holds up its user until the lock ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from pydantic import SecretStr
from redis.exceptions import RedisError

from agent.phoenix import keys
from agent.phoenix.billing_service import KEY, BillingAway, BillingService
from agent.phoenix.breaker import Breakers, Outcome
from agent.phoenix.scripts import Scripts
from agent.redaction import hide
from agent.redis_client import persist
from pipelines.errors import NotGranted

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from agent.settings import Settings

LIFE = 86_400
"""Seconds for which a key is kept."""

LOCK = 15.0
"""Seconds after which another may make the key; longer than the service gets for it and its storing."""

PATIENCE = 45.0
"""Seconds that others wait: for a holder that was killed, and for who makes the key after it."""

LOOK = 0.5
"""Seconds between two looks whether it is there, at most."""

STORE = 3.0
"""Seconds for a new key to be stored, should the server be away just then."""


class ApiKeyManager:
    """Keys of users. `service`: who makes them; None: only what is there already (`SET api_key:user:<id> <key>`)."""

    def __init__(self, redis: Redis, breakers: Breakers, service: BillingService | None) -> None:
        self._redis = redis
        self._scripts = Scripts(redis)
        self._breakers = breakers
        self._service = service

    @classmethod
    def of(cls, settings: Settings, redis: Redis, breakers: Breakers | None = None) -> Self:
        """As PHAZE_BILLING_* say."""
        url = settings.billing_url
        service = None if url is None else BillingService(url, settings)
        return cls(redis, breakers or Breakers(Scripts(redis), redis), service)

    async def get(self, user: str) -> SecretStr:
        """The user's key, made if there is none.

        Raises BillingAway (ask again later), KeyRefused and NotGranted, and CircuitHeld while the billing service is
        given a rest.
        """
        if not user:
            raise NotGranted("there is no user to have a key for; name one in the job's arguments")
        if (found := await self._stored(user)) is not None:
            return found
        if self._service is None:
            raise NotGranted("PHAZE_BILLING_URL is not set, and the user has no key; set it, or store the key yourself")
        return await self._made(user, self._service)

    async def renew(self, user: str, refused: SecretStr) -> SecretStr:
        """The key to use instead of one that a provider refused; made anew unless another run has done so. See get."""
        await self._scripts("drop_key", [keys.api_key_key(user)], [refused.get_secret_value()])
        return await self.get(user)

    async def close(self) -> None:
        """Close the HTTP client."""
        if self._service is not None:
            await self._service.close()

    async def _stored(self, user: str) -> SecretStr | None:
        found = await persist(lambda: self._redis.get(keys.api_key_key(user)), PATIENCE)
        return None if found is None else _checked(found)

    async def _made(self, user: str, service: BillingService) -> SecretStr:
        """One in the fleet has it made; the others wait for that."""
        me, lock = uuid4().hex, keys.api_key_lock_key(user)
        ends, pause = time.monotonic() + PATIENCE, 0.02
        while time.monotonic() < ends:
            holder = await self._scripts("hold_key", [lock], [me, int(LOCK * 1000)])
            if holder is None or holder == me.encode():  # the latter: our word was heard, and its answer lost
                return await self._make(user, service, me)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing
            pause = min(2 * pause, LOOK)
            if (found := await self._stored(user)) is not None:
                return found
        raise BillingAway(f"nobody has made the user's key within {PATIENCE:.0f} s; the next attempt asks again")

    async def _make(self, user: str, service: BillingService, me: str) -> SecretStr:
        made = ""
        try:
            if (found := await self._stored(user)) is not None:  # made between our look and our lock
                return found
            async with self._breakers.guard(keys.BILLING_CIRCUIT, me, _outcome):
                key = await service.generate(user)
            made = key.get_secret_value()
            holds = await persist(lambda: self._end(user, me, made), STORE)
            return key if holds is None else _checked(holds)
        finally:
            if not made:
                with contextlib.suppress(RedisError, OSError):
                    async with asyncio.timeout(1.0):
                        await self._end(user, me, "")

    async def _end(self, user: str, me: str, made: str) -> bytes | None:
        names = [keys.api_key_key(user), keys.api_key_lock_key(user)]
        found: bytes | None = await self._scripts("keep_key", names, [me, made, LIFE])
        return found


def _checked(raw: bytes) -> SecretStr:
    text = raw.decode("utf-8", "replace").strip()
    if not KEY.fullmatch(text):
        raise NotGranted("the key that is stored for the user is none; DEL its api_key:user:<id>")
    hide(text)
    return SecretStr(text)


def _outcome(error: BaseException) -> Outcome:
    """What an exception says about the billing service."""
    return "failed" if isinstance(error, BillingAway) else "ok" if isinstance(error, NotGranted) else "void"
