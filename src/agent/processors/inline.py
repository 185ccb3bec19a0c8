"""A processor without queue, server or worker: for its tests, and for a look at what it does with one record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import SecretStr
from redis.asyncio import Redis

from agent.phoenix import keys
from agent.processors.base import RUNNING, BaseProcessor, Stage, checked
from pipelines.context import InlineContext
from pipelines.payer import ApiKey


class _Pages:
    """The one thing that a processor asks the server for."""

    def __init__(self, record_id: str, pages: Sequence[Any] | None) -> None:
        self._kept = {} if pages is None else {keys.pages_key(record_id): json.dumps(list(pages)).encode()}

    async def get(self, key: str) -> bytes | None:
        return self._kept.get(key)


class OneKey:
    """An API key manager with one key for everybody."""

    def __init__(self, key: str) -> None:
        self._key = SecretStr(key)

    async def get(self, user: str) -> SecretStr:
        return self._key

    async def renew(self, user: str, refused: SecretStr) -> SecretStr:
        return self._key


async def process_inline(
    kind: type[BaseProcessor],
    record_id: str,
    user_id: str,
    data: Mapping[str, Any] | None = None,
    *,
    pages: Sequence[Any] | None = None,
    api_key: str = "test",
) -> dict[str, Any] | None:
    """What the processor makes of one record, or what it raises.

    `pages`: what `self.pages(record_id)` finds. `api_key`: what its user pays with.
    """
    redis = cast("Redis", _Pages(record_id, pages))
    processor = checked(kind)(kind.__name__.lower(), redis, OneKey(api_key))
    context = InlineContext(record_id, key=ApiKey(user_id, SecretStr(api_key)))
    running = RUNNING.set(Stage(context, user_id))
    try:
        return await processor.process(record_id, user_id, dict(data or {}))
    finally:
        RUNNING.reset(running)
