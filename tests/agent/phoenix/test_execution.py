"""Around one run: what is recorded, as which outcome, and what is set aside or left to be retried."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from saq.job import Job, Status

from agent.children import Children
from agent.phoenix import execution, keys
from agent.phoenix.breaker import FAILURES, Breakers
from agent.phoenix.endings import MARKER_IDLE, Result
from agent.phoenix.execution import Execution
from agent.phoenix.outbox import Entry, outbox_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult
from tests.agent.phoenix.engines import running, until
from tests.agent.phoenix.surrounded import surrounding_worker
from tests.agent.tasks import wish

QUEUE = "phaze-agent-test-meta"


class Bench:
    """A worker on the queue with the one task `wish`, and a look at what came out."""

    def __init__(self, redis: Redis, children: Children) -> None:
        self.redis = redis
        self.queue = LaneQueue(redis, name=QUEUE)
        self._children = children
        self._breakers = Breakers(self.queue.scripts, redis)
        self.worker = LaneWorker(
            self.queue, [("wish", self._run)], concurrency=2, outbox=True, timeout_of=lambda job: 30.0, grace=1.0
        )

    async def _run(self, context: Any, **arguments: Any) -> Result:
        around = Execution(
            context["run"],
            function=wish,
            queue=self.queue,
            children=self._children,
            breakers=self._breakers,
            worker="test",
        )
        return await around.run(arguments)

    async def run(self, key: str = "wish:7", **arguments: Any) -> Job:
        """Enqueue, and wait until it is over or waits for another attempt."""
        job = await self.queue.enqueue("wish", key=key, **{"version": "v1", **arguments})
        assert job is not None
        async with asyncio.timeout(20):
            while True:
                await job.refresh()
                if job.status in (Status.COMPLETE, Status.FAILED, Status.ABORTED) or job.attempts:
                    return job
                await asyncio.sleep(0.01)

    async def outbox(self) -> list[dict[str, Any]]:
        return [json.loads(fields[b"entry"]) for _, fields in await self.redis.xrange(outbox_key(QUEUE))]

    async def letters(self, key: str) -> list[dict[str, Any]]:
        return [json.loads(row) for row in await self.redis.lrange(key, 0, -1)]


@pytest.fixture
async def bench(redis: Redis) -> AsyncIterator[Bench]:
    children = Children(1)
    bench = Bench(redis, children)
    running = asyncio.create_task(bench.worker.start())
    yield bench
    bench.worker.event.set()
    await running
    await children.close()


@pytest.mark.parametrize(
    ("do", "outcome", "reason"),
    [
        ("echo", "done", None),
        ("partial", "partial", "half of it"),
        ("reject", "rejected", "too-short: 0.2 s"),
        ("skip", "skipped", "changed-since-scan"),
    ],
)
async def test_every_end_of_a_run_is_recorded_with_its_outcome(
    bench: Bench, do: str, outcome: str, reason: str | None
) -> None:
    job = await bench.run(do=do)
    assert job.status is Status.COMPLETE
    (entry,) = await bench.outbox()
    assert (entry["service"], entry["record_id"], entry["version"]) == ("wish", "7", "v1")
    assert (entry["outcome"], entry["reason"]) == (outcome, reason)
    assert Entry.model_validate(entry).token > 0
    assert await bench.redis.exists(keys.lock_key("wish", "7")) == 0


async def test_what_a_child_says_is_the_jobs_progress_while_it_runs(bench: Bench) -> None:
    running = asyncio.create_task(bench.run(do="child-say", seconds=1.5))
    seen: set[tuple[float, str]] = set()
    async with asyncio.timeout(30):
        while not running.done():
            job = await bench.queue.job("wish:7")
            if job is not None and job.status == Status.ACTIVE and job.progress:
                seen.add((round(job.progress, 2), str(job.meta["note"])))
                assert job.started
            await asyncio.sleep(0.05)
    assert (await running).status == Status.COMPLETE
    assert seen & {(0.33, "step 1"), (0.67, "step 2"), (1.0, "step 3")}


async def test_the_marker_is_readable_json(bench: Bench) -> None:
    await bench.run()
    marker = json.loads(await bench.redis.get("processed:wish:7") or b"null")
    assert {"timestamp", "service", "version", "result", "token"} <= marker.keys()
    assert 0 < await bench.redis.ttl(keys.marker_key("wish", "7")) <= MARKER_IDLE


async def test_a_version_that_is_done_is_answered_from_the_marker_without_running(bench: Bench, tmp_path: Path) -> None:
    note = tmp_path / "starts"
    first = await bench.run(note=str(note))
    again = await bench.run(note=str(note))
    assert (first.result, again.status) == (again.result, Status.COMPLETE)
    assert len(note.read_text("utf-8").splitlines()) == 1
    one, two = await bench.outbox()
    assert one == two, "whoever asks again is told again, with the first run's token"


async def test_a_new_version_runs_and_replaces_the_marker(bench: Bench) -> None:
    await bench.run()
    assert (await bench.run(version="v2")).result["text"] == "v2"
    assert json.loads(await bench.redis.get("processed:wish:7") or b"{}")["version"] == "v2"


async def test_what_was_skipped_is_not_remembered(bench: Bench) -> None:
    await bench.run(do="skip")
    assert await bench.redis.get(keys.marker_key("wish", "7")) is None


async def test_a_record_that_is_not_there_is_a_dead_letter_and_is_looked_for_again_when_asked_again(
    bench: Bench,
) -> None:
    job = await bench.run(do="lose")
    assert job.status is Status.FAILED
    (letter,) = await bench.letters("phoenix:wish:dlq")
    assert letter["error"] == "RecordNotFoundError: gone.mp3"
    assert {"job", "traceback", "attempts", "first", "last", "worker"} <= letter.keys()
    assert json.loads(base64.b64decode(letter["job"]))["kwargs"]["do"] == "lose"
    (entry,) = await bench.outbox()
    assert (entry["outcome"], entry["reason"]) == ("rejected", "not-found: gone.mp3")
    assert (await bench.run()).status is Status.COMPLETE, "it has come back"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seconds": "long"}, "bad-payload: seconds: Input should be a valid number"),
        ({"version": None}, "bad-payload: version: Input should be a valid string"),
        ({"version": "", "do": 1}, "bad-payload: do: Input should be a valid string"),
    ],
)
async def test_arguments_that_do_not_validate_are_quarantined_with_the_fields_name(
    bench: Bench, arguments: dict[str, Any], said: str
) -> None:
    job = await bench.run(**arguments)
    assert job.status is Status.FAILED
    (letter,) = await bench.letters("phoenix:wish:quarantine")
    assert said in letter["error"]
    (entry,) = await bench.outbox()
    assert entry["outcome"] == "rejected"
    assert entry["version"], "the catalogue files nothing without a version"


async def test_a_field_that_only_a_newer_producer_knows_is_left_out(bench: Bench) -> None:
    assert (await bench.run(shiny="new")).status is Status.COMPLETE


async def test_what_may_go_better_next_time_is_scheduled_and_nothing_is_recorded(bench: Bench) -> None:
    job = await bench.run(do="fail")
    assert (job.status, job.attempts) == (Status.QUEUED, 1)
    assert "ConnectionError: the store is away" in (job.error or "")
    assert await bench.outbox() == []
    assert await bench.redis.exists(keys.marker_key("wish", "7"), keys.lock_key("wish", "7")) == 0


@pytest.mark.parametrize(("asked", "wait"), [(120.0, 120.0), (1e9, 3600.0), (0.0, 2.0)])
async def test_a_retry_waits_as_long_as_the_other_side_asks_within_an_hour(
    bench: Bench, asked: float, wait: float
) -> None:
    begun = time.time()
    job = await bench.run(do="later", seconds=asked)
    due = await bench.redis.zscore(keys.incomplete_key(QUEUE), job.id)
    assert due is not None
    assert wait <= due + 1 - begun <= wait + 60
    assert "TryLater: the store is busy" in (job.error or "")


async def test_three_dead_children_are_the_jobs_own_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.phoenix import endings

    monkeypatch.setattr(endings, "retry_delay", lambda attempt: 0.0)
    job = await bench.run(do="crash")
    async with asyncio.timeout(20):
        while job.status is not Status.FAILED:
            await asyncio.sleep(0.05)
            await job.refresh()
    (letter,) = await bench.letters("phoenix:wish:quarantine")
    assert "3 of its child processes died" in letter["error"]
    assert letter["attempts"] == 3


async def test_a_dependency_that_hangs_opens_its_circuit_and_not_its_users(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's own time limit ends it; what else ends a run says nothing of its dependency."""
    monkeypatch.setattr(execution, "TIMEOUT_MARGIN", 0.1)

    @task(Policy(timeout=lambda payload: 0.2, dependency=lambda payload: "store"))
    async def hangs(ctx: TaskContext, payload: Payload) -> TaskResult:
        await asyncio.Event().wait()
        return TaskResult()

    @task(Policy(timeout=lambda payload: 0.2, dependency=lambda payload: "llm", user=lambda payload: "bob"))
    async def hangs_for_bob(ctx: TaskContext, payload: Payload) -> TaskResult:
        await asyncio.Event().wait()
        return TaskResult()

    @task(Policy(timeout=lambda payload: 60.0, dependency=lambda payload: "slow"))
    async def ended(ctx: TaskContext, payload: Payload) -> TaskResult:
        await asyncio.Event().wait()
        return TaskResult()

    queue = LaneQueue(redis, name=QUEUE)
    breakers = Breakers(queue.scripts, redis)
    functions = {"hangs": hangs, "hangs_for_bob": hangs_for_bob, "ended": ended}
    for name in functions:
        for number in range(FAILURES):
            await queue.enqueue(name, key=f"{name}:{number}", version="v")

    async def state(circuit: str) -> str:
        return (await breakers.look(circuit)).state

    async def both_are_open() -> bool:
        return await state("store") == await state("llm") == "open"

    async def only_others_wait() -> bool:
        return await queue.count("queued") == 0

    async with running(surrounding_worker(queue, functions, grace=0.0)):
        assert await until(both_are_open, 20)
        for job in await queue.jobs([f"ended:{number}" for number in range(FAILURES)]):
            assert job is not None
            await job.abort("not wanted")
        assert await until(only_others_wait, 20)
    assert await state(keys.user_circuit("llm", "bob")) == await state("slow") == "closed"


