"""The queues as the hub tells of them: JSON for tools, and Prometheus' page.

Depth is counted here and nowhere else: a worker would count the queue that it shares with others once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.hub import overview
from agent.hub.services import Services
from agent.lanes import AGENT_TASKS
from agent.phoenix import keys
from agent.phoenix.breaker import Breakers, Circuit
from agent.phoenix.letters import places
from agent.phoenix.outbox import outbox_key
from agent.phoenix.scripts import Scripts
from agent.queue_activity import QueueActivity, get_queue_activity
from agent.redis_trouble import trouble
from agent.throttle import OncePer

COLLECT = 10.0
"""Seconds for all that one scrape asks of the server."""

log = structlog.get_logger()
_complain = OncePer(60.0)

STATES = ("queued", "active", "scheduled", "parked")
CIRCUIT_STATES = ("closed", "half_open", "open")


async def queues(request: Request) -> JSONResponse:
    """GET /api/queues -> {"queues": [...], "total": {...}}: see QueueActivity; one that fails says so in its row."""
    redis, agents = await _asked(request)
    rows = await get_queue_activity(redis, agents)
    total = {state: sum(getattr(row, state) for row in rows) for state in STATES}
    body = {"queues": [asdict(row) for row in rows], "total": total}
    return JSONResponse(body, headers={"cache-control": "no-store"})


async def metrics(request: Request) -> Response:
    """GET /metrics: what waits, in Prometheus' words."""
    redis, agents = await _asked(request)
    try:
        async with asyncio.timeout(COLLECT):
            found = await _look(redis, agents)
    except (RedisError, OSError, TimeoutError) as error:
        if _complain():
            said = trouble(error)
            log.warning("metrics.queues_not_counted", error=said.said, remedy=said.remedy)
        found = Found([], [], {}, {}, {}, up=False)
    found = replace(found, agents=await overview.agents(request.app.state.services))
    registry = CollectorRegistry()
    registry.register(found)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _asked(request: Request) -> tuple[Redis, Sequence[str]]:
    services: Services = request.app.state.services
    if services.redis is None:
        raise HTTPException(503, "this hub has no queue server; set PHAZE_REDIS_URL")
    return services.redis, await asyncio.to_thread(services.catalogue.agents)


@dataclass(frozen=True)
class Backlog:
    """What waits on a service's stream. `pending`: None where the server does not tell (its user may not ask, or no
    bridge has been there); `oldest` in seconds, 0 where there is nothing."""

    task: str
    entries: int
    pending: int | None
    oldest: float


