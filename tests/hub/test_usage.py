"""What was spent is counted call by call, once, and shown by user and record."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from agent.hub.catalogue import Catalogue
from agent.operator.usage import moment
from agent.phoenix.outbox import Entry, Usage
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
