"""The page of what calls to models came to, and the same as JSON."""

from __future__ import annotations

import asyncio
import datetime
import math
from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.hub.pages import page_number
from agent.hub.services import Services
from agent.hub.templating import templates
from agent.hub.usage import Usage
from agent.phoenix.keys import HASHED, user_name

PER_PAGE = 500
"""Users, or records, on a page."""

LONGEST_USER = 20_000
"""Characters of an id that is looked for."""


def day(moment: float) -> str:
    """`2026-11-30 22:15`, in UTC; empty for what is no date."""
    try:
        return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return ""


templates.env.filters |= {"day": day}


def _read(services: Services, user: str | None, since: float, page: int) -> dict[str, Any]:
    name = user if user is None or user.startswith(HASHED) else user_name(user)  # a long one as our own list shows it
    by = ("user",) if name is None else ("service", "record_id")
    chosen: dict[str, Any] = {"user": name, "since": since}
    rows = services.catalogue.usage(by=by, **chosen, limit=PER_PAGE, offset=(page - 1) * PER_PAGE)
    return {
        "user": user,
        "since": since,
        "page": page,
        "more": len(rows) == PER_PAGE,
        "total": next(iter(services.catalogue.usage(by=(), **chosen)), None),
        "models": services.catalogue.usage(by=("model",), **chosen, limit=PER_PAGE),
        "rows": rows,
    }


async def _found(request: Request) -> dict[str, Any]:
    given = request.query_params
    try:
        since = float(given.get("since") or 0)
    except ValueError:
        since = math.nan
    if not math.isfinite(since):
        raise HTTPException(400, "since must be Unix seconds")
    user = given.get("user")
    if user is not None and len(user) > LONGEST_USER:
        raise HTTPException(400, f"user must be {LONGEST_USER:,} characters at most")
    return await asyncio.to_thread(_read, request.app.state.services, user, since, page_number(request))


async def page(request: Request) -> Response:
    """GET /usage?user=&since=&page=."""
    return templates.TemplateResponse(request, "usage.html", await _found(request))


async def as_json(request: Request) -> JSONResponse:
    """GET /api/usage?user=&since=&page= -> {"total", "models", "users"}; with `user` "records" instead of "users".

    Each row has prompt_tokens, completion_tokens, calls, runs, records, first and last. `since`: Unix seconds.
    """
    found = await _found(request)
    rows: list[Usage] = found["rows"]
    names = ("user",) if found["user"] is None else ("service", "record_id")
    return JSONResponse({
        "total": _shown(found["total"], ()),
        "models": [_shown(row, ("model",)) for row in found["models"]],
        "users" if found["user"] is None else "records": [_shown(row, names) for row in rows],
        "more": found["more"],
    })  # fmt: skip


def _shown(row: Usage | None, names: tuple[str, ...]) -> dict[str, Any]:
    if row is None:
        return {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0, "runs": 0, "records": 0}
    left_out = {"user", "service", "record_id", "model"} - set(names)
    return {name: value for name, value in asdict(row).items() if name not in left_out}


routes = [Route("/usage", page), Route("/api/usage", as_json)]
