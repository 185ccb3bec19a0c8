"""How runs end on the server: answers that were lost, keys of another type, numbers that the server cannot keep."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from saq.job import Status

from agent.phoenix import keys, worker
from agent.phoenix.endings import MARKER_IDLE, Endings, Quarantined, Result
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.runs import Ending, Run
from pipelines.errors import RecordNotFoundError
from tests.agent.phoenix.engines import NAME, Lanes, over, running, until

lanes = Lanes()

MARKER = json.dumps({"timestamp": time.time(), "version": "v", "token": "1", "outcome": "done", "result": "well"})
ENDINGS: dict[str, Callable[[Endings, Run], Ending]] = {
    "done": lambda endings, run: endings.done(run, Result("well")),
    "skipped": lambda endings, run: endings.done(run, Result(None, "skipped", remember=False)),
    "answered": lambda endings, run: endings.answered(run, json.loads(MARKER), MARKER),
    "dead letter": lambda endings, run: endings.buried(run, RecordNotFoundError("gone")),
    "quarantined": lambda endings, run: endings.quarantined(run, Quarantined("bad")),
    "aborted": lambda endings, run: endings.aborted(run, "enough"),
    "retried": lambda endings, run: endings.retried(run, ValueError("failed")),
    "died": lambda endings, run: endings.retried(run, ValueError("failed"), own_death=True),
    "released": lambda endings, run: endings.released(run),
    "parked": lambda endings, run: endings.parked(run, "store"),
}
MARKED = {"done"}
each_ending = pytest.mark.parametrize("end", ENDINGS)


@pytest.fixture
def queue(redis: Redis) -> LaneQueue:
    return lanes.queue(redis)


async def claimed(queue: LaneQueue, number: int = 1) -> list[Run]:
    for index in range(number):
        await queue.enqueue("work", key=f"work:{index}")
    _, runs = (await queue.step("me", "", number))[:2]
    for run in runs:
        run.job, run.attempts = queue.readable(run.text), 1
    return runs


async def ended(queue: LaneQueue, *endings: Ending) -> list[str]:
    return (await queue.step("me", "", 0, endings))[0]


async def dump(redis: Redis) -> dict[bytes, bytes | None]:
    """All that the server holds, but for counts and streams' own ids."""
    return {key: await redis.dump(key) for key in sorted(await redis.keys()) if b"counters" not in key}


@each_ending
async def test_an_ending_that_is_sent_again_is_settled_and_changes_nothing(
    queue: LaneQueue, redis: Redis, end: str
) -> None:
    (run,) = await claimed(queue)
    ending = ENDINGS[end](Endings(queue, "me", outbox=True), run)
    assert await ended(queue, ending) == ["settled"]
    before = await dump(redis)
    assert await ended(queue, ending, ending) == ["settled", "settled"]
    assert await dump(redis) == before
    assert await redis.hget(keys.counters_key(NAME), "stale") is None
    remembered = await redis.pttl(keys.ended_key(run.token))
    assert (remembered > 0) == (end not in MARKED), "a marker is memory enough"


async def test_an_answer_from_a_marker_lets_it_live_on_and_tells_the_control_plane_again(
    queue: LaneQueue, redis: Redis
) -> None:
    (run,) = await claimed(queue)
    marker = keys.marker_key("work", "0")
    await redis.set(marker, MARKER, px=1_000)
    assert await ended(queue, ENDINGS["answered"](Endings(queue, "me", outbox=True), run)) == ["settled"]
    assert await redis.get(marker) == MARKER.encode()
    assert 1_000 < await redis.pttl(marker) <= MARKER_IDLE * 1000
    ((_, fields),) = await redis.xrange(outbox_key(NAME))
    assert fields == {b"entry": MARKER.encode()}


@pytest.mark.parametrize("since", ["forgotten", "a newer version"])
async def test_an_answer_from_a_marker_brings_back_nothing_that_was_changed_meanwhile(
    queue: LaneQueue, redis: Redis, since: str
) -> None:
    (run,) = await claimed(queue)
    marker = keys.marker_key("work", "0")
    if since != "forgotten":
        await redis.set(marker, "newer", px=2 * MARKER_IDLE * 1000)
    ending = ENDINGS["answered"](Endings(queue, "me", outbox=True), run)
    assert await ended(queue, ending, ending) == ["settled", "settled"]
    assert await redis.get(marker) == (None if since == "forgotten" else b"newer")
    assert since == "forgotten" or await redis.pttl(marker) > MARKER_IDLE * 1000


