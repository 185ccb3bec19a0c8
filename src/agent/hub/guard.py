"""What stands before every route: who asks, and whether a change was asked for by one of our own pages.

    open       /health, /login, /logout, /static, and the agents' API, whose routes look at the agent's own token;
               /metrics where PHAZE_HUB_OPEN_METRICS says so
    a login    everything else; a page sends to /login, the rest answers 401
    or a token of any agent in force, for what programs read: /api and /metrics

A new route needs a login unless it is named here.
"""

from __future__ import annotations

import asyncio
import math
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.hub.catalogue import Catalogue
from agent.hub.login import Login, TooManyFailures

OPEN = frozenset({"/health", "/login", "/logout", "/api/scans"})
OPEN_ROOMS = ("/static/", "/api/agents/")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
TOKEN_HEADER = "x-csrf-token"  # noqa: S105 - the header's name


class Guard:
    """ASGI middleware. Where it lets a person's request pass, `request.state.who` is set (see `Login.who`)."""

    def __init__(self, app: ASGIApp, login: Login, catalogue: Catalogue, *, open_metrics: bool = False) -> None:
        self._app = app
        self._open = OPEN | {"/metrics"} if open_metrics else OPEN
        self._login = login
        self._catalogue = catalogue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        path = request.scope["path"]  # as the routes see it
        if path in self._open or path.startswith(OPEN_ROOMS):
            return None
        if (token := bearer(request)) is not None and (path.startswith("/api/") or path == "/metrics"):
            # No page elsewhere can send this header: it would have to ask first, and nobody answers.
            known = await asyncio.to_thread(self._catalogue.agent_with, token)
            if known is not None or not self._login.required:
                return None
            return refused(request, 401, "this is not the token of an agent; see PHAZE_AGENT_TOKEN")
        try:
            who = self._login.who(request)
        except TooManyFailures as error:
            return too_many(request, error)
        if who is None:
            return _stranger(request)
        if request.method not in SAFE and not self._login.accepts(who, request.headers.get(TOKEN_HEADER, "")):
            return refused(request, 403, f"a change needs the page's token in {TOKEN_HEADER}; load the page again")
        request.state.who = who
        return None


def bearer(request: Request) -> str | None:
    """The token of `Authorization: Bearer TOKEN`."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _stranger(request: Request) -> Response:
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        raw, query = request.scope.get("raw_path", b"/"), request.scope["query_string"]
        here = (raw + b"?" + query if query else raw).decode("latin-1")
        return RedirectResponse(f"/login?next={quote(here, safe='')}", 303, {"cache-control": "no-store"})
    return refused(request, 401, "log in at /login, or send the hub's user and password (HTTP Basic)")


def too_many(request: Request, error: TooManyFailures) -> Response:
    """429, with the seconds to wait."""
    wait = math.ceil(error.wait)
    message = f"too many wrong passwords came from your address; try again in {wait} s"
    return refused(request, 429, message, {"retry-after": str(wait)})


def refused(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """The message, as JSON for what asks for data."""
    if "/api/" in request.scope["path"]:
        return JSONResponse({"error": message}, status, headers)
    return PlainTextResponse(f"{message}\n", status, headers)
