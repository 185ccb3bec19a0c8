"""A control plane that does as it is told: real HTTP over a real socket, scripted answers, and a record of requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Answer = Callable[[dict[str, Any]], Response]


def accept(_body: dict[str, Any]) -> Response:
    """Everything is recorded."""
    return JSONResponse({"refused": []})


def status(code: int, text: str = "") -> Answer:
    """Answer with this status."""
    return lambda _body: Response(text, status_code=code)


def refuse(predicate: Callable[[dict[str, Any]], bool], reason: str) -> Answer:
    """Refuse the entries for which `predicate` holds, take the others."""

    def answer(body: dict[str, Any]) -> Response:
        rows = [{"index": i, "reason": reason} for i, entry in enumerate(body["entries"]) if predicate(entry)]
        return JSONResponse({"refused": rows})

    return answer


class ControlPlane:
    """`entries` holds what was acknowledged, `beats` the heartbeats; `answers` are used up first, then all is taken.

    As in the hub, what is delivered again (a relay that ends before it has heard the answer) is recorded once.
    """

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self.limit: Callable[[dict[str, Any]], bool] = lambda _body: False
        """Whether a request's body is too large: answered with 413."""
        self.spoilt: Callable[[dict[str, Any]], bool] = lambda _body: False
        """Whether a request's body is at fault: answered with 400."""
        self.entries: list[dict[str, Any]] = []
        self._known: set[str] = set()
        self.beats: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()

    async def results(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.requests.append({"authorization": request.headers.get("authorization"), **body})
        if self.limit(body):
            return Response("too large", status_code=413)
        if self.spoilt(body):
            return Response("not well formed", status_code=400)
        response = (self.answers.pop(0) if self.answers else accept)(body)
        if response.status_code == 200:
            with contextlib.suppress(ValueError, TypeError):
                refused = {row["index"] for row in json.loads(bytes(response.body))["refused"]}
                self._record(entry for i, entry in enumerate(body["entries"]) if i not in refused)
        self.arrived.set()
        return response

    def _record(self, entries: Iterable[dict[str, Any]]) -> None:
        for entry in entries:
            if (same := json.dumps(entry)) not in self._known:
                self._known.add(same)
                self.entries.append(entry)

    async def heartbeat(self, request: Request) -> Response:
        self.beats.append(json.loads(await request.body()))
        return JSONResponse({})

    async def until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        """Wait until `condition` holds, looking at each arrival."""
        async with asyncio.timeout(within):
            while not condition():
                self.arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.arrived.wait(), 0.1)


@contextlib.asynccontextmanager
async def serve() -> AsyncIterator[ControlPlane]:
    """A control plane on a free port of the loopback address."""
    plane = ControlPlane()
    routes = [
        Route("/api/agents/{agent_id}/results", plane.results, methods=["POST"]),
        Route("/api/agents/{agent_id}/heartbeat", plane.heartbeat, methods=["POST"]),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]  # signals are the test runner's
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    plane.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield plane
    finally:
        server.should_exit = True
        await running
