"""What may go wrong with a language model behind an OpenAI-compatible endpoint. No message holds a key or a page."""

from __future__ import annotations

from pipelines.errors import TaskError, TryLater


class ModelBusy(TryLater):
    """The endpoint is away, overloaded or asks for patience: try again, not before `after` seconds (None: not said).

    `symptom`: the HTTP status that it answered, if it did; a provider's 429 speaks of the key.
    """

    symptom: int | None = None


class KeyRefused(TaskError):
    """401: the endpoint does not take this key. Renew it once, then give up on it."""

    symptom = 401


class ModelMisused(TaskError):
    """The endpoint refuses the request itself; the message says what to change."""


class ModelRefused(TaskError):
    """The model, or the provider's filter, will not answer for this text. Asking again changes nothing."""


class AnswerCut(TaskError):
    """The answer, or the question, is longer than the model takes: ask about less text."""


class BadAnswer(TaskError):
    """What came, twice, is not what was asked for: no JSON, or not of the schema."""
