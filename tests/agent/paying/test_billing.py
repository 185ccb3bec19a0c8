"""A user's key: one place, one POST, one day; and nobody else's trouble."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from agent.phoenix import keys, permissions
from agent.phoenix.billing import LIFE, ApiKeyManager
from agent.phoenix.billing_service import BillingAway, KeyRefused
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import CircuitHeld
from agent.phoenix.scripts import Scripts
from agent.redis_client import connect
from agent.settings import load_settings
from pipelines.errors import NotGranted
from tests.agent.paying.service import MASTER, Service
from tests.conftest import REPO
from tests.servers import Local


@asynccontextmanager
async def manager(redis: Redis, service: Service | None, **settings: Any) -> AsyncIterator[ApiKeyManager]:
    given = {} if service is None else {"billing_url": service.url, "billing_token": MASTER}
    found = ApiKeyManager.of(load_settings(**{**given, **settings}), redis)
    yield found
    await found.close()


@pytest.fixture
async def api_keys(redis: Redis, service: Service) -> AsyncIterator[ApiKeyManager]:
    async with manager(redis, service) as found:
        yield found


async def stored(redis: Redis, user: str) -> str | None:
    found = await redis.get(keys.api_key_key(user))
    return None if found is None else found.decode()


async def test_a_key_is_made_once_kept_for_a_day_and_no_reading_extends_it(
    redis: Redis, service: Service, api_keys: ApiKeyManager
) -> None:
    key = await api_keys.get("ann")
    assert await redis.get("api_key:user:ann") == key.get_secret_value().encode()
    assert LIFE - 30 <= await redis.ttl("api_key:user:ann") <= LIFE
    await redis.expire("api_key:user:ann", 100)
    assert (await api_keys.get("ann")).get_secret_value() == key.get_secret_value()
    assert await redis.ttl("api_key:user:ann") <= 100
    assert service.ledger()["made"] == {"ann": 1}
    assert key.get_secret_value() not in repr(key) + str(key)


async def test_a_server_that_is_full_keeps_nobody_from_a_key(
    start_server: Callable[..., Local], service: Service
) -> None:
    async with connect(start_server().url) as redis, manager(redis, service) as api_keys:
        await redis.config_set("maxmemory", "1")
        assert (await api_keys.get("ann")).get_secret_value() == await stored(redis, "ann")


@pytest.mark.parametrize(
    ("settings", "answers"),
    [
        ({"billing_path": "/keys/generate"}, True),
        ({"billing_path": "/key/generate", "billing_fields": {"duration": "7d", "models": ["small"]}}, True),
        ({"billing_key_field": "data.nothing,api_key"}, True),
        ({"billing_key_field": "token"}, False),
    ],
)
async def test_path_and_fields_are_the_settings(
    redis: Redis, service: Service, settings: dict[str, Any], answers: bool
) -> None:
    async with manager(redis, service, **settings) as api_keys:
        if not answers:
            with pytest.raises(BillingAway, match="PHAZE_BILLING_KEY_FIELD"):
                await api_keys.get("ann")
            return
        assert (await api_keys.get("ann")).get_secret_value() in service.ledger()["owner"]
    assert service.ledger()["bodies"] == [{"user_id": "ann", **settings.get("billing_fields", {})}]


async def test_fifty_jobs_of_a_new_user_in_one_process_cost_one_post(service: Service, api_keys: ApiKeyManager) -> None:
    found = await asyncio.gather(*(api_keys.get("ann") for _ in range(50)))
    assert len({key.get_secret_value() for key in found}) == 1
    assert service.ledger()["made"] == {"ann": 1}


PROCESS = """
import asyncio, sys
from agent.phoenix.billing import ApiKeyManager
from agent.redis_client import connect
from agent.settings import load_settings

async def main():
    redis = connect(sys.argv[1])
    found = ApiKeyManager.of(load_settings(billing_url=sys.argv[2], billing_token=sys.argv[3]), redis)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    keys = await asyncio.gather(*(found.get("ann") for _ in range(17)))
    print(*{key.get_secret_value() for key in keys})
    await found.close()
    await redis.aclose()

