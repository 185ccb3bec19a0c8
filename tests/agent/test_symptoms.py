"""What client libraries raise is understood, without any of them being known to us by more than its name."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable

import httpx
import openai
import pytest
import redis.exceptions
import requests

from agent.child import ChildError
from agent.phoenix.billing_service import KeyRefused
from agent.phoenix.breaker import outcome_for_provider, outcome_for_user, outcome_of
from agent.symptoms import symptom_of
from pipelines.errors import InputRejected, NotAnswered
from tests.control_plane import ControlPlane

NOWHERE = "http://127.0.0.1:9"


def raised(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def by_httpx(url: str) -> object:
    return httpx.get(url, timeout=5).raise_for_status()


def by_requests(url: str) -> object:
    return requests.get(url, timeout=5).raise_for_status()


def by_urllib(url: str) -> object:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def by_openai(url: str) -> object:
    with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        return client.models.list()


@pytest.mark.parametrize("call", [by_httpx, by_requests, by_urllib, by_openai])
async def test_a_service_out_of_reach_and_a_status_are_told_from_each_librarys_exceptions(
    plane: ControlPlane, call: Callable[[str], object]
) -> None:
    assert symptom_of(raised(lambda: call(NOWHERE))) == "unreachable"
    assert symptom_of(await asyncio.to_thread(raised, lambda: call(plane.url))) == 404


class Wrapped(Exception):
    """A library's own."""


def status(code: int) -> Exception:
    request = httpx.Request("POST", NOWHERE)
    return httpx.HTTPStatusError("x", request=request, response=httpx.Response(code, request=request))


def wrapped(error: Exception) -> Exception:
    def call() -> None:
        raise Wrapped("our own words") from error

    return raised(call)


@pytest.mark.parametrize(
    ("error", "plain", "provider", "user"),
    [
        (status(401), "ok", "ok", "failed"),
        (status(402), "ok", "ok", "failed"),
        (status(403), "ok", "ok", "failed"),
        (status(404), "ok", "ok", "ok"),
        (status(429), "failed", "ok", "failed"),
        (status(500), "failed", "failed", "void"),
        (status(529), "failed", "failed", "void"),
        (wrapped(status(429)), "failed", "ok", "failed"),
        (wrapped(wrapped(ConnectionResetError())), "failed", "failed", "void"),
        (TimeoutError(), "failed", "failed", "void"),
        (ChildError("in a child", 401), "ok", "ok", "failed"),
        (ChildError("in a child", "unreachable"), "failed", "failed", "void"),
        (ChildError("in a child"), "void", "void", "void"),
        (InputRejected("encrypted"), "ok", "ok", "ok"),
        (KeyRefused("not for you"), "void", "void", "failed"),
        (NotAnswered("the billing service is away"), "void", "void", "void"),
        (redis.exceptions.ConnectionError("the queue server"), "void", "void", "void"),
        (ValueError("of its own"), "void", "void", "void"),
    ],
)
def test_whose_circuit_counts_what(error: Exception, plain: str, provider: str, user: str) -> None:
    assert (outcome_of(error), outcome_for_provider(error), outcome_for_user(error)) == (plain, provider, user)


def test_a_chain_of_causes_that_bites_its_tail_ends() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert symptom_of(first) is None
