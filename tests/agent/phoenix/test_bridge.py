"""Streams: an entry stays until its job is settled; nothing is lost, nothing runs beside itself, all of it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.phoenix import keys
from agent.phoenix.bridge import BATCH, RECLAIM_IDLE, release_entries
from agent.phoenix.endings import Endings, Quarantined, Result
from agent.phoenix.letters import Letters
from agent.phoenix.queue import LaneQueue
from agent.processors import BaseProcessor
from pipelines.context import Policy
from pipelines.errors import InputChanged, InputRejected, RecordNotFoundError
from tests.agent.phoenix.stages import Stage, until


class Doing(BaseProcessor):
    """Does as the entry's `do` says; keeps what it did."""

    policy = Policy(timeout=lambda payload: 30.0)
    ran: list[tuple[str, str, dict[str, Any]]]
    gate: asyncio.Event
    fine = False
    now = most = 0

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        self.ran.append((record_id, user_id, data))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            match None if self.fine else data.get("do"):
                case "hang":
                    await self.gate.wait()
                case "lose":
                    raise RecordNotFoundError("it is not there")
                case "reject":
                    raise InputRejected("encrypted")
                case "skip":
                    raise InputChanged
                case "refuse":
                    raise Quarantined("bad-payload: x")
            return {"record": record_id, **data}
        finally:
            self.now -= 1


class First(Doing):
    next_service = "second"

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        self.keep_pages([{"number": 1, "text": data.get("text", "")}])
        return await super().process(record_id, user_id, data)


class Second(Doing):
    last_to_read_pages = True

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        text = (await self.pages(record_id))[0]["text"]
        return await super().process(record_id, user_id, {**data, "text": text})


def a_stage(redis: Redis, service: str = "first", kind: type[Doing] = Doing, agent: str = "local") -> Any:
    stage: Any = Stage(redis, service, kind, agent)
    stage.processor.ran, stage.processor.gate = [], asyncio.Event()
    return stage


@pytest.fixture
def stage(redis: Redis) -> Any:
    return a_stage(redis)


async def test_what_was_there_before_the_group_is_done_and_then_nothing_is_left(stage: Any) -> None:
    for number in range(30):
        await stage.ask(f"r{number}", n=number)
    async with stage.working():
        await until(lambda: _is_empty(stage))
    assert sorted(n for _, _, data in stage.processor.ran for n in [data["n"]]) == list(range(30))
    assert await stage.redis.hlen(keys.entries_key("first")) == 0
    marker = await stage.marker("r7")
    assert (marker["service"], marker["outcome"], marker["result"]["data"]) == (
        "first",
        "done",
        {"record": "r7", "n": 7},
    )
    assert marker["timestamp"] > 0


async def _is_empty(stage: Any) -> bool:
    return not await stage.left() and not await stage.pending()


@pytest.mark.parametrize(
    ("do", "outcome", "place"),
    [
        ("", "done", None),
        ("reject", "rejected", None),
        ("skip", None, None),
        ("lose", None, keys.dead_letters_key),
        ("refuse", None, keys.quarantine_key),
    ],
)
async def test_however_a_job_ends_its_entry_ends_with_it(stage: Any, do: str, outcome: Any, place: Any) -> None:
    entry = await stage.ask("r1", do=do)
    async with stage.working():
        await until(lambda: _is_empty(stage))
    assert await stage.redis.hlen(keys.entries_key("first")) == 0
    assert (await stage.marker("r1")).get("outcome") == outcome
    if place is not None:
        (letter,) = await stage.letters(place)
        assert (letter["entry"], letter["stream"], letter["fields"]["record_id"]) == (entry, stage.stream, "r1")
        stage.processor.fine = True
        letters = Letters(stage.redis, place, ["first"])
        (found,) = await letters.all()
        assert await letters.replay(found) == "queued"
        assert await letters.replay(found) == "gone"
        assert await stage.left() == 1, "it is on its stream again"
        async with stage.working():
            await until(lambda: _is_empty(stage))
        assert (await stage.marker("r1"))["result"]["data"] == {"record": "r1", "do": do}
        assert await stage.letters(place) == []


