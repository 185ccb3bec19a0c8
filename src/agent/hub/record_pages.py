"""The page of one record: what its stages have recorded, and what they do now, as they do it (record.js)."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent.hub.services import Services
from agent.hub.templating import templates
from agent.hub.track_row import printable
from agent.phoenix.outbox import is_name

SHOWN = 100
"""Records on the list of the last ones."""


def as_path(record_id: str) -> str:
    """A record's id as one part of an address."""
    return quote(record_id, safe="", errors="replace")


def printed(text: str) -> str:
    """An agent's words without what cannot be printed."""
    return printable(text) or ""


templates.env.filters |= {"as_path": as_path, "printed": printed}


async def record(request: Request) -> Response:
    """GET /records/ID, or /records?id=ID."""
    record_id = request.path_params.get("record_id") or request.query_params.get("id", "").strip()
    services: Services = request.app.state.services
    context: dict[str, Any] = {"record_id": record_id}
    if not record_id:
        context["latest"] = await asyncio.to_thread(services.catalogue.latest_records, SHOWN)
    elif is_name(record_id):
        context["stages"] = await asyncio.to_thread(services.catalogue.record_stages, record_id)
    else:
        raise HTTPException(404, "that cannot be a record")
    return templates.TemplateResponse(request, "records.html", context)


routes = [Route("/records", record), Route("/records/{record_id:path}", record)]