@each_ending
async def test_an_ending_by_somebody_whose_run_was_taken_over_is_stale(
    queue: LaneQueue, redis: Redis, end: str
) -> None:
    (run,) = await claimed(queue)
    await asyncio.sleep(queue.lease + 0.05)
    await queue.sweep()
    await queue.step("new", "", 1)
    assert await ended(queue, ENDINGS[end](Endings(queue, "me", outbox=True), run)) == ["stale"]
    assert await redis.hget(keys.counters_key(NAME), "stale") == b"1"


async def test_a_recorded_result_costs_no_more_commands_than_it_must(queue: LaneQueue, redis: Redis) -> None:
    """Locks, aborts, the outbox's type; twice its place; marker, entry, job, listeners; the lock."""
    (run,) = await claimed(queue)
    await redis.config_resetstat()
    assert await ended(queue, Endings(queue, "me", outbox=True).done(run, Result("well"))) == ["settled"]
    stats = await redis.info("commandstats")
    calls = {name: int(row["calls"]) for name, row in stats.items()}
    for beside in ("cmdstat_config|resetstat", "cmdstat_info", "cmdstat_evalsha", "cmdstat_eval"):
        calls.pop(beside, None)
    assert sum(calls.values()) <= 10, calls


# The key that an ending writes, and what it is for.
WRITTEN: dict[str, list[str]] = {
    "done": [outbox_key(NAME)],
    "died": [keys.deaths_key(NAME), keys.incomplete_key(NAME)],
    "dead letter": [keys.dead_letters_key("work"), outbox_key(NAME), keys.deaths_key(NAME)],
    "released": [keys.queued_key(NAME), keys.incomplete_key(NAME)],
    "parked": [keys.parked_key("store"), keys.parked_index_key(NAME), keys.incomplete_key(NAME)],
}


@pytest.mark.parametrize(("end", "key"), [(end, key) for end, written in WRITTEN.items() for key in written])
async def test_a_key_of_another_type_spoils_the_ending_that_needs_it_and_nothing_of_it_is_written(
    queue: LaneQueue, redis: Redis, end: str, key: str
) -> None:
    bad, good = await claimed(queue, 2)
    endings = [
        ENDINGS[end](Endings(queue, "me", outbox=True), bad),
        Endings(queue, "me", outbox=False).done(good, Result("fine")),
    ]
    aside = "aside"
    if await redis.exists(key):
        await redis.rename(key, aside)
    await redis.set(key, "somebody else's")
    before = await dump(redis)
    if key == keys.incomplete_key(NAME):  # the other one needs it as well
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await ended(queue, *endings)
    else:
        wrong, right = await ended(queue, *endings)
        assert wrong.startswith(f"error: {key} is a string, not a ")
        assert wrong.endswith("; rename it")
        assert right == "settled"
    after = await dump(redis)
    touched = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not {name for name in touched if name.endswith(b"work:0")}
    await redis.delete(key)
    if await redis.exists(aside):
        await redis.rename(aside, key)
    assert await ended(queue, *endings) == ["settled", "settled"]
    assert await redis.exists(keys.lock_key("work", "0"), keys.lock_key("work", "1")) == 0


@pytest.mark.parametrize("key", [keys.counters_key(NAME), keys.incomplete_key(NAME), keys.active_key(NAME)])
async def test_whatever_key_is_broken_a_result_is_told_once(queue: LaneQueue, redis: Redis, key: str) -> None:
    mine, lost = await claimed(queue, 2)
    endings = Endings(queue, "me", outbox=True)
    lost.token = str(int(lost.token) - 1)
    both = [endings.done(mine, Result("well")), endings.done(lost, Result("late"))]
    if await redis.exists(key):
        await redis.rename(key, "aside")
    await redis.set(key, "somebody else's")
    for _ in range(3):
        if key == keys.counters_key(NAME):
            assert await ended(queue, *both) == ["settled", "stale"]
        else:
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                await ended(queue, *both)
    await redis.delete(key)
    if await redis.exists("aside"):
        await redis.rename("aside", key)
    assert await ended(queue, *both) == ["settled", "stale"]
    assert await redis.xlen(outbox_key(NAME)) == 1
    assert await redis.exists(keys.lock_key("work", "0")) == 0