@pytest.mark.parametrize("running", [False, True])
async def test_an_aborted_jobs_entry_is_over(stage: Any, running: bool) -> None:
    await stage.ask("r1", do="hang")
    job_id = stage.queue.job_id("first:r1")

    async def abort() -> None:
        await until(lambda: stage.redis.exists(job_id))
        await stage.queue.abort(await stage.queue.job("first:r1"), "unwanted")

    if running:
        async with stage.working():
            await until(lambda: _ran(stage, 1))
            await abort()
            await until(lambda: _is_empty(stage))
    else:
        async with stage.bridged():
            await abort()
    assert await stage.left() == await stage.pending() == 0
    assert await stage.redis.hlen(keys.entries_key("first")) == 0


async def _ran(stage: Any, times: int) -> bool:
    return len(stage.processor.ran) >= times


async def test_an_entry_is_pending_while_its_job_waits_runs_and_is_tried_again(stage: Any) -> None:
    await stage.ask("r1", do="hang")
    async with stage.working():
        await until(lambda: _ran(stage, 1))
        assert (await stage.left(), await stage.pending()) == (1, 1)
        stage.processor.gate.set()
        await until(lambda: _is_empty(stage))


async def test_a_full_lane_leaves_the_backlog_on_the_stream(stage: Any) -> None:
    for number in range(200):
        await stage.ask(f"r{number}", do="hang")
    async with stage.working(slots=4):
        await until(lambda: _ran(stage, 4))
        await asyncio.sleep(0.3)
        assert await stage.pending() <= 4 + 2 * 4
        assert await stage.left() == 200, "what is not over is there to be seen"
        stage.processor.gate.set()
        await until(lambda: _is_empty(stage))
    assert len(stage.processor.ran) == 200


async def test_a_paused_lane_or_service_takes_nothing_off_its_stream(stage: Any) -> None:
    await stage.redis.sadd(keys.PAUSED, "first")
    await stage.ask("r1")
    async with stage.working():
        await asyncio.sleep(0.3)
        assert await stage.pending() == 0
        await stage.redis.srem(keys.PAUSED, "first")
        await until(lambda: _is_empty(stage))


async def test_one_version_asked_for_many_times_runs_once_and_another_one_after_it(stage: Any) -> None:
    async with stage.working(), stage.bridged(), stage.bridged():
        for _ in range(5):
            await stage.ask("r1", do="hang")
        await until(lambda: _ran(stage, 1))
        await stage.ask("r1", text="another version")
        await until(lambda: _pending(stage, 6))
        await asyncio.sleep(0.2)
        assert len(stage.processor.ran) == 1, "never beside itself"
        stage.processor.gate.set()
        await until(lambda: _is_empty(stage))
        assert [data for _, _, data in stage.processor.ran] == [{"do": "hang"}, {"text": "another version"}]
        await stage.ask("r1", text="another version")
        await until(lambda: _is_empty(stage))
    assert len(stage.processor.ran) == 2, "it is done"


async def _pending(stage: Any, number: int) -> bool:
    return bool(await stage.pending() == number)


async def test_two_agents_never_run_one_record_at_a_time(redis: Redis) -> None:
    one, two = a_stage(redis), a_stage(redis, agent="other")
    two.processor.ran, two.processor.gate = one.processor.ran, one.processor.gate
    async with one.working(), two.working():
        for number in range(20):
            for _ in range(3):
                await one.ask(f"r{number}", n=number)
        await until(lambda: _is_empty(one))
    assert len(one.processor.ran) == 20


