"""What people and their tools see: the tracks as a page and as JSON, and what the lanes are doing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from agent.hub.activity import UnknownAgent
from agent.hub.file_tasks import ANALYSIS, FINGERPRINT, INGEST, METADATA, OUTCOMES
from agent.hub.login import Login
from agent.hub.overview import overview
from agent.hub.services import Services
from agent.hub.templating import templates
from agent.hub.tracks import BadFilter, TrackFilter

HERE = Path(__file__).parent
PER_PAGE = 1_000
MAX_ROWS = 10_000
"""Rows of one JSON answer."""

MAX_QUERY = 200
"""Characters of one filter."""

SOON = 3.0
"""Seconds under which a job is over before anybody has read its name."""

MOST_NOW = 8
"""Running jobs that are named."""

COLUMNS = (
    ("artist", "Artist", "text"),
    ("title", "Title", "text"),
    ("duration", "Length", "number"),
    ("bpm", "BPM", "number"),
    ("key", "Key", "number"),
    ("loudness", "LUFS", "number"),
    ("danceability", "Dance", "number"),
    ("duplicates", "Dup", "number"),
)
"""(name to sort by, heading, how it sorts)."""

TASK_NAMES = {METADATA: "tags", FINGERPRINT: "fingerprint", ANALYSIS: "analysis", INGEST: "engine"}


def length(seconds: float | None) -> str:
    """`3:07`, `1:02:03`; empty if unknown."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    minutes = f"{whole // 60 % 60:02d}:{whole % 60:02d}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{minutes}" if whole >= 3600 else minutes


def decimal(value: float | None, places: int = 1) -> str:
    """A rounded number; empty if unknown."""
    return "" if value is None else f"{value:.{places}f}"


def settled_in(lane: Mapping[str, int]) -> int:
    """A lane's settled jobs, whatever their outcome."""
    return sum(lane[outcome] for outcome in OUTCOMES)


def state_of(status: Mapping[str, Any]) -> str:
    """The whole in a few words; hub.js says the same."""
    if status["queue"] != "ok":
        return "The queue server cannot be reached"
    if status["held"] and status["settled_or_retrying"]:
        return f"Held: {', '.join(status['held'])}"
    if status["scans"]["open"]:
        return "Looking through folders"
    if status["idle"]:
        return "All done"
    return "Waiting to try some files again" if status["settled_or_retrying"] else "Working"


def running(status: Mapping[str, Any]) -> dict[str, Any]:
    """`shown`: what runs long enough to be read, the oldest first; `more`: how many else do. hub.js says the same."""
    found = [job for job in status["active"] if job["note"] or job["seconds"] >= SOON]
    found.sort(key=lambda job: (job["since"] or 0.0, job["key"]))
    return {"shown": found[:MOST_NOW], "more": len(found) - len(found[:MOST_NOW])}


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2] or path


def wheel(camelot: str | None) -> int | str:
    """A Camelot code as a number that sorts round the wheel; empty if unknown."""
    if not camelot or not camelot[:-1].isdecimal():
        return ""
    return int(camelot[:-1]) * 2 + (camelot[-1] == "B")


templates.env.filters |= {
    "length": length,
    "decimal": decimal,
    "wheel": wheel,
    "settled": settled_in,
    "name_of": name_of,
}
templates.env.globals |= {"columns": COLUMNS, "task_names": TASK_NAMES}


@dataclass(frozen=True)
class Query:
    """A page's address: what was typed into the filters, the order, the page."""

    q: str = ""
    bpm: str = ""
    key: str = ""
    problems: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def of(cls, request: Request) -> Query:
        """Read from a request's query string; what is too long to be meant is cut."""
        typed = {
            name: request.query_params.get(name, "")[:MAX_QUERY] for name in ("q", "bpm", "key", "problems", "sort")
        }
        return cls(**typed, page=page_number(request))

    def filter(self) -> TrackFilter:
        """Raises BadFilter."""
        return TrackFilter.parse(bpm=self.bpm, key=self.key, text=self.q, problems=bool(self.problems))

    def link(self, **changes: Any) -> str:
        """The same address with some changes; a new order starts at its first page."""
        values = {**self.__dict__, "page": 1, **changes}
        kept = {name: value for name, value in values.items() if value and (name, value) != ("page", 1)}
        return f"?{urlencode(kept, errors='replace')}" if kept else "?"

    def sorted_by(self, column: str) -> str:
        """The address with this column's order; asked again, turned round."""
        return self.link(sort=f"-{column}" if (self.sort or "artist") == column else column)

    def direction(self, column: str) -> str:
        """For aria-sort."""
        sort = self.sort or "artist"
        return {column: "ascending", f"-{column}": "descending"}.get(sort, "none")


