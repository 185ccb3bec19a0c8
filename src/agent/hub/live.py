"""GET /api/progress/{record_id}: what becomes of a record, while it becomes so, as server-sent events.

First what is recorded of it so far, then what workers publish on `phoenix:progress:<record_id>`. The hub listens to a
record only while somebody listens to the hub; nobody else costs the queue server anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agent.cancelling import end
from agent.lanes import AGENT_TASKS
from agent.phoenix import keys
from agent.phoenix.outbox import is_name
from agent.phoenix.streams import progress_message

if TYPE_CHECKING:
    from agent.hub.services import Services

MOST = 64
"""Listeners at a time: each has a connection to the queue server."""

LONGEST = 3600.0
"""Seconds of one answer; a browser's EventSource asks again by itself."""

BREATH = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection and a dead one is noticed."""

SLOW = 10.0
"""Seconds in which a listener must have taken an event."""

LOOK = 0.5
"""Seconds between two looks whether the hub ends or the listener has left."""

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}


class Live:
    """Who listens now. `stopping` is set when the hub ends: answers end with it."""

    def __init__(self, redis: Redis | None, stopping: asyncio.Event) -> None:
        self.redis = redis
        self.stopping = stopping
        self.listening = 0


async def progress(request: Request) -> Response:
    """The events of one record. 503: too many listen, or the queue server is away."""
    services: Services = request.app.state.services
    live, record_id = services.live, request.path_params["record_id"]
    if not is_name(record_id):
        raise HTTPException(404, "that cannot be a record")
    if live.redis is None:
        raise HTTPException(503, "this hub has no queue server")
    if live.listening >= MOST:
        raise HTTPException(503, f"{MOST} listen already; try again later", {"retry-after": "30"})
    if request.method == "HEAD":
        return Response(headers=HEADERS)
    return _Events(live, live.redis, record_id)


class _Events(Response):
    def __init__(self, live: Live, redis: Redis, record_id: str) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._live = live
        self._redis = redis
        self._record_id = record_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_left(receive))
        pubsub = self._redis.pubsub()
        self._live.listening += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with contextlib.suppress(RedisError, OSError, TimeoutError):  # the listener asks again
                async with contextlib.aclosing(self._said(pubsub)) as said:
                    async for text in said:
                        if leaving.done() or self._live.stopping.is_set():
                            break
                        if text:
                            async with asyncio.timeout(SLOW):
                                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            if not leaving.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._live.listening -= 1
            with contextlib.suppress(RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            await end([leaving], within=1.0)

    async def _said(self, pubsub: PubSub) -> AsyncGenerator[str, None]:
        """Events, and empty text now and then, so that who asks can look around."""
        await pubsub.subscribe(keys.progress_channel(self._record_id))
        yield "retry: 3000\n\n"
        for said in await recorded(self._redis, self._record_id):
            yield f"data: {said}\n\n"
        ends, spoke = time.monotonic() + LONGEST, time.monotonic()
        while time.monotonic() < ends:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=LOOK)
            if message is not None:
                lines = message["data"].decode("utf-8", "replace").splitlines()
                spoke = time.monotonic()
                yield "".join(f"data: {line}\n" for line in lines) + "\n"
            elif time.monotonic() - spoke > BREATH:
                spoke = time.monotonic()
                yield ": still here\n\n"
            else:
                yield ""


async def recorded(redis: Redis, record_id: str) -> list[str]:
    """What tasks of the hub's own table have recorded of it, the oldest first, as progress is told."""
    markers = await redis.mget([keys.marker_key(task, record_id) for task in AGENT_TASKS])
    found: list[tuple[float, str]] = []
    for task, marker in zip(AGENT_TASKS, markers, strict=True):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # none, or somebody wrote over it
            said = json.loads(marker or "{}")
            at = float(said["timestamp"])
            note = str(said.get("reason") or "")
            found.append((at, progress_message(task, record_id, str(said["outcome"]), note=note, at=at)))
    return [said for _, said in sorted(found)]


async def _left(receive: Receive) -> None:
    """Until the listener is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


routes = [Route("/api/progress/{record_id:path}", progress)]
