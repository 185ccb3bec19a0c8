"""How jobs get from one place to another, whatever their queues and keys are called and whatever is broken."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from saq.job import Status
from saq.queue.redis import RedisQueue

from agent.phoenix import keys
from agent.phoenix.endings import Endings, Quarantined
from agent.phoenix.letters import Letters
from agent.phoenix.queue import UPKEEP_MOST, LaneQueue
from agent.phoenix.runs import Run

SHORT = 0.5


async def claimed(queue: LaneQueue, number: int = 1, worker: str = "me") -> list[Run]:
    runs: list[Run] = (await queue.step(worker, "", number))[1]
    for run in runs:
        run.job, run.attempts = queue.readable(run.text), 1
    return runs


async def parked(queue: LaneQueue, *job_keys: str) -> None:
    endings = Endings(queue, "me", outbox=False)
    for key in job_keys:
        await queue.enqueue("work", key=key)
    runs = await claimed(queue, len(job_keys))
    await queue.step("me", "", 0, [endings.parked(run, "store") for run in runs])


@pytest.mark.parametrize("name", ["plain", "team:q", "a:b:c:"])
@pytest.mark.parametrize("key", ["work:1", "work:a:b:c", "1"])
async def test_a_job_is_let_go_to_its_own_queue_whatever_colons_there_are(redis: Redis, name: str, key: str) -> None:
    others = [LaneQueue(redis, name=other) for other in ("team", "a", "a:b", "plain:work")]
    for other in others:
        await other.enqueue("work", key="work:other")
    queue = LaneQueue(redis, name=name)
    await parked(queue, key)
    assert await queue.unpark("store", 10) == 1
    (run,) = await claimed(queue, 9)
    assert run.id == queue.job_id(key)
    assert [await other.count("queued") for other in others] == [1] * len(others)


async def test_what_is_no_id_and_what_was_aborted_keep_no_other_from_being_let_go(redis: Redis) -> None:
    queue = LaneQueue(redis, name="lane")
    await parked(queue, "work:1", "work:2", "work:3")
    aborted = await queue.job("work:2")
    assert aborted is not None
    await aborted.abort("enough")
    for stranger in ("no id", "saq:job:", "saq:job:nothing", "saq:job::", b"\xff"):
        await redis.lpush(keys.parked_key("store"), stranger)  # type: ignore[arg-type]  # bytes work
    assert await queue.unpark("store", 100) == 8
    assert {run.record for run in await claimed(queue, 9)} == {"1", "3"}
    assert await redis.llen(keys.parked_key("store")) == 0
    assert await redis.smembers(keys.parked_index_key("lane")) == set()


async def test_a_queue_that_cannot_be_written_to_keeps_its_jobs_parked_and_those_of_others_go(redis: Redis) -> None:
    broken, sound = LaneQueue(redis, name="broken"), LaneQueue(redis, name="sound")
    await parked(broken, "work:1")
    await parked(sound, "work:2")
    await redis.set(keys.queued_key("broken"), "somebody else's")
    await sound.unpark("store", 2)
    assert [run.record for run in await claimed(sound)] == ["2"]
    assert await redis.lrange(keys.parked_key("store"), 0, -1) == [broken.job_id("work:1").encode()]
    await redis.delete(keys.queued_key("broken"))
    await broken.unpark("store", 2)
    assert [run.record for run in await claimed(broken)] == ["1"]


@pytest.mark.parametrize("name", ["plain", "team:q"])
async def test_a_letter_is_replayed_to_its_own_queue_or_stays(redis: Redis, name: str) -> None:
    queue = LaneQueue(redis, name=name)
    await queue.enqueue("work", key="work:a:b")
    (run,) = await claimed(queue)
    await queue.step("me", "", 0, [Endings(queue, "me", outbox=False).quarantined(run, Quarantined("bad"))])
    letters = Letters(redis, keys.quarantine_key, ["work"])
    (letter,) = await letters.all()
    assert letter.key == "work:a:b"
    await redis.set(keys.queued_key(name), "somebody else's")
    with pytest.raises(ResponseError, match="not a list; rename it"):
        await letters.replay(letter)
    assert await letters.all() == [letter]
    await redis.delete(keys.queued_key(name))
    assert await letters.replay(letter) == "queued"
    assert [run.id for run in await claimed(queue)] == [queue.job_id("work:a:b")]
    assert await letters.all() == []


@pytest.mark.parametrize("end", ["", "\n", " \r\n\t "])
async def test_a_jobs_text_stays_readable_through_takeovers_whatever_follows_its_last_brace(
    redis: Redis, end: str
) -> None:
    queue = LaneQueue(redis, name="lane", lease=SHORT)
    job = await RedisQueue(redis, name="lane").enqueue("work", key="work:1", a=1)
    assert job is not None
    text = await redis.get(job.id)
    await redis.set(job.id, text + end.encode())
    for _ in range(2):
        (run,) = await claimed(queue)
        assert run.job is not None
        assert run.job.kwargs == {"a": 1}
        running = await queue.job("work:1")
        assert running is not None
        assert (running.status, running.kwargs) == (Status.ACTIVE, {"a": 1})
        await asyncio.sleep(SHORT + 0.05)
        await queue.sweep()
    assert json.loads(await redis.get(job.id))["status"] == "queued"


@pytest.mark.parametrize("text", [b"\x80 no JSON", b'{"function": "work", "key": ', b"   ", b"", b"[1]"])
async def test_a_text_that_is_no_job_stays_as_it_is_through_takeovers(redis: Redis, text: bytes) -> None:
    queue = LaneQueue(redis, name="lane", lease=SHORT)
    await queue.enqueue("work", key="work:1")
    await redis.set(queue.job_id("work:1"), text)
    await claimed(queue)
    await asyncio.sleep(SHORT + 0.05)
    assert await queue.sweep() == [queue.job_id("work:1")]
    assert await redis.get(queue.job_id("work:1")) == text


async def test_hurry_queues_what_failed_and_leaves_what_waits_for_its_first_time(redis: Redis) -> None:
    queue = LaneQueue(redis, name="lane")
    endings = Endings(queue, "me", outbox=False)
    soon = int(time.time()) + 3600
    for number in range(UPKEEP_MOST + 3):
        await queue.enqueue("work", key=f"cron:work:{number}", scheduled=soon - number)
    for key in ("work:failed", "work:parked"):
        await queue.enqueue("work", key=key, attempts_of="no meaning")
    failed, held = await claimed(queue, 2)
    late = endings.retried(failed, ValueError("failed"))
    late.number = 7200
    await queue.step("me", "", 0, [late, endings.parked(held, "store")])
    assert await queue.hurry() == 1
    assert [run.record for run in await claimed(queue, 9)] == ["failed"]
    assert await queue.count("incomplete") == UPKEEP_MOST + 5


async def test_what_was_never_heard_of_is_given_back_however_much_else_runs(redis: Redis) -> None:
    queue = LaneQueue(redis, name="lane")
    number = UPKEEP_MOST + 20
    async with redis.pipeline(transaction=False) as pipe:
        for index in range(number + 2):
            job_id = queue.job_id(f"work:{index}")
            pipe.set(job_id, json.dumps({"function": "work", "key": f"work:{index}", "queue": "lane"}))
            pipe.zadd(keys.incomplete_key("lane"), {job_id: 0})
            pipe.rpush(keys.queued_key("lane"), job_id)
        await pipe.execute()
    lost = [*await claimed(queue, 1), *await claimed(queue, 1)]
    await asyncio.sleep(0.01)
    others: list[Run] = []
    while len(others) < number:  # their leases end later
        others += await claimed(queue, 100, worker="another")
    assert await queue.unheard("me", [lost[1].token]) == 1
    assert [run.id for run in await claimed(queue, 9)] == [lost[0].id]
    assert await queue.count("active") == number + 2


async def test_a_job_without_a_readable_task_is_given_back_as_well(redis: Redis) -> None:
    queue = LaneQueue(redis, name="lane")
    for key in ("work:mine", "work:other"):
        await queue.enqueue("work", key=key)
        await redis.set(queue.job_id(key), json.dumps({"key": key}))
        await queue.step("me" if key == "work:mine" else "another", "", 1)
    assert await queue.unheard("me", []) == 1
    assert await queue.count("active") == 1
    (again,) = await claimed(queue, 9)
    assert again.id == queue.job_id("work:mine")


async def test_what_was_never_heard_of_and_was_to_end_is_over(redis: Redis) -> None:
    queue = LaneQueue(redis, name="lane")
    job = await queue.enqueue("work", key="work:1")
    assert job is not None
    await claimed(queue)
    await job.abort("enough")
    assert await queue.unheard("me", []) == 0
    ended = await queue.job("work:1")
    assert ended is not None
    assert (ended.status, ended.error) == (Status.ABORTED, "enough")
    assert await queue.count("incomplete") == await queue.count("active") == 0
    assert await redis.exists(keys.aborts_key("lane"), keys.lock_key("work", "1")) == 0
