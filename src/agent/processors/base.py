"""What a processor is built on: a class that takes one record at a time through a library.

    class Genetics(BaseProcessor):
        policy = Policy(timeout=lambda payload: 300.0)

        async def process(self, record_id, user_id, data):
            return await genetics.run(record_id, user_id, await self.pages(record_id))

Its line in the lane table is "module:Genetics"; the worker of its lane makes one of it. Queue, lock, retries, dead
letters, the stream that feeds it and the next stage that it feeds are the engine's.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import structlog
from pydantic import BaseModel, Field, SecretStr, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from agent import plugins
from agent.phoenix import keys
from agent.phoenix.endings import Quarantined
from pipelines.context import Policy, TaskContext
from pipelines.errors import RecordNotFoundError
from pipelines.payload import Payload

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

TIMEOUT = 600.0
"""Seconds that a record may take where a processor says nothing."""


class Record(Payload):
    """What a processor's job holds. `data` is what the entry of the stream, or the stage before, said of the record."""

    user_id: str
    data: dict[str, Any] = Field(default_factory=dict)


class ApiKeyManager(Protocol):
    """Users' keys at the provider of models (agent.phoenix.billing); tests have one key (agent.processors.inline)."""

    async def get(self, user: str) -> SecretStr:
        """The user's key. Raises NotGranted where there is none to be had."""

    async def renew(self, user: str, refused: SecretStr) -> SecretStr:
        """Another one, once the provider refused that."""


class Stage:
    """One record on its way through a processor."""

    def __init__(self, context: TaskContext, user_id: str) -> None:
        self.context = context
        self.user_id = user_id
        self.pages: str | None = None
        """What it leaves as the record's pages, with its settle."""
        self.missing: str | None = None
        """Why its result is not all that there should be."""


RUNNING: ContextVar[Stage] = ContextVar("phaze_stage")
"""The record that the current task is about: a processor takes several at a time."""


class BaseProcessor:
    """The base of processors. One object serves all records of its worker, several at a time: keep nothing of a record
    on `self`.

    Attributes of the class:
        policy: how long a record may take, and what it leans on (pipelines.context.Policy; the payload is `Record`).
        next_service: the service to whose stream the result goes, in the step in which it is recorded; "" for none.
        last_to_read_pages: whether the record's pages are deleted once this service has recorded a result for it.
    """

    policy: ClassVar[Policy] = Policy(timeout=lambda payload: TIMEOUT)
    next_service: ClassVar[str] = ""
    last_to_read_pages: ClassVar[bool] = False

    def __init__(self, service_name: str, redis_client: Redis, api_key_manager: ApiKeyManager) -> None:
        self.service_name = service_name
        self.redis_client = redis_client
        self.api_key_manager = api_key_manager

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        """The record's result, which is also the `data` of the next stage; None: done, and no next stage.

        It may run again after a crash. Raises RecordNotFoundError (what it is about is not there: dead letter),
        InputRejected (it is, and is no good: recorded as `rejected`); anything else is tried again, for ever.
        """
        raise NotImplementedError

    @property
    def log(self) -> Any:
        """A structured logger that knows the service and, within `process`, the record."""
        stage = RUNNING.get(None)
        record = {} if stage is None else {"record_id": stage.context.record_id}
        return structlog.get_logger().bind(service=self.service_name, **record)

    @property
    def context(self) -> TaskContext:
        """Within `process`: progress, child processes, the fencing token (see pipelines.context.TaskContext)."""
        return RUNNING.get().context

    async def pages(self, record_id: str) -> list[Any]:
        """The record's pages, from `pages:<record_id>`. Raises RecordNotFoundError where there are none (any more)."""
        text = await self.redis_client.get(keys.pages_key(record_id))
        if text is None:
            raise RecordNotFoundError(
                f"{keys.pages_key(record_id)} is not there: its pages were read and deleted, or never put there; "
                "send the record to the service that extracts them"
            )
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, list):
            raise RecordNotFoundError(f"{keys.pages_key(record_id)} holds no JSON list of pages")
        return found

    def keep_pages(self, pages: Sequence[BaseModel | Mapping[str, Any] | str]) -> None:
        """Leave the record's pages for the stages that follow: written in the step in which the result is recorded."""
        RUNNING.get().pages = json.dumps(to_jsonable_python(list(pages)), allow_nan=False)

    def partial(self, reason: str) -> None:
        """Some of the record could not be done: its result is recorded, and goes on, with the outcome `partial`."""
        RUNNING.get().missing = reason

    @staticmethod
    def understood(kind: type[T], said: Any) -> T:
        """`said` as a model, or as whatever type pydantic can check. What does not fit is set aside in quarantine with
        the reason, for no later attempt will fit better."""
        try:
            return TypeAdapter(kind).validate_python(said)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(step) for step in problem["loc"]) or "data"
            raise Quarantined(f"bad-data: {where}: {problem['msg']}") from None


def checked(found: type[Any]) -> type[BaseProcessor]:
    """The class. Raises TypeError, which names the remedy, if it cannot serve as a processor."""
    if not issubclass(found, BaseProcessor):
        raise TypeError(f"{found.__name__} is not a subclass of agent.processors.BaseProcessor")
    process = found.process
    if process is BaseProcessor.process or not inspect.iscoroutinefunction(process):
        raise TypeError(f"{found.__name__} has no `async def process(self, record_id, user_id, data)`")
    try:
        inspect.signature(process).bind(None, "record", "user", {})
    except TypeError:
        raise TypeError(f"{found.__name__}.process must take (self, record_id, user_id, data)") from None
    if not isinstance(found.policy, Policy):
        raise TypeError(f"{found.__name__}.policy must be a Policy(timeout=...)")
    if found.next_service and not plugins.NAME.fullmatch(found.next_service):
        raise TypeError(f"{found.__name__}.next_service names no service: {found.next_service!r}")
    return found
