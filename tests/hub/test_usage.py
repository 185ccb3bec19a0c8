"""What was spent is counted call by call, once, and shown by user and record."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from agent.hub import schema, usage
from agent.hub.catalogue import Catalogue
from agent.operator.usage import moment
from agent.phoenix.outbox import Entry, Usage
from tests.hub.conftest import serving
from tests.hub.deliveries import AGENT, TOKEN

__all__ = ["TOKEN"]


def call(user: str, record: str, number: int = 0, *, token: int = 1, at: float = 1000.0, **spent: Any) -> Entry:
    """One call to a model."""
    spent = {"model": "small", "prompt_tokens": 7, "completion_tokens": 3, **spent}
    return Entry(
        service="parse_pages", record_id=record, version="v1", token=token, part=number, outcome="done", result={},
        finished_at=at, usage=Usage(user=user, **spent),
    )  # fmt: skip


def test_a_call_counts_once_in_whatever_order_and_however_often_it_is_delivered(catalogue: Catalogue) -> None:
    calls = [call("ann", "7", number, token=token) for token in (1, 2, 3) for number in range(4)]
    deliveries = calls * 3
    random.Random(3).shuffle(deliveries)
    for entry in deliveries:
        assert catalogue.record(AGENT, [entry]) == [None]
    (row,) = catalogue.usage(by=("user",))
    assert (row.prompt_tokens, row.completion_tokens, row.calls, row.runs, row.records) == (84, 36, 12, 3, 1)


def test_the_calls_of_a_record_leave_its_result_alone(catalogue: Catalogue) -> None:
    result = Entry(service="parse_pages", record_id="7", version="v1", token=5, outcome="done", result={"text": "x"})
    assert catalogue.record(AGENT, [call("ann", "7", token=4), result, call("ann", "7", token=6)]) == [None] * 3
    (stored,) = catalogue.results("parse_pages")
    assert stored["result"] == {"text": "x"}
    assert catalogue.usage(by=())[0].runs == 2


@pytest.mark.parametrize(
    "entry",
    [
        call("ann", "7", -1),
        call("ann", "7").model_copy(update={"part": None}),
        call("ann", "7", prompt_tokens=-1),
        call("ann", "7", completion_tokens=10**10),
        call("x" * 2000, "7"),
        call("ann", "7", at=float("nan")),
    ],
)
def test_what_is_no_call_is_refused_and_spoils_no_other(catalogue: Catalogue, entry: Entry) -> None:
    first, second = catalogue.record(AGENT, [entry, call("ann", "7")])
    assert first is not None
    assert second is None
    assert catalogue.usage(by=())[0].calls == 1


async def test_page_and_json_sum_by_user_and_by_record(catalogue: Catalogue, client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/usage")).json()["total"]["calls"] == 0
    assert "No calls" in (await client.get("/usage")).text
    long = "sha256:" + "0" * 64
    odd = '<b>"&amp;/:\u00fc'
    calls = [call("ann", "1"), call("ann", "1", 1, model="large"), call("ann", "2", token=2, at=5000.0),
             call(odd, "3"), call(long, "4"), call("", "5")]  # fmt: skip
    assert catalogue.record(AGENT, calls) == [None] * 6
    found = (await client.get("/api/usage")).json()
    assert {row["user"]: row["calls"] for row in found["users"]} == {"ann": 3, odd: 1, long: 1, "": 1}
    assert found["users"][0]["prompt_tokens"] == 21, "the largest first"
    assert {row["model"]: row["calls"] for row in found["models"]} == {"small": 5, "large": 1}
    assert found["total"]["records"] == 5
    records = (await client.get("/api/usage", params={"user": "ann"})).json()["records"]
    assert {row["record_id"]: row["calls"] for row in records} == {"1": 2, "2": 1}
    later = (await client.get("/api/usage", params={"user": "ann", "since": "2000"})).json()
    assert later["total"]["calls"] == 1
    for user in (odd, long, ""):
        assert (await client.get("/api/usage", params={"user": user})).json()["total"]["calls"] == 1
        assert (await client.get("/usage", params={"user": user})).status_code == 200
    page = (await client.get("/usage")).text
    assert "<b>" not in page
    assert "60 tokens in 6 calls" in page
    assert "parse_pages:2" in (await client.get("/usage?user=ann")).text
    for wrong in ("nan", "x", "inf"):
        assert (await client.get(f"/api/usage?since={wrong}")).status_code == 400


DAY = 86_400.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ann", "bob", ""]), st.sampled_from("123"), st.integers(1, 3), st.integers(0, 3),
            st.floats(0, 200 * DAY) | st.sampled_from([1e300, 10 * DAY, 500 * DAY]),
        ),
        max_size=20,
    ),
    st.integers(0, 300),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_no_sum_changes_when_old_calls_become_days(calls: list[Any], today: int) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        schema.metadata.create_all(connection)
        for half in (calls[::2], calls[1::2]):
            for user, record, token, number, at in half:
                usage.record(connection, AGENT, call(user, record, number, token=token, at=at))
            before = sums(connection)
            while usage.roll_up(connection, today * DAY):
                pass
            assert sums(connection) == before
            oldest = connection.scalar(sa.select(sa.func.min(schema.usage.c.spent_at)))
            assert oldest is None or oldest >= (today - usage.KEPT_DAYS) * DAY
    engine.dispose()


def sums(connection: sa.Connection) -> list[tuple[Any, ...]]:
    """Of all but runs and records, which days count apart."""
    return sorted(
        (row.user, row.model, row.prompt_tokens, row.completion_tokens, row.calls, row.first, row.last)
        for row in usage.sums(connection, by=("user", "model"))
    )


async def test_days_are_shown_with_what_is_newer_and_a_hub_that_starts_makes_them(
    catalogue: Catalogue, redis: Redis
) -> None:
    old = time.time() - (usage.KEPT_DAYS + 2) * DAY
    new = time.time() - 5 * DAY
    calls = [call("ann", f"{day}-{number}", number, token=day + 1, at=old - day * DAY)
             for day in range(3) for number in range(4)]  # fmt: skip
    calls.append(call("ann", "new", at=new, token=9))
    assert catalogue.record(AGENT, calls) == [None] * 13
    async with serving(catalogue, redis) as url, httpx.AsyncClient(base_url=url) as client:
        async with asyncio.timeout(30):
            while len((await client.get("/api/usage", params={"user": "ann"})).json()["records"]) > 2:
                await asyncio.sleep(0.05)
        found = (await client.get("/api/usage")).json()
        assert (found["total"]["calls"], found["total"]["runs"], found["total"]["records"]) == (13, 4, 13)
        assert found["users"][0]["prompt_tokens"] == 13 * 7
        records = (await client.get("/api/usage", params={"user": "ann"})).json()["records"]
        assert [(row["record_id"], row["calls"]) for row in records] == [("", 12), ("new", 1)]
        lately = (await client.get("/api/usage", params={"since": str(new - DAY)})).json()
        assert lately["total"]["calls"] == 1
        assert "parse_pages, more than 90 days ago" in (await client.get("/usage?user=ann")).text
    assert catalogue.record(AGENT, [call("ann", "late", at=old)]) == [None]
    assert catalogue.roll_up_usage()
    assert not catalogue.roll_up_usage()
    assert catalogue.usage(by=())[0].calls == 14


async def test_whoever_is_not_logged_in_sees_no_usage(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.get("/api/usage")).status_code == 401
    assert (await stranger.get("/usage")).status_code == 401


def test_a_moment_is_written_as_people_do() -> None:
    assert moment("") == 0
    assert moment("1970-01-02") == 86_400
    assert moment("1970-01-01T01:00:00+01:00") == 0
    assert abs(moment("2h") - (moment("1h") - 3600)) < 60
    for wrong in ("yesterday", "7y", "-1d", "9" * 40 + "d"):
        with pytest.raises(Exception, match="2026-11-30"):
            moment(wrong)