async def test_what_a_dead_bridge_read_is_done_by_another_one_once_it_was_idle(stage: Any) -> None:
    await stage.ask("r1")
    await stage.redis.xgroup_create(stage.stream, stage.group, "0")
    await stage.redis.xreadgroup(stage.group, "dead-1-x", {stage.stream: ">"})
    async with stage.working(idle=0.5):
        await until(lambda: _is_empty(stage))
        await until(lambda: _no_consumer(stage, b"dead-1-x"))
    assert len(stage.processor.ran) == 1
    assert await stage.redis.xinfo_consumers(stage.stream, stage.group) == [], "a bridge that ends takes its name along"


async def _no_consumer(stage: Any, name: bytes) -> bool:
    return name not in [row["name"] for row in await stage.redis.xinfo_consumers(stage.stream, stage.group)]


async def test_what_bridges_of_an_ended_run_had_taken_is_done_at_once_by_the_next(stage: Any) -> None:
    await release_entries(stage.redis, stage.service)  # nobody has ever asked for anything
    for number in range(BATCH + 5):
        await stage.ask(f"r{number}")
    await stage.redis.xgroup_create(stage.stream, stage.group, "0")
    await stage.redis.xreadgroup(stage.group, "dead", {stage.stream: ">"})
    await release_entries(stage.redis, stage.service)
    async with stage.working(idle=RECLAIM_IDLE):
        await until(lambda: _is_empty(stage))
    assert (await stage.marker(f"r{BATCH + 4}"))["outcome"] == "done"


async def test_an_entry_that_another_bridge_took_meanwhile_makes_no_job_of_the_first(stage: Any) -> None:
    await stage.ask("r1", do="lose")
    first = stage.bridge()
    await stage.redis.xgroup_create(stage.stream, stage.group, "0")
    ((_, entries),) = await stage.redis.xreadgroup(stage.group, first.consumer, {stage.stream: ">"})
    read = [[entry, [part for pair in fields.items() for part in pair]] for entry, fields in entries]
    async with stage.working(idle=0.1):
        await until(lambda: _is_empty(stage))
    await first._bring(stage.redis, read)  # it was frozen all the while
    assert await stage.queue.count("incomplete") == 0
    assert len(await stage.letters()) == 1


async def test_an_idle_entry_whose_job_exists_is_only_touched(stage: Any) -> None:
    await stage.ask("r1", do="hang")
    async with stage.working(idle=0.2), stage.bridged(idle=0.2):
        await until(lambda: _ran(stage, 1))
        await asyncio.sleep(1.0)
        stage.processor.gate.set()
        await until(lambda: _is_empty(stage))
    assert len(stage.processor.ran) == 1


async def test_a_flushed_group_and_deleted_entries_stop_nothing(stage: Any) -> None:
    async with stage.working():
        await stage.ask("r1")
        await until(lambda: _is_empty(stage))
        await stage.redis.delete(stage.stream)
        await asyncio.sleep(0.1)
        await stage.ask("r2")
        await until(lambda: _ran(stage, 2))
        await stage.redis.xgroup_destroy(stage.stream, stage.group)
        entry = await stage.ask("r3", do="hang")
        await until(lambda: _ran(stage, 3))
        await stage.redis.xdel(stage.stream, entry)
        stage.processor.gate.set()
        await until(lambda: _is_empty(stage))
    assert [record for record, _, _ in stage.processor.ran] == ["r1", "r2", "r3"]


async def test_a_deleted_entry_that_nobody_has_begun_is_forgotten(stage: Any) -> None:
    entry = await stage.ask("r1")
    await stage.redis.xgroup_create(stage.stream, stage.group, "0")
    await stage.redis.xreadgroup(stage.group, "dead-1-x", {stage.stream: ">"})
    await stage.redis.xdel(stage.stream, entry)
    async with stage.working(idle=0.1):
        await until(lambda: _is_empty(stage))
    assert stage.processor.ran == []