async def test_parts_go_out_in_order_before_the_end(bench: Bench) -> None:
    await bench.run(do="parts")
    entries = await bench.outbox()
    assert [entry.get("part") for entry in entries] == [0, 1, None]
    assert [entry["result"]["text"] for entry in entries] == ["one", "two", "parts"]


def strict(text: bytes | str | None) -> Any:
    """As whoever reads JSON elsewhere does: NaN and the infinities are no part of it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text or b"null", parse_constant=refuse)


async def test_a_number_that_json_has_not_becomes_null_and_the_rest_is_kept(bench: Bench) -> None:
    for _ in ("run", "answered"):
        job = await bench.run(do="nan")
        assert job.status is Status.COMPLETE
        expected = {"text": "NaN", "loudness": None, "extra": [None, {"peak": None}], "outcome": "done", "reason": None}
        assert job.result == expected
        assert strict(await bench.redis.get(keys.marker_key("wish", "7")))["result"] == expected
        assert strict(await bench.redis.get(job.id))["result"] == expected
    assert [strict(fields[b"entry"])["result"] for _, fields in await bench.redis.xrange(outbox_key(QUEUE))] == [
        expected
    ] * 2


async def test_a_result_that_json_cannot_hold_is_quarantined_with_its_reason(bench: Bench) -> None:
    assert (await bench.run(do="bytes")).status is Status.FAILED
    (letter,) = await bench.letters("phoenix:wish:quarantine")
    assert "its result is not JSON" in letter["error"]


@pytest.mark.parametrize("do", ["leak", "leak-partial", "leak-lost"])
async def test_no_reason_that_is_recorded_holds_a_secret(bench: Bench, do: str) -> None:
    job = await bench.run(do=do)
    (entry,) = await bench.outbox()
    assert "api_key=[redacted]" in entry["reason"]
    letters = await bench.letters(keys.dead_letters_key("wish"))
    marker = await bench.redis.get(keys.marker_key("wish", "7"))
    assert "hunter2" not in json.dumps([entry, letters, job.to_dict()]) + str(marker)


async def test_arguments_that_are_no_object_are_quarantined(bench: Bench) -> None:
    job_id = bench.queue.job_id("wish:7")
    job = {"function": "wish", "queue": QUEUE, "key": "wish:7", "kwargs": [1], "status": "queued"}
    await bench.redis.set(job_id, json.dumps(job))
    await bench.redis.zadd(keys.incomplete_key(QUEUE), {job_id: 0})
    await bench.redis.rpush(keys.queued_key(QUEUE), job_id)
    async with asyncio.timeout(10):
        while not (letters := await bench.letters("phoenix:wish:quarantine")):
            await asyncio.sleep(0.02)
    assert "bad-payload: kwargs is a list" in letters[0]["error"]
