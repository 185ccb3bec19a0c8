"""The hub as an ASGI app: routes, guards, error answers, and the loops that live as long as it does."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agent import kept
from agent.cancelling import end
from agent.errors import ConfigError
from agent.hub import (
    agent_api,
    batch_api,
    chores,
    dashboard,
    duplicate_pages,
    live,
    live_set_pages,
    login_pages,
    overview,
    pages,
    queues,
    record_pages,
    usage_pages,
)
from agent.hub.activity import Activity
from agent.hub.catalogue import PRINTS_FOLDER, Catalogue, CatalogueUnavailable
from agent.hub.dashboard import Dashboard
from agent.hub.guard import Guard, refused
from agent.hub.index import IndexProcess
from agent.hub.limits import KnownHosts, SecurityHeaders
from agent.hub.login import Login
from agent.hub.reconciler import Reconciler
from agent.hub.services import Services
from agent.hub.signing import Signing
from agent.producer import Producer
from agent.settings import Settings

log = structlog.get_logger()

LOOPS_END = 5.0
"""Seconds for the loops to end at shutdown; what they leave undone, the next hub does."""


def create_app(
    settings: Settings,
    catalogue: Catalogue,
    *,
    redis: Redis | None = None,
    producer: Producer | None = None,
    stopping: asyncio.Event | None = None,
) -> ASGIApp:
    """The app around an open catalogue. Without a queue server it records and shows, and enqueues nothing.
    `stopping` is set when the server begins to shut down: answers that would go on end then.

    Whoever calls closes catalogue, redis and producer after the app has shut down. Raises ConfigError (PHAZE_S3_*).
    """
    login = login_of(settings, catalogue.path.parent)
    index = IndexProcess(catalogue.path, catalogue.path.with_name(PRINTS_FOLDER), catalogue.duplicates)
    reconciler = None
    if redis is not None and producer is not None:
        reconciler = Reconciler(catalogue, producer, redis, indexed=lambda: index.indexed)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        loops = [asyncio.create_task(index.run(), name="index-prints")]
        loops.append(asyncio.create_task(chores.run(catalogue), name="chores"))
        if reconciler is not None:
            loops.append(asyncio.create_task(reconciler.run(), name="reconciler"))
        try:
            yield
        finally:
            await end(loops, within=LOOPS_END)

    app = Starlette(
        routes=[
            *agent_api.routes,
            *batch_api.routes,
            *login_pages.routes,
            *queues.routes,
            *live.routes,
            *overview.routes,
            *dashboard.routes,
            *duplicate_pages.routes,
            *usage_pages.routes,
            *record_pages.routes,
            *live_set_pages.routes,
            *pages.routes,
        ],
        middleware=[
            Middleware(KnownHosts, names=known_names(settings), origins=more_names(settings)),
            Middleware(Guard, login=login, catalogue=catalogue, open_metrics=settings.hub_open_metrics),
        ],
        exception_handlers={
            HTTPException: _refuse,
            CatalogueUnavailable: _unavailable,
            Exception: _fail,
        },
        lifespan=lifespan,
    )
    listeners = live.Live(redis, stopping or asyncio.Event())
    activity, signing = Activity(catalogue, redis), Signing.of(settings)
    app.state.services = Services(catalogue, activity, reconciler, redis, index, listeners, signing)
    app.state.login = login
    app.state.dashboard = Dashboard(catalogue, redis, drain=settings.hub_drain)
    # Outside of Starlette, whose own middleware answers 500 from around all that it is given.
    return SecurityHeaders(app)


def known_names(settings: Settings) -> set[str]:
    """The names under which the hub answers, besides its addresses."""
    own = {"localhost", settings.hub_host, urlsplit(settings.hub_url).hostname or "localhost"}
    return own | {name.partition(":")[0] for name in more_names(settings)}


def more_names(settings: Settings) -> list[str]:
    """PHAZE_HUB_NAMES: `hub.example`, or `hub.example:8443`."""
    return [name.strip() for name in settings.hub_names.split(",") if name.strip()]


def login_of(settings: Settings, folder: Path) -> Login:
    """Who may use the pages. The key of sessions is kept in `folder`, where there is a login."""
    if settings.hub_password is None:
        return Login(settings.hub_user, None, secrets.token_urlsafe())
    try:
        key, _ = kept.secret(folder / kept.HUB_KEY)
    except OSError as error:
        raise ConfigError(
            f"{folder / kept.HUB_KEY} cannot be used ({error.strerror}); make it readable, or remove it"
        ) from None
    return Login(settings.hub_user, settings.hub_password.get_secret_value(), key)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refused(request, error.status_code, error.detail, dict(error.headers or {}))


async def _unavailable(request: Request, error: Exception) -> Response:
    log.error("catalogue.unavailable", error=str(error), path=request.url.path)
    return refused(request, 503, f"the catalogue cannot be used right now: {error}", {"retry-after": "1"})


async def _fail(request: Request, _error: Exception) -> Response:
    return refused(request, 500, "the hub failed on this request; its log says why")