async def test_a_job_that_somebody_deleted_is_made_anew(stage: Any) -> None:
    await stage.ask("r1")
    async with stage.bridged(idle=0.3):
        await until(lambda: stage.redis.exists(stage.queue.job_id("first:r1")))
        await stage.redis.delete(stage.queue.job_id("first:r1"))
        async with stage.working(bridge=False):
            await until(lambda: _is_empty(stage))
    assert len(stage.processor.ran) == 1


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"user_id": "u"}, "record_id must be there"),
        ({"record_id": "r"}, "user_id must be there"),
        ({"record_id": "r", "user_id": "u", "data": "{"}, "data is not JSON"),
        ({"record_id": "r", "user_id": "u", "data": '{"a": NaN}'}, "data is not JSON"),
        ({"record_id": "r", "user_id": "u", "data": "[" * 100_000}, "data is not JSON"),
        ({"record_id": "r", "user_id": "u", "data": "[1]"}, "data must be a JSON object, not a list"),
        ({"record_id": b"\xff", "user_id": "u"}, "its field record_id is not UTF-8"),
        ({"record_id": "r", "user_id": "u", "version": 'a"b'}, "version must be"),
        ({"record_id": "r" * 2000, "user_id": "u"}, "record_id must be there, with 1 to 1024"),
        ({"anything": "else"}, "record_id must be there"),
    ],
)
async def test_an_entry_of_which_no_job_can_be_made_is_a_dead_letter_with_its_id_and_the_reason(
    stage: Any, fields: dict[str, str | bytes], why: str
) -> None:
    entry = (await stage.redis.xadd(stage.stream, fields)).decode()
    async with stage.bridged():
        await until(lambda: _is_empty(stage))
    (letter,) = await stage.letters()
    assert (letter["entry"], letter["service"]) == (entry, "first")
    assert why in letter["error"]
    letters = Letters(stage.redis, keys.dead_letters_key, ["first"])
    (found,) = await letters.all()
    assert found.key in (f"first:{entry}", f"first:{letter['record_id']}")
    assert await letters.replay(found) == "queued"
    ((_, again),) = await stage.redis.xrange(stage.stream)
    wanted = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
    assert again == wanted, "to the letter"


async def test_flat_fields_are_data(stage: Any) -> None:
    await stage.redis.xadd(stage.stream, {"record_id": "r:1", "user_id": "u", "url": "http://x/ü", "data": '{"n": 1}'})
    async with stage.working():
        await until(lambda: _is_empty(stage))
    assert stage.processor.ran == [("r:1", "u", {"url": "http://x/ü", "n": 1})]


async def test_a_result_goes_to_the_next_stage_once_and_the_pages_live_until_they_were_read(redis: Redis) -> None:
    first, second = a_stage(redis, "first", First), a_stage(redis, "second", Second)
    async with first.working():
        for number in range(10):
            await first.ask(f"r{number}", "u7", text=f"text {number}")
        await until(lambda: _is_empty(first))
    assert await second.left() == 10
    assert json.loads(await redis.get("pages:r3")) == [{"number": 1, "text": "text 3"}]
    async with second.working():
        await until(lambda: _is_empty(second))
    assert sorted(second.processor.ran) == [
        (f"r{n}", "u7", {"record": f"r{n}", "text": f"text {n}"}) for n in range(10)
    ]
    assert [key async for key in redis.scan_iter("pages:*")] == []
    await redis.delete("processed:first:r3")
    await first.ask("r3", "u7", text="text 3")
    async with first.working(), second.working():
        await until(lambda: _is_empty(first))
        await until(lambda: _is_empty(second))
    assert (len(first.processor.ran), len(second.processor.ran)) == (11, 10), "the same again: the second stage has it"
    assert await redis.exists("pages:r3") == 0


