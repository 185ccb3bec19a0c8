"""A language model behind an OpenAI-compatible endpoint, asked for JSON of a schema.

    POST {base_url}/chat/completions   {"model", "messages", "response_format": {"type": "json_schema", ...}}

What came is looked at in this order: the status, a refusal, why it ended (`finish_reason`), and only then the text. A
text that does not fit is sent back once with what is wrong. Nothing else is ever sent twice here: whoever calls knows
when to try again (`ModelBusy.after`). The key is given with each call and kept nowhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, SecretStr, ValidationError

from pipelines.documents.llm_errors import AnswerCut, BadAnswer, KeyRefused, ModelBusy, ModelMisused, ModelRefused
from pipelines.retry_after import retry_after

Ended = Literal["answered", "cut", "refused", "bad-answer", "key-refused", "busy", "misused"]
T = TypeVar("T", bound=BaseModel)

LARGEST_ANSWER = 4 << 20
"""Bytes of one answer; more is not the protocol."""


class Model(BaseModel):
    """Which model, where. `base_url` ends before `/chat/completions`: `https://api.openai.com/v1`."""

    base_url: str
    name: str
    timeout: float = 120.0
    """Seconds for one answer in all."""
    max_tokens: int = 8192
    """Tokens that one answer may have."""

    @property
    def host(self) -> str:
        """Host and port, for the circuit and for messages."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2]


class Usage(BaseModel):
    """What one attempt used, whatever came of it. Zero tokens: the endpoint did not say."""

    model: str
    ended: Ended
    prompt_tokens: int = 0
    completion_tokens: int = 0


OnUsage = Callable[[Usage], None]


class _Unfit(NamedTuple):
    text: str
    wrong: str


class Client:
    """Asks one model. `on_usage` hears of every attempt. Close it with `async with`."""

    def __init__(self, model: Model, on_usage: OnUsage | None = None) -> None:
        self.model = model
        self._on_usage = on_usage or (lambda usage: None)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(model.timeout, connect=10.0), follow_redirects=False)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, instructions: str, text: str, answer: type[T], key: SecretStr | None) -> T:
        """What the model says of `text`, as an `answer`.

        Two attempts at most: the second says what was wrong with the first. Raises ModelBusy, KeyRefused, ModelMisused,
        ModelRefused, AnswerCut, BadAnswer.
        """
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": text}]
        said = await self._attempt(messages, answer, key)
        if not isinstance(said, _Unfit):
            return said
        first, wrong = said
        repair = f"That does not fit the schema: {wrong}. Answer again, with the corrected JSON alone."
        messages += [{"role": "assistant", "content": first[:20_000]}, {"role": "user", "content": repair}]
        said = await self._attempt(messages, answer, key)
        if not isinstance(said, _Unfit):
            return said
        raise BadAnswer(f"{self.model.name} at {self.model.host} twice gave no JSON of the schema: {said.wrong}")

    async def _attempt(self, messages: list[dict[str, str]], answer: type[T], key: SecretStr | None) -> T | _Unfit:
        """One request: the answer, or the text that is none and what is wrong with it."""
        body = {
            "model": self.model.name,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self.model.max_tokens,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": answer.__name__, "strict": True, "schema": answer.model_json_schema()},
            },
        }
        response, content = await self._post(body, key)
        said = _as_object(content)
        if response.status_code != httpx.codes.OK:
            self._failed(response, said)
        choice = _first(said.get("choices"))
        if choice is None:
            self._tell("busy", said)
            raise ModelBusy(f"{self.model.host} answered 200 without a choice; is it an OpenAI-compatible endpoint?")
        return self._read(choice, said, answer)

    def _read(self, choice: dict[str, Any], said: dict[str, Any], answer: type[T]) -> T | _Unfit:
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        ended = choice.get("finish_reason")
        if message.get("refusal") or ended == "content_filter":
            self._tell("refused", said)
            raise ModelRefused(f"{self.model.name} at {self.model.host} will not answer for this text")
        if ended == "length":
            self._tell("cut", said)
            raise AnswerCut(f"the answer of {self.model.name} was cut at {self.model.max_tokens} tokens")
        text = message.get("content")
        if not isinstance(text, str) or ended not in ("stop", None):
            self._tell("bad-answer", said)
            return _Unfit("", f"no text, finish_reason {str(ended)[:40]!r}")
        try:
            parsed = answer.model_validate_json(_unfenced(text))
        except ValidationError as error:
            self._tell("bad-answer", said)
            problems = error.errors(include_input=False, include_url=False)[:5]
            return _Unfit(text, "; ".join(_problem(entry) for entry in problems))
        self._tell("answered", said)
        return parsed

    async def _post(self, body: dict[str, Any], key: SecretStr | None) -> tuple[httpx.Response, bytes]:
        """Status, headers and at most LARGEST_ANSWER bytes, within the model's time. Raises ModelBusy."""
        headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {}
        url = f"{self.model.base_url.rstrip('/')}/chat/completions"
        try:
            async with (
                asyncio.timeout(self.model.timeout),
                self._http.stream("POST", url, json=body, headers=headers) as response,
            ):
                content = b""
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > LARGEST_ANSWER:
                        self._tell("busy", {})
                        raise ModelBusy(f"{self.model.host} answered more than {LARGEST_ANSWER >> 20} MB")
                return response, content
        except (httpx.ReadTimeout, TimeoutError):
            self._tell("busy", {})
            within = f"{self.model.timeout:g} s; PHAZE_DOCUMENT_MODEL_SECONDS gives it more"
            raise ModelBusy(f"{self.model.host} does not answer within {within}") from None
        except httpx.HTTPError as error:
            self._tell("busy", {})
            raise ModelBusy(f"{self.model.host} does not answer: {type(error).__name__}") from None

    def _failed(self, response: httpx.Response, said: dict[str, Any]) -> None:
        """Raise what a status other than 200 means."""
        status = response.status_code
        at = f"{self.model.host} answered {status}"
        if status == httpx.codes.UNAUTHORIZED:
            self._tell("key-refused", said)
            raise KeyRefused(f"{at}: it does not take the key; renew it")
        if status in (408, 409, 425, 429) or status >= 500:
            self._tell("busy", said)
            busy = ModelBusy(at, retry_after(response.headers))
            busy.symptom = status
            raise busy
        error = said.get("error")
        named = [str(error.get(name) or "") for name in ("type", "code")] if isinstance(error, dict) else []
        code = " ".join(filter(None, named))  # which of the two says it differs from server to server
        if status == httpx.codes.REQUEST_ENTITY_TOO_LARGE or "context" in code or "exceed" in code:
            self._tell("cut", said)
            raise AnswerCut(f"{at}: the page is longer than {self.model.name} takes")
        self._tell("misused", said)
        raise ModelMisused(f"{at} ({code[:60] or 'no code'}): does it know {self.model.name}, and json_schema answers?")

    def _tell(self, ended: Ended, said: dict[str, Any]) -> None:
        usage = said.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
        known = {name: count for name, count in counts.items() if isinstance(count, int) and 0 <= count < 1 << 40}
        self._on_usage(Usage(model=self.model.name, ended=ended, **known))


def _as_object(content: bytes) -> dict[str, Any]:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _first(choices: Any) -> dict[str, Any] | None:
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _unfenced(text: str) -> str:
    """Without the fence of a code block, which some models cannot leave out."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2].removesuffix("```").strip()
    return text


def _problem(entry: Any) -> str:
    where = ".".join(str(part) for part in entry["loc"])
    return f"{where}: {entry['msg']}"[:200]
