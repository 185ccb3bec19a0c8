"""What may go wrong with a language model behind an OpenAI-compatible endpoint. No message holds a key or a page."""

from __future__ import annotations

from pipelines.errors import TaskError


class ModelBusy(TaskError, ConnectionError):
    """The endpoint is away, overloaded or asks for patience: try again, not before `retry_after` seconds (None: not said).

    A ConnectionError, so that the circuit of the endpoint counts it.
    """

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail, retry_after)
        self.detail = detail
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.detail if self.retry_after is None else f"{self.detail}; it asks for {self.retry_after:.0f} s"


class KeyRefused(TaskError):
    """401: the endpoint does not take this key. Renew it once, then give up on it."""


class ModelMisused(TaskError):
    """The endpoint refuses the request itself; the message says what to change."""


class ModelRefused(TaskError):
    """The model, or the provider's filter, will not answer for this text. Asking again changes nothing."""


class AnswerCut(TaskError):
    """The answer, or the question, is longer than the model takes: ask about less text."""


class BadAnswer(TaskError):
    """What came, twice, is not what was asked for: no JSON, or not of the schema."""
