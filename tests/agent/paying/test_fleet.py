"""Nobody pays for another, no key is written down anywhere, and every token that was reported is counted once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from agent.hub.catalogue import Catalogue
from agent.phoenix import keys
from agent.phoenix.breaker import Breakers
from tests.agent.paying.fleet import QUEUE, Fleet, fleet
from tests.agent.paying.service import COMPLETION, MASTER, PROMPT, Service
from tests.hub.conftest import catalogue as catalogue_fixture
from tests.hub.deliveries import TOKEN

catalogue = catalogue_fixture

USERS, JOBS = 30, 300


@pytest.fixture
async def running(
    redis: Redis, valkey_url: str, service: Service, catalogue: Catalogue, tmp_path: Path
) -> AsyncIterator[Fleet]:
    async with fleet(redis, valkey_url, service, catalogue, tmp_path) as found:
        yield found


@pytest.mark.timeout(600)  # half a minute is usual
@pytest.mark.parametrize(("form", "kills"), [("call", 3), ("child", 3)])
async def test_three_hundred_jobs_of_thirty_users_are_paid_each_by_its_own_though_workers_are_killed(
    running: Fleet, form: str, kills: int
) -> None:
    chance = random.Random(form)
    settings = {"WORKER_MAX_JOBS": "10", "PHAZE_LANE_IO_CONCURRENCY": "10", "CHAOS_TIMES": "2 0.5 60"}
    worker = await running.worker(**settings)
    users = [f"user/{number % USERS}" for number in range(JOBS)]
    chance.shuffle(users)
    for record, user in enumerate(users):
        await running.read(str(record), user, form)
    for blow in range(kills):
        share = JOBS * (blow + 1) // (kills + 2)

        async def is_time(share: int = share) -> bool:
            return running.service.answered() >= share

        await running.until(is_time, within=250)
        worker.kill()
        await worker.wait()
        worker = await running.worker(**settings)
    await running.until(running.quiet, within=250)

    calls = running.calls()
    wrong = [call for call in calls if call["payer"] != call["meant"]]
    assert wrong == []
    assert {call["record"]: call["payer"] for call in calls} == {str(n): user for n, user in enumerate(users)}
    recorded = running.recorded()
    assert {record: row["result"]["text"] for record, row in recorded.items()} == {
        str(number): f"for {user}" for number, user in enumerate(users)
    }
    made = {user: count for user, count in running.service.ledger()["made"].items() if user in users}
    assert made.keys() == set(users)
    assert sum(made.values()) <= USERS + 10 * kills, "one each, and one more where a worker died over it"
    # What was reported is counted once. A killed worker's last calls may have been answered and not yet reported.
    answered = Counter(call["payer"] for call in calls)
    counted = {row.user: row for row in running.catalogue.usage(by=("user",))}
    for user, number in answered.items():
        row = counted[user]
        assert (row.prompt_tokens, row.completion_tokens) == (PROMPT * row.calls, COMPLETION * row.calls)
        assert row.calls <= number
    unreported = sum(answered.values()) - sum(row.calls for row in counted.values())
    assert unreported <= 10 * kills
    assert sum(row.calls for row in counted.values()) >= JOBS


async def test_openais_own_client_in_a_child_pays_with_the_users_key(running: Fleet) -> None:
    await running.worker()
    for number in range(3):
        await running.read(str(number), f"user{number}", "client-in-child")
    await running.until(running.quiet)
    assert {call["payer"] for call in running.calls()} == {"user0", "user1", "user2"}
    assert all(call["payer"] == call["meant"] for call in running.calls())
    assert sum(row.calls for row in running.catalogue.usage(by=("user",))) == 3


async def test_a_refused_key_is_made_anew_once_and_the_job_goes_on(running: Fleet) -> None:
    await running.worker()
    for form in ("call", "child"):
        await running.read(f"before-{form}", "ann", form)
        await running.until(running.quiet)
        running.service.revoke("ann")
        await running.read(f"after-{form}", "ann", form)
        await running.until(running.quiet)
    assert {row["attempts"] for row in running.recorded().values()} == {1}
    assert running.service.ledger()["made"] == {"ann": 3}


@pytest.mark.parametrize(
    ("fault", "most_made"), [({"refuses": ["bad"]}, 0), ({"unpaid": {"bad": 401}}, 9), ({"unpaid": {"bad": 429}}, 1)]
)
async def test_a_user_whose_keys_are_all_refused_holds_up_nobody_else(
    running: Fleet, redis: Redis, fault: dict[str, Any], most_made: int
) -> None:
    await running.worker(PHAZE_LANE_IO_CONCURRENCY="8")
    if "refuses" in fault:
        await redis.set(keys.api_key_key("bad"), "never-good-key")
    running.service.fault(**fault)
    for number in range(8):
        await running.read(f"bad{number}", "bad")
    breakers = Breakers(running.queue.scripts, redis)

    async def is_open() -> bool:
        return (await breakers.look(keys.user_circuit("openai", "bad"))).state == "open"

    await running.until(is_open)
    assert running.service.ledger()["made"].get("bad", 0) <= most_made, "one more for each run at most"
    for number in range(8):
        await running.read(f"good{number}", "good")

    async def good_is_done() -> bool:
        return len(running.recorded()) == 8

    await running.until(good_is_done)
    assert (await breakers.look("openai")).state == "closed"
    assert {circuit.name for circuit in await breakers.all()} <= {"billing", "openai"}
    assert [circuit.name for circuit in await breakers.all(users=True) if ":user:" in circuit.name] == [
        "openai:user:bad"
    ]
    async with httpx.AsyncClient(base_url=running.hub_url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert ":user:" not in (await client.get("/metrics")).text, "no series a user"


async def test_a_provider_that_fails_is_the_trouble_of_no_single_user(running: Fleet, redis: Redis) -> None:
    await running.worker()
    running.service.fault(provider=503)
    for number, form in enumerate(("call", "child", "client-in-child") * 2):
        await running.read(str(number), f"user{number}", form)
    breakers = Breakers(running.queue.scripts, redis)

    async def is_open() -> bool:
        return (await breakers.look("openai")).state == "open"

    await running.until(is_open)
    assert [circuit.name for circuit in await breakers.all(users=True)] == ["billing", "openai"]


async def test_what_failed_runs_spent_is_counted_too(running: Fleet) -> None:
    await running.worker()
    for form, then in (("call", "fail"), ("child", "fail"), ("child", "die")):
        await running.read(f"{form}-{then}", "ann", form, then=then)

    async def counted() -> bool:
        return len(running.catalogue.usage(by=("record_id",))) == 3

    await running.until(counted)
    assert running.recorded() == {}
    assert {row.user for row in running.catalogue.usage(by=("user",))} == {"ann"}


async def test_what_was_spent_waits_in_the_outbox_while_the_hub_is_away(running: Fleet, redis: Redis) -> None:
    there, running.hub_url = running.hub_url, "http://127.0.0.1:9"
    worker = await running.worker()
    for number in range(5):
        await running.read(str(number), "ann")

    async def is_done() -> bool:
        return not await running.queue.count("incomplete")

    await running.until(is_done)
    worker.kill()
    await worker.wait()
    assert running.catalogue.usage(by=()) == []
    running.hub_url = there
    await running.worker()
    await running.until(running.quiet)
    (row,) = running.catalogue.usage(by=("user",))
    assert (row.user, row.calls, row.records, row.prompt_tokens) == ("ann", 5, 5, 5 * PROMPT)


async def dump(redis: Redis) -> dict[str, str]:
    """Everything on the server, but for the one place where keys are."""
    found: dict[str, str] = {}
    async for raw in redis.scan_iter("*"):
        key = raw.decode("utf-8", "surrogateescape")
        if key.startswith("api_key:user:"):
            continue
        kind = (await redis.type(raw)).decode()
        if kind == "none":  # gone since it was listed: keys live for a while, and the fleet works on
            continue
        read: dict[str, Any] = {
            "string": lambda key: redis.get(key), "list": lambda key: redis.lrange(key, 0, -1),
            "set": lambda key: redis.smembers(key), "hash": lambda key: redis.hgetall(key),
            "zset": lambda key: redis.zrange(key, 0, -1), "stream": lambda key: redis.xrange(key),
        }  # fmt: skip
        found[key] = str(await read[kind](raw))
    return found


async def test_no_key_is_written_down_anywhere(running: Fleet, redis: Redis, tmp_path: Path) -> None:
    await running.worker()
    await running.read("fine", "ann")
    await running.read("told", "ann", then="tell")
    await running.read("printed", "ann", "child", then="tell")
    await running.read("answered", "ann", then="tell", version="second")
    await running.until(lambda: _all_ended(running))
    told = await running.queue.job("read_page:told")
    assert told is not None
    assert "what is '[redacted]'?" in (told.error or "")
    running.service.revoke("ann")
    await running.read("refused", "ann", "child", then="tell")  # whose answer has the key in its text
    running.service.fault(refuses=["ann"])
    await redis.delete("api_key:user:ann")
    await running.read("not-made", "ann")
    await running.until(lambda: _said(running, "no such user"))
    secrets = [*running.service.ledger()["issued"], MASTER]
    assert len(secrets) > 1

    written = {f"redis: {key}": text for key, text in (await dump(redis)).items()}
    for file in [*tmp_path.rglob("*.log"), *tmp_path.rglob("catalogue*")]:
        written[str(file)] = file.read_bytes().decode("utf-8", "replace")
    async with httpx.AsyncClient(base_url=running.hub_url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        pages = ["/", "/usage", "/usage?user=ann", "/saq/", f"/saq/api/queues/{QUEUE}", "/metrics",
                 "/api/results?task=read_page", "/api/usage"]  # fmt: skip
        pages += [f"/saq/api/queues/{QUEUE}/jobs/read_page:{name}" for name in ("told", "printed", "answered")]
        for page in pages:
            answer = await client.get(page)
            assert answer.status_code == 200, page
            written[page] = answer.text
    for place, text in written.items():
        for secret in secrets:
            assert secret not in text, place
            assert secret[10:34] not in text, f"half of it in {place}"
    assert "[redacted]" in running.recorded()["answered"]["result"]["text"]
    assert "my key is [redacted]" in running.log.read_text("utf-8")


async def _all_ended(running: Fleet) -> bool:
    jobs = await running.queue.jobs(["read_page:told", "read_page:printed", "read_page:answered"])
    return all(job is not None and ((job.attempts > 0 and job.error) or job.completed) for job in jobs)


async def _said(running: Fleet, words: str) -> bool:
    await asyncio.sleep(0.1)
    return words in running.log.read_text("utf-8")