@dataclass(frozen=True, eq=False)
class Found:
    """What one scrape found; a collector of its own registry."""

    rows: Sequence[QueueActivity]
    circuits: Sequence[Circuit]
    dead_letters: dict[str, int]
    quarantined: dict[str, int]
    outboxes: dict[tuple[str, str], int]
    streams: Sequence[Backlog] = ()
    up: bool = True
    agents: Sequence[overview.Agent] = ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families, in the order of the page."""
        yield _family("phaze_queue_server_up", "Whether the queue server answered", (), [((), float(self.up))])
        yield _family("phaze_agent_heartbeat_age_seconds", "How long ago the agent was heard of", ("agent",), [
            ((agent.id,), agent.age) for agent in self.agents if agent.age is not None
        ])  # fmt: skip
        yield _family("phaze_agent_rival_workers", "Workers that beat for it though only one may", ("agent",), [
            ((agent.id,), len(agent.beating)) for agent in self.agents
        ])  # fmt: skip
        names = ("agent", "lane")
        yield _family("phaze_queue_jobs", "Jobs by where they are", (*names, "state"), [
            ((*_of(row), state), getattr(row, state)) for row in self.rows if row.error is None for state in STATES
        ])  # fmt: skip
        yield _family("phaze_queue_oldest_seconds", "How long the next job in line has waited", names, [
            (_of(row), row.oldest or 0.0) for row in self.rows if row.error is None
        ])  # fmt: skip
        yield _family("phaze_queue_workers", "Workers that consume the queue", names, [
            (_of(row), row.workers) for row in self.rows if row.error is None
        ])  # fmt: skip
        yield _family("phaze_queue_paused", "Whether the lane, or a task of it, is paused", names, [
            (_of(row), float(row.paused)) for row in self.rows
        ])  # fmt: skip
        yield _family("phaze_queue_error", "Whether the queue's counts could not be told", names, [
            (_of(row), float(row.error is not None)) for row in self.rows
        ])  # fmt: skip
        yield _family("phaze_outbox_entries", "Results that wait for the control plane", names,
                      self.outboxes.items())  # fmt: skip
        yield _family("phaze_stream_entries", "Entries of a service's stream that are not over", ("task",), [
            ((one.task,), one.entries) for one in self.streams
        ])  # fmt: skip
        yield _family("phaze_stream_pending_entries", "Those of them that a bridge has taken", ("task",), [
            ((one.task,), one.pending) for one in self.streams if one.pending is not None
        ])  # fmt: skip
        yield _family("phaze_stream_oldest_seconds", "How old the oldest of them is", ("task",), [
            ((one.task,), one.oldest) for one in self.streams
        ])  # fmt: skip
        yield _family("phaze_circuit_state", "1 for the state that a circuit is in", ("circuit", "state"), [
            ((circuit.name, state), float(_state(circuit) == state))
            for circuit in self.circuits for state in CIRCUIT_STATES
        ])  # fmt: skip
        yield _family("phaze_circuit_parked_jobs", "Jobs that wait for a circuit", ("circuit",), [
            ((circuit.name,), circuit.parked) for circuit in self.circuits
        ])  # fmt: skip
        yield _family("phaze_dead_letters", "Dead letters that nobody has dealt with", ("task",), [
            ((task,), count) for task, count in self.dead_letters.items()
        ])  # fmt: skip
        yield _family("phaze_quarantined_jobs", "Quarantined jobs that nobody has dealt with", ("task",), [
            ((task,), count) for task, count in self.quarantined.items()
        ])  # fmt: skip


async def _look(redis: Redis, agents: Sequence[str]) -> Found:
    rows = await get_queue_activity(redis, agents)
    circuits = await Breakers(Scripts(redis), redis).all()
    tasks = await places(redis, AGENT_TASKS)
    async with redis.pipeline(transaction=False) as pipe:
        for task in tasks:
            pipe.llen(keys.dead_letters_key(task))
            pipe.llen(keys.quarantine_key(task))
        for row in rows:
            pipe.xlen(outbox_key(row.queue))
        counts = await pipe.execute(raise_on_error=False)
    numbers = [count if isinstance(count, int) else 0 for count in counts]
    letters = numbers[: 2 * len(tasks)]
    return Found(
        rows,
        circuits,
        dict(zip(tasks, letters[::2], strict=True)),
        dict(zip(tasks, letters[1::2], strict=True)),
        dict(zip(map(_of, rows), numbers[len(letters) :], strict=True)),
        await _streams(redis),
    )


async def _streams(redis: Redis) -> list[Backlog]:
    """Of the services of the hub's own table that anybody has ever asked for something by a stream."""
    async with redis.pipeline(transaction=False) as pipe:
        for task in AGENT_TASKS:
            name = keys.stream_key(task)
            pipe.xlen(name)
            pipe.xrange(name, count=1)
            pipe.xpending(name, keys.group_name(task))
        pipe.time()
        *answers, now = await pipe.execute(raise_on_error=False)
    found = []
    for task, entries, first, pending in zip(AGENT_TASKS, answers[::3], answers[1::3], answers[2::3], strict=True):
        told = pending["pending"] if isinstance(pending, dict) else None
        if not isinstance(entries, int) or (entries == 0 and told is None):
            continue  # nothing was ever written there, or something else has that name
        written = int(first[0][0].partition(b"-")[0]) / 1000 if first else now[0]
        found.append(Backlog(task, entries, told, max(0.0, now[0] - written)))
    return found


def _family(
    name: str, said: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, said, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _of(row: QueueActivity) -> tuple[str, str]:
    return row.agent_id, row.lane or "base"


def _state(circuit: Circuit) -> str:
    return circuit.state if circuit.forced == "none" else circuit.forced


routes = [Route("/api/queues", queues), Route("/metrics", metrics)]