asyncio.run(main())
"""


async def test_fifty_jobs_of_a_new_user_in_three_processes_cost_one_post(valkey_url: str, service: Service) -> None:
    async def start() -> asyncio.subprocess.Process:
        argv = [sys.executable, "-c", PROCESS, valkey_url, service.url, MASTER]
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*argv, cwd=REPO, **pipes)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        return process

    processes = await asyncio.gather(*(start() for _ in range(3)))
    answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert len({said for said, _ in answers}) == 1
    assert service.ledger()["made"] == {"ann": 1}


async def test_a_killed_holder_of_the_lock_holds_nobody_up_for_long(
    redis: Redis, service: Service, api_keys: ApiKeyManager, valkey_url: str
) -> None:
    service.fault(wait=600)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, valkey_url, service.url, MASTER,
        cwd=REPO, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    async with asyncio.timeout(30):
        while not await redis.exists(keys.api_key_lock_key("ann")):
            await asyncio.sleep(0.02)
    process.kill()
    await process.wait()
    assert 0 < await redis.pttl(keys.api_key_lock_key("ann")) <= 15_000
    service.fault()
    await redis.pexpire(keys.api_key_lock_key("ann"), 300)  # its end, sooner
    async with asyncio.timeout(20):
        found = await asyncio.gather(*(api_keys.get("ann") for _ in range(20)))
    assert len({key.get_secret_value() for key in found}) == 1
    assert service.ledger()["made"] == {"ann": 1}
    assert not await redis.exists(keys.api_key_lock_key("ann"))


async def test_who_was_held_up_beyond_its_lock_takes_the_key_that_another_has_made(
    redis: Redis, service: Service, api_keys: ApiKeyManager
) -> None:
    service.fault(wait=1.0)
    slow = asyncio.create_task(api_keys.get("ann"))
    async with asyncio.timeout(10):
        while not await redis.exists(keys.api_key_lock_key("ann")):
            await asyncio.sleep(0.01)
    await redis.delete(keys.api_key_lock_key("ann"))
    await redis.set("api_key:user:ann", "anothers-key")
    assert (await slow).get_secret_value() == "anothers-key"
    assert await stored(redis, "ann") == "anothers-key"


async def test_a_refused_key_is_forgotten_and_made_once_however_many_runs_it_was_refused_to(
    redis: Redis, service: Service, api_keys: ApiKeyManager
) -> None:
    old = await api_keys.get("ann")
    found = await asyncio.gather(*(api_keys.renew("ann", old) for _ in range(20)))
    assert len({key.get_secret_value() for key in found}) == 1
    assert service.ledger()["made"] == {"ann": 2}
    await api_keys.renew("ann", old)  # late: there is a newer one
    assert service.ledger()["made"] == {"ann": 2}


async def test_an_outage_of_the_billing_service_is_its_own_circuits(
    redis: Redis, service: Service, api_keys: ApiKeyManager
) -> None:
    await api_keys.get("known")
    for status in (500, 429, 401, 503, 302):
        service.fault(billing=status)
        with pytest.raises(BillingAway, match=str(status)):
            await api_keys.get(f"user-{status}")
    with pytest.raises(CircuitHeld) as held:
        await api_keys.get("another")
    assert held.value.circuit == "billing"
    await api_keys.get("known")
    (circuit,) = await Breakers(Scripts(redis), redis).all(users=True)
    assert (circuit.name, circuit.state) == ("billing", "open")
    assert not [key async for key in redis.scan_iter("phoenix:api-key-lock:*")]


async def test_a_service_that_is_not_there_or_silent_is_not_waited_for_long(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with manager(redis, None, billing_url="http://127.0.0.1:9") as api_keys:
        with pytest.raises(BillingAway, match="PHAZE_BILLING_URL"):
            await api_keys.get("ann")
    monkeypatch.setattr("agent.phoenix.billing_service.TIMEOUT", 0.5)
    service.fault(wait=60)
    async with manager(redis, service) as api_keys:
        with pytest.raises(BillingAway, match="does not answer"):
            await api_keys.get("ann")


async def test_a_user_to_whom_no_key_is_given_troubles_nobody_else(
    redis: Redis, service: Service, api_keys: ApiKeyManager
) -> None:
    service.fault(refuses=["bad"])
    for _ in range(8):
        with pytest.raises(KeyRefused, match="no such user"):
            await api_keys.get("bad")
    await api_keys.get("good")
    (circuit,) = await Breakers(Scripts(redis), redis).all(users=True)
    assert (circuit.name, circuit.state, circuit.failures) == ("billing", "closed", 0)


async def test_without_a_service_a_key_that_an_operator_stored_is_used(redis: Redis) -> None:
    async with manager(redis, None) as api_keys:
        with pytest.raises(NotGranted, match="PHAZE_BILLING_URL"):
            await api_keys.get("ann")
        await redis.set("api_key:user:ann", "by-hand\n")
        key = await api_keys.get("ann")
        assert key.get_secret_value() == "by-hand"
        with pytest.raises(NotGranted):
            await api_keys.renew("ann", key)
        await redis.set("api_key:user:ann", "two\nlines")
        with pytest.raises(NotGranted, match="DEL") as caught:
            await api_keys.get("ann")
        assert "two" not in str(caught.value)
        with pytest.raises(NotGranted, match="no user"):
            await api_keys.get("")


ODD = [
    "a/b", "a:b:lock", "user:*", "Ünïcødé \N{GRINNING FACE}", "e\u0301", "\u00e9", "x" * 10_000, "x" * 10_001,
    "\ud800", "\0", "\n", "sha256:" + "0" * 64, " ", "..", "a\\b\"c'd",
]  # fmt: skip


async def test_users_of_any_name_have_each_a_key_of_their_own(
    redis: Redis, service: Service, api_keys: ApiKeyManager
) -> None:
    found = [(await api_keys.get(user)).get_secret_value() for user in ODD]
    assert len(set(found)) == len(ODD)
    assert [(await api_keys.get(user)).get_secret_value() for user in ODD] == found
    owner = service.ledger()["owner"]
    assert [owner[key] for key in found] == ODD
    assert max([len(key) async for key in redis.scan_iter("*")]) < 400


@given(st.lists(st.text(), unique=True, max_size=20) | st.just(ODD))
def test_no_two_users_share_a_name(users: list[str]) -> None:
    names = [keys.user_name(user) for user in users]
    assert len(set(names)) == len(users)
    assert not set(names) & {keys.user_name(name) for name in names if name not in users}
    for name in names:
        json.dumps(name).encode("utf-8")
        assert len(name.encode()) <= keys.LONGEST_USER


async def test_the_readmes_least_rule_is_enough_for_keys(start_server: Callable[..., Local], service: Service) -> None:
    server = start_server("--requirepass", "all")
    admin = connect(f"redis://:all@127.0.0.1:{server.port}")
    await admin.execute_command(*permissions.rule().split())
    redis = connect(f"redis://phaze:PASSWORD@127.0.0.1:{server.port}")
    async with manager(redis, service) as api_keys:
        first = await api_keys.get("ann")
        assert (await api_keys.renew("ann", first)).get_secret_value() != first.get_secret_value()
    await redis.aclose()
    await admin.aclose()
