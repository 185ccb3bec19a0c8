"""The page of duplicates, where one looks and listens, and the same as JSON. It deletes nothing."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.hub.listening import audio
from agent.hub.pages import page_number
from agent.hub.services import Services
from agent.hub.templating import templates

PER_PAGE = 50
"""Groups, and pairs, on a page."""

REASONS = {
    "whole": "the others break off early",
    "lossless": "lossless",
    "longest": "the longest",
    "bit rate": "the highest bit rate",
    "equal": "all are equally good",
}


def size(count: float) -> str:
    """Bytes as people read them: `4.2 MB`."""
    units = ("kB", "MB", "GB", "TB")
    power = min(sum(count >= 1000 ** (n + 1) for n in range(len(units))), len(units))
    return f"{count / 1000**power:.{power > 1:d}f} {units[power - 1]}" if power else f"{count:.0f} B"


templates.env.filters |= {"size": size}


def _read(services: Services, page: int) -> dict[str, Any]:
    catalogue, first = services.catalogue, (page - 1) * PER_PAGE
    duplicates = catalogue.duplicates
    groups, pairs = len(set(duplicates.labels.values())), len(duplicates.relatives)
    return {
        "groups": catalogue.groups(PER_PAGE, first),
        "pairs": catalogue.relatives(PER_PAGE, first),
        "total": groups,
        "total_pairs": pairs,
        "page": page,
        "pages": max(1, math.ceil(max(groups, pairs) / PER_PAGE)),
        "reasons": REASONS,
    }


async def duplicates(request: Request) -> Response:
    """GET /duplicates?page=1."""
    services: Services = request.app.state.services
    page = page_number(request)
    context = await asyncio.to_thread(_read, services, page)
    return templates.TemplateResponse(request, "duplicates.html", context)


async def as_json(request: Request) -> JSONResponse:
    """GET /api/duplicates?page=1 -> {"total", "total_pairs", "pages", "groups": [...], "pairs": [...]}."""
    services: Services = request.app.state.services
    found = await asyncio.to_thread(_read, services, page_number(request))
    shown = {name: found[name] for name in ("total", "total_pairs", "page", "pages")}
    lists = {name: [item.as_json() for item in found[name]] for name in ("groups", "pairs")}
    return JSONResponse({**shown, **lists})


routes = [
    Route("/duplicates", duplicates),
    Route("/api/duplicates", as_json),
    Route("/files/{file_id}/audio", audio),
]
