"""Agents and queues at one look: who is alive, what waits and runs where, and what somebody should look at."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.display import duration_text, plural
from agent.hub.beats import State, state_of
from agent.hub.services import Services
from agent.hub.templating import templates
from agent.queue_activity import QueueActivity, get_queue_activity

LOOK = 8.0
"""Seconds for all queues to be told; each has its own, shorter bound."""

TOLD = ("hostname", "agent_version", "lane", "worker_pid", "queue_depth", "started_at")
"""What is shown of a beat."""

NO_STORE = {"cache-control": "no-store"}


@dataclass(frozen=True)
class Agent:
    """An agent; `beat` is what its last heartbeat said, `age` how many seconds ago."""

    id: str
    state: State
    revoked: bool
    age: float | None
    beat: dict[str, str | float | None]
    beating: list[str]
    """The workers that beat for it at the same time, where there are several: only one should."""


@dataclass(frozen=True)
class Overview:
    """What the page shows of agents and queues."""

    agents: list[Agent]
    rows: list[QueueActivity]
    problem: str = ""
    """Why no queue could be looked at."""

    @property
    def wants_a_look(self) -> bool:
        """Whether something is wrong that a person should know of."""
        ill = any(agent.beating or (agent.state in ("stale", "dead") and not agent.revoked) for agent in self.agents)
        return bool(self.problem) or ill or any(row.error or row.remark for row in self.rows)

    @property
    def summary(self) -> str:
        """`2 agents, 1 alive; 12 queued, 3 active`."""
        alive = sum(agent.state == "alive" for agent in self.agents)
        numbers = [f"{sum(getattr(row, name) for row in self.rows):,} {name}" for name in ("queued", "active")]
        return f"{plural(len(self.agents), 'agent')}, {alive} alive; {', '.join(numbers)}"


async def overview(services: Services) -> Overview:
    """Look. A queue that fails spoils only its own row."""
    found = await agents(services)
    if services.redis is None:
        return Overview(found, [], "This hub has no queue server.")
    try:
        async with asyncio.timeout(LOOK):
            rows = await get_queue_activity(services.redis, [agent.id for agent in found])
    except TimeoutError:
        return Overview(found, [], "The queue server does not answer.")
    gone = {agent.id for agent in found if agent.revoked}
    return Overview(found, [row for row in rows if _is_shown(row, row.agent_id in gone)])


async def agents(services: Services) -> list[Agent]:
    """All agents that were ever let in."""
    known, now = await asyncio.to_thread(services.catalogue.known_agents), time.time()
    return [
        Agent(
            one.id,
            state_of(one.last_beat_at, now),
            one.revoked,
            None if one.last_beat_at is None else max(0.0, now - one.last_beat_at),
            {name: _plain(one.beat.get(name)) for name in TOLD},
            services.beats.rivals(one.id),
        )
        for one in known
    ]


def _plain(value: Any) -> str | float | None:
    """A beat is whatever JSON an agent sends: text of a bearable length that can be written, or a number."""
    if value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
        return value
    return str(value)[:200].encode("utf-8", "replace").decode()


def _is_shown(row: QueueActivity, revoked: bool) -> bool:
    """A queue of an agent that is let in no longer, only while there is something about it."""
    return row.is_used and (not revoked or bool(row.unsettled or row.workers or row.error))


def age_text(agent: Agent) -> str:
    """`12 s ago`; empty for one that has never beaten."""
    return "" if agent.age is None else f"{duration_text(agent.age)} ago"


async def agents_json(request: Request) -> JSONResponse:
    """GET /api/agents -> {"agents": [{"id", "state", "revoked", "age", "beat", "beating"}]}: see Agent."""
    found = await agents(request.app.state.services)
    return JSONResponse({"agents": [asdict(agent) for agent in found]}, headers=NO_STORE)


async def fragment(request: Request) -> Response:
    """GET /overview: the part of the page that shows it, as hub.js puts it there anew."""
    context = {"overview": await overview(request.app.state.services)}
    return templates.TemplateResponse(request, "_overview.html", context, headers=NO_STORE)


templates.env.filters |= {"age_text": age_text, "duration_text": duration_text}

routes = [Route("/api/agents", agents_json), Route("/overview", fragment)]
