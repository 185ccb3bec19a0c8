"""Processor classes: what they are given, what their results become, and what cannot be one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from redis.asyncio import Redis

from agent import lanes
from agent.errors import ConfigError
from agent.phoenix import keys
from agent.processors import BaseProcessor
from agent.processors.base import checked
from agent.processors.inline import process_inline
from pipelines.context import Policy
from pipelines.errors import RecordNotFoundError
from tests.agent.phoenix.stages import Stage, until


class Page(BaseModel):
    """A page as a library may have it."""

    number: int
    text: str


class Working(BaseProcessor):
    """Uses all that it is given."""

    policy = Policy(timeout=lambda payload: 20.0 + len(payload.data))
    next_service = "after"

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        await self.context.progress(0.5, "half way")
        self.keep_pages([Page(number=1, text="one"), {"number": 2}])
        self.log.info("working")
        match data.get("do"):
            case "none":
                return None
            case "nan":
                return {"value": float("nan"), "most": float("inf")}
            case "list":
                return [1]  # type: ignore[return-value]  # the mistake under test
            case "strange":
                return {"value": object()}
            case "not all":
                self.partial("two of three")
            case "misunderstood":
                self.understood(Page, data)
        return {"power": await self.context.child(pow, 2, 5), "token": self.context.token}


@pytest.fixture
def stage(redis: Redis) -> Stage:
    return Stage(redis, "working", Working)


async def is_over(stage: Stage) -> bool:
    return not await stage.left() and not await stage.pending()


async def test_a_processor_has_context_children_log_and_pages(stage: Stage) -> None:
    entry = await stage.ask("r1")
    async with stage.working():
        await until(lambda: is_over(stage))
    found = (await stage.marker("r1"))["result"]
    assert (found["outcome"], found["data"]["power"]) == ("done", 32)
    ((_, sent),) = await stage.redis.xrange(keys.stream_key("after"))
    assert (sent[b"record_id"], sent[b"user_id"]) == (b"r1", b"u1")
    assert entry
    assert await Working("next", stage.redis, stage.processor.api_key_manager).pages("r1") == [
        {"number": 1, "text": "one"},
        {"number": 2},
    ]


async def test_no_result_ends_the_record_and_no_number_is_null(stage: Stage) -> None:
    await stage.ask("r1", do="none")
    await stage.ask("r2", do="nan")
    async with stage.working():
        await until(lambda: is_over(stage))
    assert (await stage.marker("r1"))["outcome"] == "done"
    ((_, sent),) = await stage.redis.xrange(keys.stream_key("after"))
    assert (sent[b"record_id"], sent[b"data"]) == (b"r2", b'{"value": null, "most": null}')


@pytest.mark.parametrize(("do", "why"), [("list", "returned a list, not a dict or None"), ("strange", "is not JSON")])
async def test_what_cannot_be_recorded_is_quarantined(stage: Stage, do: str, why: str) -> None:
    await stage.ask("r1", do=do)
    async with stage.working():
        await until(lambda: is_over(stage))
    (letter,) = await stage.letters(keys.quarantine_key)
    assert why in letter["error"]
    assert await stage.redis.exists(keys.stream_key("after"), keys.pages_key("r1")) == 0


async def test_what_is_not_all_is_recorded_as_partial_and_goes_on(stage: Stage) -> None:
    await stage.ask("r1", do="not all")
    async with stage.working():
        await until(lambda: is_over(stage))
    marker = await stage.marker("r1")
    assert (marker["outcome"], marker["reason"], marker["result"]["data"]["power"]) == ("partial", "two of three", 32)
    assert await stage.redis.xlen(keys.stream_key("after")) == 1


async def test_data_that_does_not_fit_is_quarantined_with_the_field_and_not_its_value(stage: Stage) -> None:
    await stage.ask("r1", do="misunderstood", number="s3cret", text="one")
    async with stage.working():
        await until(lambda: is_over(stage))
    (letter,) = await stage.letters(keys.quarantine_key)
    assert "bad-data: number: Input should be a valid integer" in letter["error"]
    assert "s3cret" not in letter["error"] + letter["traceback"]


async def test_pages_that_are_none_are_a_missing_record(stage: Stage) -> None:
    for text in ("{}", "no JSON", None):
        if text is None:
            await stage.redis.delete("pages:r1")
        else:
            await stage.redis.set("pages:r1", text)
        with pytest.raises(RecordNotFoundError, match="pages:r1"):
            await stage.processor.pages("r1")


def test_it_runs_inline() -> None:
    assert asyncio.run(process_inline(Working, "r1", "u1")) == {"power": 32, "token": "0"}


async def _no(self: Any, record_id: str) -> None:
    """Too few arguments."""


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({}, "has no `async def process"),
        ({"process": lambda self, record_id, user_id, data: None}, "has no `async def process"),
        ({"process": _no}, "must take"),
        ({"process": Working.process, "policy": 5}, "must be a Policy"),
        ({"process": Working.process, "next_service": "No Such"}, "names no service"),
    ],
)
def test_what_cannot_be_a_processor_is_refused_with_what_is_missing(
    members: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = type("Made", (BaseProcessor,), members)
    with pytest.raises(TypeError, match=why):
        checked(made)
    with pytest.raises(TypeError, match="not a subclass"):
        checked(int)
    monkeypatch.setitem(lanes.LANE_TASKS["meta"], "made", "builtins:int")
    with pytest.raises(ConfigError, match="its task made cannot be loaded from builtins:int"):
        lanes.load_checked("made")
