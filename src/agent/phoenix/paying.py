"""Who pays for one run, and what the run has spent.

A user's key is fetched when it is first asked for. What is spent goes to the outbox at once, call by call, numbered
under the run's token: sent again it is the same call to the catalogue, whatever becomes of the run and its worker.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import structlog
from redis.exceptions import RedisError

from agent.cancelling import end
from agent.metrics import TOKENS
from agent.phoenix import keys
from agent.phoenix.outbox import MAX_NAME, Entry, Usage, outbox_key
from agent.symptoms import symptom_of
from pipelines.errors import NotGranted
from pipelines.payer import ApiKey, Spent

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import SecretStr

    from agent.phoenix.billing import ApiKeyManager
    from agent.phoenix.queue import LaneQueue
    from agent.phoenix.runs import Run
    from agent.user_children import UserChildren
    from pipelines.saying import Listener

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

UNAUTHORIZED = 401

AGAIN = 1.0
"""Seconds between two tries to hand over what was spent."""

BATCH = 100
"""Calls that are handed over together."""


@dataclass(frozen=True)
class Paying:
    """What a worker has for tasks that users pay for. `base_url`: where their keys are good."""

    api_keys: ApiKeyManager
    children: UserChildren
    base_url: str | None = None


class RunPayer:
    """The payer of one run (`pipelines.payer.Payer`). `user`: who pays, if the task's policy names one."""

    def __init__(
        self, run: Run, queue: LaneQueue, paying: Paying | None, *, user: str | None, version: str, worker: str
    ) -> None:
        self._run = run
        self._queue = queue
        self._paying = paying
        self._user = user
        self._version = version
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._handed: SecretStr | None = None
        self._renewed = False
        self._calls = 0
        self._waiting: list[str] = []
        self._sender: asyncio.Task[None] | None = None

    # The key.

    async def api_key(self) -> ApiKey:
        """The user's. Callable from the task's event loop only."""
        paying, user = self._granted()
        self._handed = await paying.api_keys.get(user)
        return ApiKey(user, self._handed, paying.base_url)

    def _granted(self) -> tuple[Paying, str]:
        if self._user is None:
            raise NotGranted("nobody pays for this task; let its policy name a user: Policy(user=...)")
        if self._paying is None:
            raise NotGranted("this worker has no users' keys; run the task on `phaze worker`")
        return self._paying, self._user

    async def renewed(self, error: Exception) -> bool:
        """Whether it is worth running once more: a provider refused the key, and there is another now. Once a run."""
        if self._handed is None or self._renewed or symptom_of(error) != UNAUTHORIZED:
            return False
        paying, user = self._granted()
        self._renewed = True
        log.info("api_key.refused", task=self._run.service, record_id=self._run.record, user=keys.user_name(user))
        await paying.api_keys.renew(user, self._handed)
        return True

    async def child(
        self, listener: Listener, seconds: float, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call `function` in a process of the user's."""
        key = await self.api_key()
        paying, _ = self._granted()
        return await paying.children.run(key, self._note, listener, seconds, function, *args, **kwargs)

    # What was spent.

    def spent(self, spent: Spent) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._note, spent)

    def _note(self, spent: Spent) -> None:
        run = self._run
        TOKENS.labels(run.service, "prompt").inc(spent.prompt_tokens)
        TOKENS.labels(run.service, "completion").inc(spent.completion_tokens)
        usage = Usage(
            user="" if self._user is None else keys.user_name(self._user),
            model=spent.model.encode("utf-8", "replace").decode(),
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens,
        )
        entry = Entry(
            service=run.service, record_id=run.record, version=self._version[:MAX_NAME], token=int(run.token),
            part=self._calls, outcome="done", result={}, worker=self._worker, attempts=run.attempts,
            started_at=run.started, finished_at=time.time(), usage=usage,
        )  # fmt: skip
        self._calls += 1
        self._waiting.append(entry.model_dump_json())
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="spent")

    async def _send(self) -> None:
        """Until the server has it all. After a lost answer it has some twice, which the catalogue does not."""
        while self._waiting:
            batch = self._waiting[:BATCH]
            try:
                await self._queue.scripts("report", [outbox_key(self._queue.name)], batch)
            except (RedisError, OSError) as error:
                log.warning("usage.waiting", task=self._run.service, calls=len(self._waiting),
                            error=f"{type(error).__name__}: {error}")  # fmt: skip
                await asyncio.sleep(AGAIN)
            else:
                del self._waiting[: len(batch)]

    async def flush(self) -> None:
        """Wait until the server has all that was spent so far."""
        await asyncio.sleep(0)  # what threads reported last
        while self._sender is not None and not self._sender.done():
            await asyncio.shield(self._sender)

    async def close(self) -> None:
        """The same, at the end. A cancel meanwhile, which is the worker's end, loses the rest and says so."""
        try:
            await self.flush()
        except asyncio.CancelledError:
            if self._sender is not None:
                await end([self._sender])
            if self._waiting:
                log.error("usage.lost", task=self._run.service, record_id=self._run.record, calls=len(self._waiting))
            raise