@pytest.mark.parametrize("number", [10**19, float("inf"), float("nan")])
@pytest.mark.parametrize("field", ["number", "marker_ms"])
async def test_a_time_to_live_that_the_server_cannot_keep_is_refused_before_anything_is_written(
    queue: LaneQueue, redis: Redis, field: str, number: Any
) -> None:
    (run,) = await claimed(queue)
    ending = Endings(queue, "me", outbox=True).done(run, Result("well"))
    right = getattr(ending, field)
    setattr(ending, field, number)
    before = await dump(redis)
    (answer,) = await ended(queue, ending)
    assert answer.startswith("error: its ")
    assert await dump(redis) == before
    setattr(ending, field, right)
    assert await ended(queue, ending) == ["settled"]


async def test_a_part_of_a_millisecond_is_a_whole_one(queue: LaneQueue, redis: Redis) -> None:
    (run,) = await claimed(queue)
    ending = Endings(queue, "me", outbox=True).done(run, Result("well"))
    ending.number, ending.marker_ms = 0.2, 60_000.5  # type: ignore[assignment]  # as a foreign ttl may make it
    assert await ended(queue, ending) == ["settled"]
    assert await redis.exists(keys.marker_key("work", "0"))


async def test_a_result_that_the_server_cannot_write_is_kept_until_it_can(
    queue: LaneQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its lease with it: nobody takes the job over, and no death is counted against it."""
    monkeypatch.setattr(worker, "SETTLE_AGAIN", 0.3)
    runs: list[str] = []

    async def work(context: Any) -> str:
        runs.append(context["job"].key)
        return "well"

    await redis.set(outbox_key(NAME), "somebody else's")
    await queue.enqueue("work", key="work:1")
    async with running(lanes.worker(queue, [("work", work)], lane_options={"outbox": True})):
        assert await until(lambda: _ran(runs), 10)
        await asyncio.sleep(2.5 * queue.lease)
        assert await redis.hgetall(keys.deaths_key(NAME)) == {}
        await redis.delete(outbox_key(NAME))
        job = await over(queue, "work:1", 10)
    assert job is not None
    assert (job.status, job.result, runs) == (Status.COMPLETE, "well", ["work:1"])
    ((_, fields),) = await redis.xrange(outbox_key(NAME))
    assert json.loads(fields[b"entry"])["result"] == "well"


async def test_a_result_that_is_kept_is_not_given_back_when_a_connection_is_lost(
    queue: LaneQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker gives back what it never heard that it claimed: what has ended and waits is not that."""
    monkeypatch.setattr(worker, "SETTLE_AGAIN", 4.0)
    runs: list[str] = []

    async def work(context: Any) -> str:
        runs.append(context["job"].key)
        return "well"

    await redis.set(outbox_key(NAME), "somebody else's")
    await queue.enqueue("work", key="work:1")
    serving = lanes.worker(queue, [("work", work)], lane_options={"outbox": True})
    async with running(serving):
        assert await until(lambda: asyncio.sleep(0, serving._unwritten), 10)
        for number in range(2, 5):
            await redis.client_kill_filter(_type="normal", skipme=True)
            await queue.enqueue("work", key=f"work:{number}")
            assert await until(lambda number=number: asyncio.sleep(0, f"work:{number}" in runs), 10)
        await redis.delete(outbox_key(NAME))
        job = await over(queue, "work:1", 20)
    assert job is not None
    assert job.status is Status.COMPLETE
    assert sorted(runs) == [f"work:{number}" for number in range(1, 5)], "each once"
    assert await redis.hget(keys.counters_key(NAME), "stale") is None


async def _ran(runs: list[str]) -> bool:
    return bool(runs)
