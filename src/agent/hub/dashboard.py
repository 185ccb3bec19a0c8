"""/saq: SAQ's own dashboard over every lane's queue of every agent, and over the base queues while they hold jobs.

The page is SAQ's (saq/web/static, as it ships it). What answers it is ours, since saq.web.starlette has a stored XSS
(shown_jobs.py), asks for no token before a change (guard.py), does not find a key with a `/`, keeps its queues in a
module's variable, and hands out any `.gz` file of the machine under /static/../. What is wrong in the page itself is
mended around it (static/saq.js).

It looks at no more than a queue's counters and the first few of its jobs, however many wait.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

from redis.asyncio import Redis
from redis.exceptions import RedisError
from saq.job import Job, Status
from saq.queue.redis import RedisQueue
from saq.web.common import STATIC_PATH
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from agent.hub.catalogue import Catalogue
from agent.hub.limits import HEADERS
from agent.hub.login import Login
from agent.hub.shown_jobs import ShownQueue, failed_queue, shown_job, shown_queue
from agent.hub.templating import templates
from agent.lanes import LANES, queue_name
from agent.phoenix import keys
from agent.phoenix.queue import JobIsRunning, LaneQueue
from agent.queue_activity import base_queue_activity
from agent.redaction import redact_text
from agent.redis_client import reply

ROOT = "/saq"

ANSWER = 5.0
"""Seconds for what one queue is asked; one that fails spoils only its own row."""

SHOWN = 20
"""Running jobs, and unsettled ones, that a queue's page lists at most."""

NO_STORE = {"cache-control": "no-store"}

PAGE_HEADERS = {
    **NO_STORE,
    "content-security-policy": f"{HEADERS['content-security-policy']}; img-src 'self' data:",  # its icons, in its CSS
}

STATIC = {"app.js": "text/javascript", "snabbdom.js": "text/javascript", "pico.min.css": "text/css"}

RUNS = frozenset({Status.ACTIVE, Status.ABORTING})


@dataclass(frozen=True)
class _Place:
    agent_id: str
    lane: str | None


class Dashboard:
    """`app.state.dashboard`: which queues there are, and SAQ's handle on each.

    Args:
        drain: show the base queues also while they are empty.
    """

    def __init__(self, catalogue: Catalogue, redis: Redis | None, *, drain: bool = False) -> None:
        self._catalogue = catalogue
        self._redis = redis
        self._drain = drain
        self._handles: dict[str, RedisQueue] = {}

    @property
    def redis(self) -> Redis:
        """The queue server. Raises HTTPException 503 where there is none."""
        if self._redis is None:
            raise HTTPException(503, "this hub has no queue server; set PHAZE_REDIS_URL")
        return self._redis

    async def shown(self) -> list[ShownQueue]:
        """All queues, without their jobs."""
        agents = await asyncio.to_thread(self._catalogue.agents)
        places = {queue_name(agent, lane): _Place(agent, lane) for agent in agents for lane in (*LANES, None)}
        rows = await asyncio.gather(*(self._row(name, place) for name, place in places.items()))
        return [row for row in rows if row is not None]

    async def _row(self, name: str, place: _Place) -> ShownQueue | None:
        try:
            async with asyncio.timeout(ANSWER):
                if place.lane is None and not await self._base_is_shown(place.agent_id):
                    return None
                info = await (await self._handle(name, place)).info()
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            return failed_queue(name, redact_text(str(error)) or "no answer in time")
        return shown_queue(name, dict(info))

    async def _base_is_shown(self, agent_id: str) -> bool:
        row = await base_queue_activity(self.redis, agent_id)
        return self._drain or bool(row.unsettled or row.error)

    async def queue(self, name: str) -> RedisQueue:
        """The queue of that name. Raises HTTPException 404 for what is no agent's queue."""
        agents = await asyncio.to_thread(self._catalogue.agents)
        for agent in agents:
            for lane in (*LANES, None):
                if queue_name(agent, lane) == name:
                    return await self._handle(name, _Place(agent, lane))
        raise HTTPException(404, f"{name:.200} is no queue of an agent that this hub knows")

    async def _handle(self, name: str, place: _Place) -> RedisQueue:
        # A worker from before lanes keeps what runs on its base queue in a list, and only SAQ's own class knows those.
        plain = place.lane is None and await reply(self.redis.type(keys.active_key(name))) == b"list"
        kind = RedisQueue if plain else LaneQueue
        if type(found := self._handles.get(name)) is not kind:
            found = RedisQueue(self.redis, name=name) if plain else LaneQueue(self.redis, name=name, outbox=True)
            self._handles[name] = found
        return found

    async def job(self, name: str, key: str) -> Job:
        """Raises HTTPException 404."""
        queue = await self.queue(name)
        try:
            found = await queue.job(key)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise HTTPException(422, f"the job {key:.200} cannot be decoded; its worker will quarantine it") from None
        if found is None or found.key != key:  # what a job says of itself is not believed
            raise HTTPException(404, f"there is no job {key:.200} on {name} (any more); `phaze why` may know of it")
        return found


@asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(ANSWER):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise HTTPException(503, f"the queue server: {redact_text(str(error)) or 'no answer in time'}") from None


async def queues(request: Request) -> JSONResponse:
    """GET /saq/api/queues."""
    return JSONResponse({"queues": await _dashboard(request).shown()}, headers=NO_STORE)


async def queue(request: Request) -> JSONResponse:
    """GET /saq/api/queues/NAME: with the jobs that run, and the next ones."""
    name = request.path_params["queue"]
    async with _bounded():
        found = await _dashboard(request).queue(name)
        info = await found.info(jobs=True, limit=SHOWN)
    shown = await asyncio.to_thread(shown_queue, name, dict(info))
    return JSONResponse({"queue": shown}, headers=NO_STORE)


async def job(request: Request) -> JSONResponse:
    """GET /saq/api/queues/NAME/jobs/KEY."""
    name = request.path_params["queue"]
    async with _bounded():
        found = await _dashboard(request).job(name, request.path_params["job"])
    shown = await asyncio.to_thread(shown_job, name, found.to_dict())
    return JSONResponse({"job": shown}, headers=NO_STORE)


async def retry(request: Request) -> JSONResponse:
    """POST /saq/api/queues/NAME/jobs/KEY/retry: run it (again) now; 409 while it runs."""
    async with _bounded():
        found = await _dashboard(request).job(request.path_params["queue"], request.path_params["job"])
        try:
            if not isinstance(found.get_queue(), LaneQueue) and found.status in RUNS:
                raise JobIsRunning(f"{found.key} is running; abort it first")
            await found.retry("retried from the dashboard")
        except JobIsRunning as error:
            raise HTTPException(409, str(error)) from None
    return JSONResponse({"done": "It runs as soon as a worker is free."}, headers=NO_STORE)


async def abort(request: Request) -> JSONResponse:
    """POST /saq/api/queues/NAME/jobs/KEY/abort: end it, wherever it is; nothing changes for one that has ended."""
    async with _bounded():
        found = await _dashboard(request).job(request.path_params["queue"], request.path_params["job"])
        await found.abort("aborted from the dashboard")
    said = {Status.ABORTED: "It is aborted.", Status.ABORTING: "Its worker is told to end it."}
    return JSONResponse({"done": said.get(found.status, "It had ended already.")}, headers=NO_STORE)


async def page(request: Request) -> Response:
    """GET /saq/..., the same for every view: its script reads the address."""
    login: Login = request.app.state.login
    context = {"root": ROOT, "csrf_token": login.token(request.state.who)}
    return templates.TemplateResponse(request, "saq.html", context, headers=PAGE_HEADERS)


async def static(request: Request) -> Response:
    """GET /saq/static/NAME: the three files of SAQ's page, by name."""
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    return Response(
        await asyncio.to_thread(_file, name), media_type=STATIC[name], headers={"cache-control": "no-cache"}
    )


@cache
def _file(name: str) -> bytes:
    plain = STATIC_PATH / name
    return plain.read_bytes() if plain.exists() else gzip.decompress((STATIC_PATH / f"{name}.gz").read_bytes())


async def _enter(_request: Request) -> Response:
    return RedirectResponse(f"{ROOT}/")


def _dashboard(request: Request) -> Dashboard:
    found: Dashboard = request.app.state.dashboard
    return found


class _Key(Convertor[str]):
    """A job's key: all of the rest, slashes and line breaks included."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("key", _Key())

routes = [
    Route(ROOT, _enter),
    Route(f"{ROOT}/", page),
    Route(f"{ROOT}/queues/{{queue}}", page),
    Route(f"{ROOT}/queues/{{queue}}/jobs/{{job:key}}", page),
    Route(f"{ROOT}/api/queues", queues),
    Route(f"{ROOT}/api/queues/{{queue}}", queue),
    Route(f"{ROOT}/api/queues/{{queue}}/jobs/{{job:key}}/retry", retry, methods=["POST"]),
    Route(f"{ROOT}/api/queues/{{queue}}/jobs/{{job:key}}/abort", abort, methods=["POST"]),
    Route(f"{ROOT}/api/queues/{{queue}}/jobs/{{job:key}}", job),
    Route(f"{ROOT}/static/{{name}}", static),
]
