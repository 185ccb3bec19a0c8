"""The client of a language model, against an endpoint that does everything wrong."""

from __future__ import annotations

import asyncio
import pickle
import time

import pytest
from pydantic import BaseModel, SecretStr

from pipelines.documents.llm import Client, Model, Usage
from pipelines.documents.llm_errors import AnswerCut, BadAnswer, KeyRefused, ModelBusy, ModelMisused, ModelRefused
from tests.pipelines.documents.endpoint import Act, Reply, endpoint, fails, says

KEY = SecretStr("sk-very-secret")


class Said(BaseModel):
    colour: str


class Asked:
    """What came of one call: the answer or the error, what the endpoint saw, what was reported as used."""

    def __init__(self, *acts: Act, timeout: float = 20.0) -> None:
        self._acts = acts
        self._timeout = timeout
        self.used: list[Usage] = []

    async def __call__(self) -> Said:
        with endpoint(*self._acts) as self.there:
            model = Model(base_url=self.there.url, name="m", timeout=self._timeout)
            async with Client(model, self.used.append) as client:
                return await client.ask("be brief", "what colour?", Said, KEY)


async def test_the_answer_is_asked_for_by_schema_with_the_calls_own_key() -> None:
    asked = Asked(says({"colour": "red"}))
    assert await asked() == Said(colour="red")
    assert asked.there.keys == ["Bearer sk-very-secret"]
    [request] = asked.there.requests
    assert request["response_format"]["json_schema"]["schema"]["properties"].keys() == {"colour"}
    assert asked.used == [Usage(model="m", ended="answered", prompt_tokens=70, completion_tokens=7)]


@pytest.mark.parametrize("bad", ["not json", '{"color": "red"}', '{"colour": 3}', None, "[]"])
async def test_a_bad_answer_is_sent_back_once_with_what_is_wrong(bad: str | None) -> None:
    asked = Asked(says(bad), says({"colour": "red"}))
    assert (await asked()).colour == "red"
    first, second = asked.there.requests
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert "does not fit" in second["messages"][-1]["content"]
    assert [usage.ended for usage in asked.used] == ["bad-answer", "answered"]


async def test_a_second_bad_answer_is_the_end_and_both_attempts_are_paid_for() -> None:
    asked = Asked(says("no"))
    with pytest.raises(BadAnswer):
        await asked()
    assert len(asked.there.requests) == 2
    assert sum(usage.prompt_tokens for usage in asked.used) == 140


@pytest.mark.parametrize(
    ("act", "error", "ended"),
    [
        (says('{"colour": "re', finish="length"), AnswerCut, "cut"),
        (says({"colour": "red"}, finish="length"), AnswerCut, "cut"),
        (says(None, refusal="I cannot"), ModelRefused, "refused"),
        (says({"colour": "red"}, finish="content_filter"), ModelRefused, "refused"),
        (fails(400, "context_length_exceeded"), AnswerCut, "cut"),
        (fails(400, "invalid_request_error"), ModelMisused, "misused"),
        (Reply(400, {"error": {"code": 400, "type": "exceed_context_size_error"}}), AnswerCut, "cut"),
        (fails(404), ModelMisused, "misused"),
        (fails(401), KeyRefused, "key-refused"),
        (fails(429), ModelBusy, "busy"),
        (fails(500), ModelBusy, "busy"),
        (fails(503), ModelBusy, "busy"),
        (Reply(200, b"<html>gateway</html>"), ModelBusy, "busy"),
        (Reply(200, {"choices": []}), ModelBusy, "busy"),
        (Reply(302, b"", {"location": "http://127.0.0.1:1/"}), ModelMisused, "misused"),
    ],
)
async def test_a_fault_has_its_type_is_not_sent_again_and_is_reported(
    act: Reply, error: type[Exception], ended: str
) -> None:
    asked = Asked(act)
    with pytest.raises(error) as caught:
        await asked()
    assert len(asked.there.requests) == 1
    assert [usage.ended for usage in asked.used] == [ended]
    assert type(pickle.loads(pickle.dumps(caught.value))) is error
    assert "secret" not in repr(caught.value) + str(caught.value)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "99999999"}, 99999999.0),
        ({"retry_after": "soon"}, None),
        ({}, None),
        ({"retry_after": "Wed, 21 Oct 2099 07:28:30 GMT", "date": "Wed, 21 Oct 2099 07:28:00 GMT"}, 30.0),
    ],
)
async def test_how_long_the_endpoint_wants_to_be_left_alone_is_kept(
    headers: dict[str, str], seconds: float | None
) -> None:
    with pytest.raises(ModelBusy) as caught:
        await Asked(fails(429, **headers))()
    assert caught.value.after == seconds
    assert isinstance(caught.value, ConnectionError)


async def test_a_slow_endpoint_is_given_up_in_time_and_can_be_cancelled() -> None:
    slow = Reply(200, {}, delay=3.0)
    began = time.monotonic()
    with pytest.raises(ModelBusy, match=r"within 0.2 s; PHAZE_DOCUMENT_MODEL_SECONDS"):
        await Asked(slow, timeout=0.2)()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await Asked(slow)()
    assert time.monotonic() - began < 30


async def test_an_endpoint_that_is_not_there_is_busy() -> None:
    async with Client(Model(base_url="http://127.0.0.1:9/v1", name="m")) as client:
        with pytest.raises(ModelBusy):
            await client.ask("", "", Said, None)


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    with pytest.raises(ModelBusy, match="more than 4 MB"):
        await Asked(Reply(200, b"x" * (5 << 20)))()
