"""The page of sets with their tracklists, and the same as JSON."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.hub.pages import page_number
from agent.hub.services import Services
from agent.hub.templating import templates
from agent.hub.track_row import number, printable

PER_PAGE = 20
"""Sets on a page."""


def rows_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The tracks of a tracklist and its gaps, in order, as the page shows them, an agent's words cleaned. Seconds."""
    shown = [
        {
            **{name: number(row.get(name)) for name in ("start", "end", "confidence", "tempo")},
            **{name: printable(row.get(name)) for name in ("artist", "title", "source")},
            "gap": kind == "gaps",
        }
        for kind in ("tracks", "gaps")
        if isinstance(rows := result.get(kind), list)
        for row in rows
        if isinstance(row, dict)
    ]
    return sorted(shown, key=lambda row: row["start"] or 0.0)


templates.env.globals |= {"rows_of": rows_of}


def _read(services: Services, page: int) -> dict[str, Any]:
    found, waiting = services.catalogue.count_live_sets()
    return {
        "sets": services.catalogue.live_sets(PER_PAGE, (page - 1) * PER_PAGE),
        "total": found,
        "waiting": waiting,
        "page": page,
        "pages": max(1, math.ceil(found / PER_PAGE)),
    }


async def sets(request: Request) -> Response:
    """GET /sets?page=1."""
    services: Services = request.app.state.services
    context = await asyncio.to_thread(_read, services, page_number(request))
    return templates.TemplateResponse(request, "sets.html", context)


async def as_json(request: Request) -> JSONResponse:
    """GET /api/sets?page=1 -> {"total", "waiting", "page", "pages", "sets": [...]}."""
    services: Services = request.app.state.services
    found = await asyncio.to_thread(_read, services, page_number(request))
    return JSONResponse({**found, "sets": [one.as_json() for one in found["sets"]]})


routes = [Route("/sets", sets), Route("/api/sets", as_json)]
