"""What agents say to the hub: results, heartbeats, and what they ask it for. Each with the agent's token."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agent.hub.index import IndexUnavailable
from agent.hub.limits import read_body
from agent.hub.problems import first_problem
from agent.hub.scans import Asked, ScanRefused, Wish
from agent.hub.services import Services
from agent.hub.signing import SigningRefused
from agent.phoenix.outbox import Entry, is_name
from pipelines.files.s3_signer import Wanted
from pipelines.music.prints import decode_items

MAX_BEAT = 16 * 2**10
"""Bytes of a heartbeat."""

MAX_ENTRIES = 5_000
MAX_ROOTS = 1_000


class _Question(BaseModel):
    files: list[Asked] = Field(max_length=MAX_ENTRIES)


async def results(request: Request) -> JSONResponse:
    """POST {"entries": [Entry, ...]} -> {"refused": [{"index", "reason"}, ...]}; all others are recorded, durably.

    503: the catalogue cannot write now. Nothing was recorded; send the same again.
    """
    agent_id = request.path_params["agent_id"]
    services = await admit(request, agent_id)
    body = await json_body(request)
    documents = body.get("entries")
    if not isinstance(documents, list) or len(documents) > MAX_ENTRIES:
        raise HTTPException(400, f'the body must be {{"entries": [...]}} with {MAX_ENTRIES} entries at most')
    refused, entries, places = [], [], []
    for index, document in enumerate(documents):
        try:
            entries.append(Entry.model_validate(document))
            places.append(index)
        except ValidationError as error:
            refused.append({"index": index, "reason": first_problem(error)})
    answers = await asyncio.to_thread(services.catalogue.record, agent_id, entries) if entries else []
    for index, answer in zip(places, answers, strict=True):
        if answer is not None:
            refused.append({"index": index, "reason": answer.reason})
    services.poke()
    return JSONResponse({"refused": sorted(refused, key=lambda refusal: int(refusal["index"]))})


async def heartbeat(request: Request) -> JSONResponse:
    """POST any JSON object of 16 KB at most -> {"status": "ok"}; the last one is kept."""
    agent_id = request.path_params["agent_id"]
    services = await admit(request, agent_id)
    beat = await json_body(request, MAX_BEAT)
    services.beats.note(agent_id, beat)
    await asyncio.to_thread(services.catalogue.beat, agent_id, beat)
    return JSONResponse({"status": "ok"})


async def scans(request: Request) -> JSONResponse:
    """POST {"agent_id", "roots": [percent-encoded absolute path, ...]} -> {"scans": [id, ...]}, one for each root.

    "reread": true reads also what is known as it is. "fresh": true takes no scan for it that may have begun before. For
    one root, "paths" are what to look at in it, and "absent" what to look at if the catalogue has something there.
    """
    body = await json_body(request)
    agent_id, roots = body.get("agent_id"), body.get("roots")
    if not isinstance(agent_id, str) or not is_name(agent_id):
        raise HTTPException(400, "agent_id must name the agent that scans")
    services = await admit(request, agent_id)
    if (
        not isinstance(roots, list)
        or not all(isinstance(root, str) for root in roots)
        or not 0 < len(roots) <= MAX_ROOTS
    ):
        raise HTTPException(400, f"roots must be a list of 1 to {MAX_ROOTS} percent-encoded absolute paths")
    asked = {name: body[name] for name in ("reread", "fresh", "paths", "absent") if name in body}
    if len(roots) > 1 and ("paths" in asked or "absent" in asked):
        raise HTTPException(400, "paths are of one root")
    try:
        wishes = [Wish(root=root, **asked) for root in roots]
    except ValidationError as error:
        raise HTTPException(400, first_problem(error)) from None
    try:
        ids = await asyncio.to_thread(services.catalogue.request_scans, agent_id, wishes)
    except ScanRefused as error:
        raise HTTPException(400, str(error)) from None
    services.activity.invalidate()
    services.poke()
    return JSONResponse({"scans": ids})


async def known_files(request: Request) -> JSONResponse:
    """POST {"files": [[path, size, mtime_ns, ctime_ns], ...]} -> {"known": {path: sha256}}: those of the agent's files
    that are known just as they are (`pipelines.music.scan`)."""
    agent_id = request.path_params["agent_id"]
    services = await admit(request, agent_id)
    try:
        asked = _Question.model_validate(await json_body(request)).files
    except ValidationError as error:
        raise HTTPException(400, first_problem(error)) from None
    return JSONResponse({"known": await asyncio.to_thread(services.catalogue.unchanged, agent_id, asked)})


async def prints(request: Request) -> JSONResponse:
    """POST {"raw": a fingerprint, base64} -> {"heard": [{"file_id", "artist", "title", "path", "start", ...}, ...],
    "indexed", "waiting"}: where tracks of the library occur in it (`pipelines.music.live_set.Heard`), in order.

    503: the index cannot answer now; ask again later.
    """
    services = await admit(request, request.path_params["agent_id"])
    raw = (await json_body(request)).get("raw")
    try:
        if not isinstance(raw, str):
            raise ValueError
        decode_items(raw)
    except ValueError:
        raise HTTPException(400, "raw must be a fingerprint: base64 of little-endian uint32") from None
    try:
        answer = await services.index.find(raw)
    except IndexUnavailable as error:
        raise HTTPException(503, str(error), {"retry-after": "5"}) from None
    heard = await asyncio.to_thread(services.catalogue.named, answer["found"])
    return JSONResponse({"heard": heard, "indexed": answer["indexed"], "waiting": answer["waiting"]})


async def signatures(request: Request) -> JSONResponse:
    """POST {"record_id", "wanted": Wanted} -> Granted: one signed request for the object of that file.

    409: no object store is set. 404: not a file of that agent.
    """
    agent_id = request.path_params["agent_id"]
    services = await admit(request, agent_id)
    body = await json_body(request, MAX_BEAT)
    if services.signing is None:
        raise HTTPException(409, "no object store is set; give the hub PHAZE_S3_BUCKET and its credentials")
    try:
        wanted = Wanted.model_validate(body.get("wanted"))
    except ValidationError as error:
        raise HTTPException(400, f"wanted: {first_problem(error)}") from None
    try:
        granted = await services.signing.grant(services.catalogue, agent_id, str(body.get("record_id")), wanted)
    except SigningRefused as refusal:
        raise HTTPException(404, str(refusal)) from None
    return JSONResponse(granted.model_dump(), headers={"cache-control": "no-store"})


async def admit(request: Request, agent_id: str) -> Services:
    """The hub's parts, for an agent that shows its own token. Raises HTTPException 401 or 403."""
    services: Services = request.app.state.services
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise HTTPException(
            401, "send the agent's token as `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"}
        )
    if not await asyncio.to_thread(services.catalogue.knows, agent_id, token.strip()):
        raise HTTPException(
            403,
            "this is not the token of that agent, or it is revoked; see PHAZE_AGENT_TOKEN and PHAZE_AGENT_ID "
            "(on the hub, `phaze agents rotate` gives a new one)",
        )
    return services


async def json_body(request: Request, *limit: int) -> dict[str, Any]:
    """The JSON object in the body. Raises HTTPException."""
    body = await read_body(request, *limit)
    try:
        found = await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body must be JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return found


routes = [
    Route("/api/agents/{agent_id}/results", results, methods=["POST"]),
    Route("/api/agents/{agent_id}/heartbeat", heartbeat, methods=["POST"]),
    Route("/api/agents/{agent_id}/known-files", known_files, methods=["POST"]),
    Route("/api/agents/{agent_id}/prints", prints, methods=["POST"]),
    Route("/api/agents/{agent_id}/signatures", signatures, methods=["POST"]),
    Route("/api/scans", scans, methods=["POST"]),
]