async def test_pages_that_were_extracted_anew_are_left_to_the_newer_version(redis: Redis) -> None:
    first, second = a_stage(redis, "first", First), a_stage(redis, "second", Second)
    async with first.working():
        await first.ask("r1", text="old")
        await until(lambda: _is_empty(first))
        await first.ask("r1", text="new")
        await until(lambda: _is_empty(first))
    assert await second.left() == 2
    async with second.working():
        await until(lambda: _is_empty(second))
    assert await second.letters() == []
    assert [data["text"] for _, _, data in second.processor.ran][-1] == "new"
    assert await redis.exists("pages:r1", keys.pages_version_key("r1")) == 0


async def test_a_settle_that_is_sent_again_sends_nothing_on_again(redis: Redis) -> None:
    first = a_stage(redis, "first", First)
    await first.ask("r1")
    steps = type(first.queue).step

    async def twice(worker: str, lane: str, n: int, endings: Any = (), **options: Any) -> Any:
        if endings:
            await steps(first.queue, worker, lane, 0, endings, **options)
        return await steps(first.queue, worker, lane, n, endings, **options)

    first.queue.step = twice
    async with first.working():
        await until(lambda: _is_empty(first))
    assert await redis.xlen("phoenix:second:input") == 1


async def test_a_lost_run_sends_nothing_on_and_its_heir_does(redis: Redis) -> None:
    first = a_stage(redis, "first", First)
    await first.ask("r1", do="hang")
    async with first.working():
        await until(lambda: _ran(first, 1))
        await redis.delete(keys.lock_key("first", "r1"))  # what an operator may do; what it leads to is in the runbook
        await until(lambda: _ran(first, 2))
        first.processor.gate.set()
        await until(lambda: _is_empty(first))
    assert await redis.xlen("phoenix:second:input") == 1


async def test_what_becomes_of_a_record_is_published(stage: Any) -> None:
    pubsub = stage.redis.pubsub()
    await pubsub.subscribe(keys.progress_channel("r1"))
    await stage.ask("r1", do="reject")
    heard: list[dict[str, Any]] = []
    async with stage.working():
        async with asyncio.timeout(10):
            while len(heard) < 2:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
                heard += [json.loads(message["data"])] if message else []
    await pubsub.aclose()
    assert [(said["service"], said["record_id"], said["state"]) for said in heard] == [
        ("first", "r1", "queued"),
        ("first", "r1", "rejected"),
    ]
    assert heard[1]["note"] == "encrypted"


async def test_a_spoilt_key_is_waited_for_and_spoils_no_other_job(stage: Any) -> None:
    await stage.ask("r1")
    await stage.redis.set(keys.entries_key("first"), "somebody else's")
    async with stage.working():
        await asyncio.sleep(0.3)
        assert await stage.left() == 1
        await stage.redis.delete(keys.entries_key("first"))
        await until(lambda: _is_empty(stage))
    assert len(stage.processor.ran) == 1


async def test_a_bridge_ends_at_once_also_while_it_waits(stage: Any) -> None:
    async with asyncio.timeout(10):
        async with stage.bridged():
            await until(lambda: stage.redis.exists(stage.stream))
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)


async def test_an_ordinary_job_costs_nothing_of_all_this(redis: Redis) -> None:
    queue = LaneQueue(redis, name="ordinary")
    endings = Endings(queue, "w", outbox=True)
    for number in range(10):
        await queue.enqueue("work", key=f"work:{number}")
    await redis.config_resetstat()
    _, runs, _ = await queue.step("w", "", 10)
    for run in runs:
        run.job, run.attempts = queue.readable(run.text), 1
    await queue.step("w", "", 0, [endings.done(run, Result({})) for run in runs])
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in (await redis.info("commandstats")).items()}
    assert not calls.keys() & {"xack", "xdel", "xpending", "hget", "hset", "hdel"}
    assert (calls["publish"], calls["xadd"], calls["evalsha"]) == (20, 10, 2), "a word at each claim and each end"
    assert sum(calls.values()) <= 75
