"""What a task may ask of whoever runs it, and what it says about itself.

The engine implements `TaskContext`; a test or a script can do so in a few lines (`InlineContext` is one).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from pydantic import BaseModel

from pipelines.errors import NotGranted
from pipelines.payer import ApiKey, Spent, paid_by
from pipelines.saying import Listener, listening

P = ParamSpec("P")
T = TypeVar("T")
TaskFunction = TypeVar("TaskFunction", bound=Callable[..., Awaitable[BaseModel]])


class TaskContext(Protocol):
    """The surroundings of one running task."""

    @property
    def record_id(self) -> str:
        """The record this run is about: a file id, a scan id, a batch id."""

    @property
    def token(self) -> str:
        """Fencing token of this run; it only grows per record. Hand it to whatever you write to elsewhere."""

    async def check(self) -> None:
        """Raise `LeaseLost` once this run no longer owns its record."""

    async def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the work is: `fraction` in 0..1, `note` in a few words."""

    async def report(self, part: BaseModel) -> None:
        """Hand over one part of a result too large for one piece, in order, through the same door as the result."""

    async def ask(self, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """What only the surroundings have, each `subject` with its own JSON: signed requests (`s3`), a key (`ssh-key`),
        where the library's tracks occur in a fingerprint (`prints`), which files it knows as they are (`known-files`).

        Raises `NotAnswered` (ask again later) and `NotGranted`. Answers may be secrets: never log or return them.
        """

    async def child(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a picklable function in a child process that a time-out, a cancel or a crash ends alone.

        What it says of itself (`pipelines.saying.say`) counts as this run's progress.
        Raises `ChildDied` if the process died under it, and whatever `function` raised otherwise.
        """

    async def api_key(self) -> ApiKey:
        """The key of the user who pays for this run (`Policy.user`); libraries: `pipelines.payer.api_key`.

        Ask anew for each call, and never log, return or keep it. Raises `NotGranted` and `NotAnswered`.
        """

    async def usage(self, prompt_tokens: int, completion_tokens: int, model: str = "") -> None:
        """Report what a call to a model came to; it is kept when this returns, whatever becomes of the run.

        Libraries that have no context: `pipelines.payer.spent`. Raises ValueError for what is no count.
        """

    async def child_as_user(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`child`, for libraries that read the key from their environment: in a process started with OPENAI_API_KEY and
        OPENAI_BASE_URL of the user who pays, and nothing of the worker's own, that ends with the call.

        `function` is a module's, and may be a coroutine function. What it reports with `pipelines.payer.spent` is kept.
        """


@dataclass(frozen=True)
class Policy:
    """How a task wants to be run. It beats what a producer left at a queue's defaults."""

    timeout: Callable[[Any], float]
    """Seconds that one run may take, from its payload (scaled to size or duration)."""
    outside_effects: bool = False
    """True if the task changes something that a second run would change again."""
    dependency: Callable[[Any], str] | None = None
    """Names what the task leans on (an endpoint, a provider) for the circuit breaker; None, or an empty name: only this
    machine."""
    user: Callable[[Any], str] | None = None
    """Whose key pays for the calls to `dependency`; what is wrong with the key holds up that user's jobs alone.
    None, or an empty name: nobody pays."""


def task(policy: Policy) -> Callable[[TaskFunction], TaskFunction]:
    """Mark an async function as a task and attach its policy (read back by `policy_of`)."""

    def mark(function: TaskFunction) -> TaskFunction:
        function.__dict__["policy"] = policy
        return function

    return mark


def policy_of(function: Callable[..., Any]) -> Policy:
    """The policy that `task` attached; TypeError names the remedy if there is none."""
    policy = getattr(function, "policy", None)
    if not isinstance(policy, Policy):
        raise TypeError(f"{function!r} is not a task; decorate it with @task(Policy(timeout=...))")
    return policy


class InlineContext:
    """Runs a task without any queue: `await process_file(InlineContext(), payload)`.

    Parts collect in `parts`, what calls to models came to in `calls`. `answers`: subject -> the function that answers
    `ask`. `on_progress(fraction, note)` hears how far it is, from whichever thread says so. `key`: what pays for calls.
    """

    def __init__(
        self,
        record_id: str = "inline",
        answers: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] | None = None,
        on_progress: Listener | None = None,
        key: ApiKey | None = None,
    ) -> None:
        self.record_id = record_id
        self._answers = answers or {}
        self.token = "0"  # noqa: S105 - a fencing token orders runs; it is no password
        self.parts: list[BaseModel] = []
        self.calls: list[Spent] = []
        self._key = key
        self._on_progress = on_progress or (lambda fraction, note: None)

    async def check(self) -> None:
        """Nobody else can own an inline run."""

    async def progress(self, fraction: float, note: str = "") -> None:
        self._on_progress(fraction, note)

    async def report(self, part: BaseModel) -> None:
        self.parts.append(part)

    async def ask(self, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
        if subject not in self._answers:
            raise NotGranted(f"nobody here answers {subject}; give InlineContext an answer to it")
        return self._answers[subject](question)

    async def child(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in a thread: no isolation, the same signature."""
        with listening(self._on_progress):
            return await asyncio.to_thread(function, *args, **kwargs)

    async def api_key(self) -> ApiKey:
        if self._key is None:
            raise NotGranted("nobody pays here; give InlineContext a key")
        return self._key

    def spent(self, spent: Spent) -> None:
        """What `pipelines.payer.spent` reports."""
        self.calls.append(spent)

    async def usage(self, prompt_tokens: int, completion_tokens: int, model: str = "") -> None:
        self.calls.append(Spent(prompt_tokens, completion_tokens, model))

    async def child_as_user(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in a thread, in the environment that is there: set the key yourself."""
        with paid_by(self):
            result = await asyncio.to_thread(function, *args, **kwargs)
            return await result if inspect.isawaitable(result) else result
