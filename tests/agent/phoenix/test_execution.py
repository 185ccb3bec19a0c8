"""Around one run: what is recorded, as which outcome, and what is left to the queue to retry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.children import Children, ChildTimeout
from agent.phoenix.execution import Execution
from agent.phoenix.outbox import outbox_key
from agent.phoenix.settle import MARKER_TTL, find_marker, marker_key
from pipelines.errors import ChildDied
from tests.agent.tasks import wish

QUEUE = "phaze-agent-test-meta"


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    pool = Children(1)
    yield pool
    await pool.close()


class Bench:
    """Runs `wish` on record 7 and shows what came out."""

    def __init__(self, redis: Redis, children: Children) -> None:
        self.redis = redis
        self._children = children
        self.woken = 0

    async def run(self, **arguments: Any) -> dict[str, Any]:
        async def no_progress(_fraction: float, _note: str) -> None:
            """Nobody looks."""

        def wake() -> None:
            self.woken += 1

        execution = Execution(
            service="wish",
            record_id="7",
            function=wish,
            redis=self.redis,
            queue=QUEUE,
            children=self._children,
            worker="test",
            attempts=1,
            on_progress=no_progress,
            on_settled=wake,
        )
        return await execution.run({"version": "v1", **arguments})

    async def outbox(self) -> list[dict[str, Any]]:
        return [json.loads(fields[b"entry"]) for _, fields in await self.redis.xrange(outbox_key(QUEUE))]


@pytest.fixture
async def bench(redis: Redis, children: Children) -> Bench:
    return Bench(redis, children)


@pytest.mark.parametrize(
    ("do", "outcome", "reason"),
    [
        ("echo", "done", None),
        ("partial", "partial", "half of it"),
        ("reject", "rejected", "too-short: 0.2 s"),
        ("lose", "rejected", "not-found: gone.mp3"),
    ],
)
async def test_every_end_of_a_run_is_recorded_with_its_outcome(
    bench: Bench, do: str, outcome: str, reason: str | None
) -> None:
    await bench.run(do=do)
    (entry,) = await bench.outbox()
    assert (entry["service"], entry["record_id"], entry["version"]) == ("wish", "7", "v1")
    assert (entry["outcome"], entry["reason"], entry["part"]) == (outcome, reason, None)
    assert bench.woken == 1


async def test_the_marker_is_readable_json_and_appears_with_the_outbox_entry(bench: Bench) -> None:
    await bench.run()
    marker = json.loads(await bench.redis.get("processed:wish:7") or b"null")
    assert {"timestamp", "service", "version", "result", "token"} <= marker.keys()
    assert 0 < await bench.redis.ttl(marker_key("wish", "7")) <= MARKER_TTL


async def test_a_version_that_is_done_is_answered_from_the_marker_without_running(bench: Bench, tmp_path: Any) -> None:
    note = tmp_path / "starts"
    first = await bench.run(note=str(note))
    again = await bench.run(note=str(note))
    assert first == again
    assert len(note.read_text("utf-8").splitlines()) == 1
    one, two = await bench.outbox()
    assert one == two, "whoever asks again is told again, with the first run's token"


async def test_a_record_that_was_not_there_is_looked_for_again_when_asked_again(bench: Bench) -> None:
    await bench.run(do="lose")
    assert await bench.redis.get(marker_key("wish", "7")) is None
    assert (await bench.run())["text"] == "v1", "it has come back"


async def test_what_was_skipped_is_not_remembered(bench: Bench) -> None:
    await bench.run(do="skip")
    assert (await bench.outbox())[0]["outcome"] == "skipped"
    assert await bench.redis.get(marker_key("wish", "7")) is None


async def test_a_new_version_runs_and_replaces_the_marker(bench: Bench) -> None:
    await bench.run()
    assert (await bench.run(version="v2"))["text"] == "v2"
    assert await find_marker(bench.redis, "wish", "7", "v1") is None
    assert await find_marker(bench.redis, "wish", "7", "v2") is not None


@pytest.mark.parametrize(
    ("do", "error"), [("fail", ConnectionError), ("crash", ChildDied), ("unheard-of-so-echoed", None)]
)
async def test_what_may_go_better_next_time_is_raised_and_nothing_is_recorded(
    bench: Bench, do: str, error: type[Exception] | None
) -> None:
    if error is None:
        assert (await bench.run(do=do))["text"] == do
        return
    with pytest.raises(error):
        await bench.run(do=do)
    assert await bench.outbox() == []
    assert await bench.redis.get(marker_key("wish", "7")) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"versoin": "v1"}, "bad-payload: versoin: Extra inputs are not permitted"),
        ({"seconds": "long"}, "bad-payload: seconds: Input should be a valid number"),
        ({"version": None}, "bad-payload: version: Input should be a valid string"),
        ({"version": "", "do": 1}, "bad-payload: do: Input should be a valid string"),
    ],
)
async def test_arguments_that_do_not_validate_are_recorded_with_the_fields_name(
    bench: Bench, arguments: dict[str, Any], said: str
) -> None:
    await bench.run(**arguments)
    (entry,) = await bench.outbox()
    assert entry["outcome"] == "rejected"
    assert entry["reason"].startswith(said)
    assert entry["version"], "the catalogue files nothing without a version"


async def test_parts_go_out_in_order_before_the_end(bench: Bench) -> None:
    await bench.run(do="parts")
    entries = await bench.outbox()
    assert [entry["part"] for entry in entries] == [0, 1, None]
    assert [entry["result"]["text"] for entry in entries] == ["one", "two", "parts"]


async def test_a_childs_time_is_what_is_left_of_the_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.context import Policy

    monkeypatch.setitem(wish.__dict__, "policy", Policy(timeout=lambda payload: 0.1))
    with pytest.raises(ChildTimeout):
        await bench.run(do="spin")
