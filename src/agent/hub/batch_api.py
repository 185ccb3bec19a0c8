"""Approved batches by HTTP: ask for one, undo one (both with the agent's own token), and look at them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agent.hub.agent_api import admit, json_body
from agent.hub.batches import Batch, BatchRefused
from agent.hub.services import Services

SHOWN = 100
"""Batches that the list shows."""


async def ask(request: Request) -> JSONResponse:
    """POST {"agent_id", "proposals", "roots"?, "dry_run"?} -> {"batch": id or null, "payload"}."""
    return await _take(request, None)


async def undo(request: Request) -> JSONResponse:
    """POST {"agent_id", "dry_run"?} -> the same; the batch takes back what another has done."""
    return await _take(request, request.path_params["batch_id"])


async def _take(request: Request, undoes: str | None) -> JSONResponse:
    body = await json_body(request)
    agent_id = body.get("agent_id")
    if not isinstance(agent_id, str):
        raise HTTPException(400, "agent_id must name the agent whose files they are")
    services = await admit(request, agent_id)
    dry_run = bool(body.get("dry_run"))
    try:
        batch_id, payload = await asyncio.to_thread(
            services.catalogue.request_batch, agent_id, body, undoes=undoes, dry_run=dry_run
        )
    except BatchRefused as error:
        raise HTTPException(400, str(error)) from None
    if not dry_run:
        services.activity.invalidate()
        services.poke()
    return JSONResponse({"batch": batch_id, "payload": payload.model_dump(mode="json")})


async def listed(request: Request) -> JSONResponse:
    """GET -> {"batches": [...]}: the last hundred, the newest first, without their proposals."""
    services: Services = request.app.state.services
    found = await asyncio.to_thread(services.catalogue.batches, SHOWN)
    return JSONResponse({"batches": [summary(batch) for batch in found]})


async def shown(request: Request) -> JSONResponse:
    """GET -> one batch with what became of each proposal."""
    services: Services = request.app.state.services
    batch = await asyncio.to_thread(services.catalogue.batch, request.path_params["batch_id"])
    if batch is None:
        raise HTTPException(404, "there is no such batch")
    return JSONResponse({**summary(batch), "details": [item.model_dump(mode="json") for item in batch.details]})


def summary(batch: Batch) -> dict[str, Any]:
    """A batch without its items."""
    document = asdict(batch)
    document.pop("details")
    document["proposals"] = len(document.pop("payload").proposals)
    document["done"] = sum(item.outcome == "done" for item in batch.details)
    return document


routes = [
    Route("/api/batches", ask, methods=["POST"]),
    Route("/api/batches", listed),
    Route("/api/batches/{batch_id}", shown),
    Route("/api/batches/{batch_id}/undo", undo, methods=["POST"]),
]