async def index(request: Request) -> Response:
    """GET /: the tracks. Filters and order live in the address and work without scripts."""
    services: Services = request.app.state.services
    query, problem = Query.of(request), ""
    try:
        chosen, sort = query.filter(), query.sort
        total, found = await asyncio.to_thread(_find, services, chosen, sort, PER_PAGE, (query.page - 1) * PER_PAGE)
    except BadFilter as error:
        problem, total, found = str(error), 0, []
    now, found_out = await asyncio.gather(services.activity.status(), overview(services))
    scans = await asyncio.to_thread(services.catalogue.last_scans)
    login: Login = request.app.state.login
    context = {
        "overview": found_out,
        "csrf_token": login.token(request.state.who) if login.required else "",
        "query": query,
        "problem": problem,
        "tracks": found,
        "unread": [line for scan in scans for line in scan.unread],
        "total": total,
        "pages": max(1, math.ceil(total / PER_PAGE)),
        "status": now,
        "state": state_of(now),
        "now": running(now),
        "settled": now["files"] + sum(settled_in(lane) for lane in now["lanes"].values()),
    }
    return templates.TemplateResponse(request, "index.html", context, status_code=400 if problem else 200)


async def tracks(request: Request) -> JSONResponse:
    """GET /api/tracks?bpm=120..128&key=8A&q=words&problems=1&sort=-bpm&limit=&offset= -> {"total", "tracks"}."""
    services: Services = request.app.state.services
    limit = _whole(request.query_params.get("limit", str(PER_PAGE)), 1, MAX_ROWS)
    offset = _whole(request.query_params.get("offset", "0"), 0, 2**31)
    query = Query.of(request)
    try:
        total, found = await asyncio.to_thread(_find, services, query.filter(), query.sort, limit, offset)
    except BadFilter as error:
        raise HTTPException(400, str(error)) from None
    return JSONResponse({"total": total, "tracks": [track.as_json() for track in found]})


def _find(services: Services, chosen: TrackFilter, sort: str, limit: int, offset: int) -> tuple[int, list[Any]]:
    found = services.catalogue.tracks(chosen, sort=sort, limit=limit, offset=offset)
    return services.catalogue.count_tracks(chosen), found


async def results(request: Request) -> JSONResponse:
    """GET /api/results?task=NAME&record_id=ID&limit=&offset= -> {"results"}: what is recorded of any task.

    `task` must be given; without `record_id` all of its records, in the order of their ids.
    """
    services: Services = request.app.state.services
    given = request.query_params
    if not (task := given.get("task")):
        raise HTTPException(400, "name a task: /api/results?task=NAME")
    limit, offset = _whole(given.get("limit", str(PER_PAGE)), 1, MAX_ROWS), _whole(given.get("offset", "0"), 0, 2**31)
    found = await asyncio.to_thread(
        services.catalogue.results, task, given.get("record_id"), limit=limit, offset=offset
    )
    return JSONResponse({"results": found})


async def status(request: Request) -> JSONResponse:
    """GET /api/status: see `Activity.status`; with ?agent=ID of that agent only."""
    services: Services = request.app.state.services
    try:
        found = await services.activity.status(request.query_params.get("agent"))
    except UnknownAgent as error:
        raise HTTPException(404, str(error)) from None
    return JSONResponse(found, headers={"cache-control": "no-store"})


async def health(_request: Request) -> JSONResponse:
    """GET /health -> {"status": "ok"}: the process answers."""
    return JSONResponse({"status": "ok"})


def page_number(request: Request) -> int:
    """`?page=` of an address; 1 for what is no number."""
    return _whole(request.query_params.get("page", "1"), 1, 1_000_000)


def _whole(text: str, low: int, high: int) -> int:
    digits = text if text.isascii() and text.isdecimal() and len(text) < 12 else str(low)
    return min(max(int(digits), low), high)


routes = [
    Route("/", index),
    Route("/api/tracks", tracks),
    Route("/api/results", results),
    Route("/api/status", status),
    Route("/health", health),
    Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
]
