"""A fleet to be hard on: Valkey, proxy, hub and worker processes, all real, and the account of what came out.

    producer --> Valkey <--proxy--> 3 workers --relay--> hub --> catalogue
                                       '--> trail: each body's start and end, one line each

The account compares four witnesses: the trail (which bodies ran), the catalogue and its deliveries (what was recorded),
the markers (which body's result was settled), and the queue (what is left).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from redis.asyncio import Redis
from redis.exceptions import RedisError
from saq.queue.redis import RedisQueue

from agent.hub import schema
from agent.hub.app import create_app
from agent.hub.catalogue import Catalogue, Refusal
from agent.hub.server import listen, url_of
from agent.lanes import job_key, queue_name
from agent.phoenix import keys
from agent.phoenix.outbox import Entry, outbox_key, refused_key
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from agent.settings import load_settings
from agent.valkey import Valkey
from pipelines import lifeline
from tests.chaos.proxy import Proxy
from tests.chaos.tasks import LANE, TASK
from tests.conftest import REPO

AGENT = "chaos"
TOKEN = "t0ken"
QUEUE = queue_name(AGENT, LANE)
WORKERS = 3
CHILD_EVERY = 25
"""One in so many jobs does its work in a child process."""


@dataclass(frozen=True)
class Times:
    """Seconds that a worker goes by."""

    lease: float = 2.0
    sweep: float = 0.5
    wedged: float = 60.0


class WatchedCatalogue(Catalogue):
    """The hub's catalogue, which also keeps every delivery that it took: record id -> tokens."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.taken: dict[str, set[int]] = defaultdict(set)
        self.deliveries = 0

    def record(self, agent_id: str, entries: Sequence[Entry]) -> list[Refusal | None]:
        answers = super().record(agent_id, entries)
        for entry, answer in zip(entries, answers, strict=True):
            self.deliveries += 1
            if answer is None:
                self.taken[entry.record_id].add(entry.token)
        return answers

    def recorded(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """record id -> (token, result)."""
        with self._database.read() as connection:
            rows = connection.execute(
                schema.results.select().where(schema.results.c.service == TASK, schema.results.c.agent_id == AGENT)
            )
            return {row.record_id: (row.token, json.loads(row.result)) for row in rows}


class Member:
    """One worker's place in the fleet: when its process dies it gets another, when told."""

    def __init__(self, log: Path, environment: dict[str, str], module: str = "tests.chaos.tasks") -> None:
        self.log = log
        self._environment = environment
        self._module = module
        self.starts = 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start its process; returns before it works."""
        self.starts += 1
        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *lifeline.command(sys.executable, "-m", self._module),
                env=self._environment,
                cwd=REPO,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int | None:
        """Of its process."""
        return self.process.pid if self.process is not None else None

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it and wait until it is gone."""
        self.send(number)
        assert self.process is not None
        await self.process.wait()

    @property
    def at_work(self) -> bool:
        """Whether the process that was started last has begun to work."""
        return self.log.exists() and self.log.read_bytes().count(b'"event":"worker.started"') == self.starts

    def events(self) -> list[dict[str, Any]]:
        """What it logged, over all its processes; what is no JSON comes as {"event": "?", ...}.

        Python's own resource tracker outlives a killed process and says what that left behind; this is no fault.
        """
        rows = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        rows = [row for row in rows if "resource_tracker" not in row and row.strip() != "warnings.warn("]
        return [json.loads(row) if row.startswith("{") else {"event": "?", "text": row} for row in rows]


@dataclass
class Figures:
    """What came of one run; `str()` is what is printed."""

    kind: str
    seconds: float
    jobs: int
    recorded: int
    lost: int
    takeovers: int
    duplicates: int
    stale: int
    lines: int
    """Log lines beyond one for each settled job."""
    deliveries: int
    """Entries that the hub was sent, again or for the first time."""
    drained: float
    """Seconds from the end of the chaos until everything was recorded and nothing was left."""
    blows: dict[str, int]

    def __str__(self) -> str:
        blows = ", ".join(f"{number} {name}" for name, number in self.blows.items())
        return (
            f"chaos {self.kind} ({self.seconds:.0f} s): {blows}; takeovers {self.takeovers}, duplicates started "
            f"{self.duplicates}, stale settles {self.stale}, recorded {self.recorded} of {self.jobs}, "
            f"lost {self.lost}, {self.deliveries} deliveries, quiet again after {self.drained:.1f} s, "
            f"{self.lines} log lines besides one a job"
        )


class Fleet:
    """`async with fleet(folder) as found:`; then `feed`, blows, `settle_down`, `account`."""

    def __init__(self, folder: Path, times: Times | None) -> None:
        self.folder = folder
        self.trail = folder / "trail"
        self.valkey = Valkey(folder / "valkey", fsync="always")
        self.catalogue = WatchedCatalogue(folder / "hub")
        self.members: list[Member] = []
        self.blows: dict[str, int] = defaultdict(int)
        self.chance = random.Random(7)
        self.jobs: list[str] = []
        self.proxy: Proxy
        self.redis: Redis
        self._queue: LaneQueue
        self._producer: RedisQueue
        self._times = {} if times is None else {"CHAOS_TIMES": f"{times.lease} {times.sweep} {times.wedged}"}

    async def start(self, hub_url: str) -> None:
        """Everything up and every worker at work."""
        await self.valkey.start()
        self.redis = connect(self.valkey.url)
        self._queue = LaneQueue(self.redis, name=QUEUE)
        self._producer = RedisQueue(connect(self.valkey.url), name=QUEUE)
        self.proxy = Proxy(self.valkey.socket)
        environment = {
            **os.environ,
            "PHAZE_REDIS_URL": await self.proxy.start(),
            "PHAZE_HUB_URL": hub_url,
            "PHAZE_AGENT_ID": AGENT,
            "PHAZE_AGENT_TOKEN": TOKEN,
            "PHAZE_AGENT_LANE": LANE,
            "PHAZE_LOG_FORMAT": "json",
            "PYTHONPATH": str(REPO),
            **self._times,
        }
        self.members = [Member(self.folder / f"worker-{number}.log", environment) for number in range(WORKERS)]
        await asyncio.gather(*(member.start() for member in self.members))
        await self.until(lambda: all(self._working(member) for member in self.members), within=60)

    @staticmethod
    def _working(member: Member) -> bool:
        return any(event["event"] == "worker.started" for event in member.events())

    async def stop(self) -> None:
        """End everything; nothing is left running."""
        for member in self.members:
            if member.running:
                member.send(signal.SIGCONT)
                await member.end()
        await self._producer.disconnect()
        await self.redis.aclose()
        await self.proxy.stop()
        await self.valkey.stop()
        self.catalogue.close()

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], within: float) -> None:
        """Wait for a condition; if it does not come, say what the workers said last."""
        deadline = time.monotonic() + within
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            if time.monotonic() > deadline:
                said = "\n".join(member.log.read_text("utf-8", "replace")[-2000:] for member in self.members)
                raise AssertionError(f"not within {within:.0f} s ({await self.left()}); the logs end with\n{said}")
            await asyncio.sleep(0.05)

    def at_work(self) -> Member:
        """Whose process started the last body."""
        pid = self.starts()[-1]["pid"]
        return next(member for member in self.members if member.pid == pid)

    # What goes in.

    async def feed(self, number: int, seconds: tuple[float, float] = (0.005, 0.05)) -> None:
        """Enqueue so many more jobs of between so many seconds, as a plain SAQ producer does, whatever it takes."""
        for _ in range(number):
            record = f"r{len(self.jobs)}"
            self.jobs.append(record)
            arguments = {
                "version": f"{record}-v1",
                "seconds": round(self.chance.uniform(*seconds), 4),
                "trail": str(self.trail),
                "child": len(self.jobs) % CHILD_EVERY == 0,
            }
            while True:
                with contextlib.suppress(RedisError, OSError):
                    await self._producer.enqueue(TASK, key=job_key(TASK, record), **arguments)
                    break
                await asyncio.sleep(0.05)

    # Blows.

    async def kill_one(self) -> None:
        """kill -9 of a worker, and another one in its place."""
        member = self.chance.choice(self.members)
        await member.end()
        await member.start()
        self.blows["kills"] += 1

    async def freeze_one(self, seconds: float) -> None:
        """SIGSTOP of a worker, SIGCONT after so long."""
        member = self.chance.choice(self.members)
        member.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        member.send(signal.SIGCONT)
        self.blows["freezes"] += 1

    async def restart_valkey(self, away: float) -> None:
        """kill -9 of the server; it is back after so long."""
        self.valkey.program.kill()
        await self.valkey.program.stop(10)
        await asyncio.sleep(away)
        await self.valkey.start()
        self.blows["restarts of Valkey"] += 1

    async def hang_valkey(self, seconds: float) -> None:
        """The server takes connections and answers nobody for so long."""
        assert self.valkey.pid is not None
        os.kill(self.valkey.pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(self.valkey.pid, signal.SIGCONT)

    # What came out.

    def trace(self) -> list[dict[str, Any]]:
        """The trail so far: a row for each start and each end of a body."""
        rows = self.trail.read_text("utf-8").splitlines() if self.trail.exists() else []
        return [json.loads(row) for row in rows]

    def starts(self) -> list[dict[str, Any]]:
        """The bodies that started, in order."""
        return [row for row in self.trace() if row["event"] == "start"]

    async def left(self) -> dict[str, int]:
        """What is not over: every number is 0 once the fleet is quiet."""
        try:
            waiting = {kind: await self._queue.count(kind) for kind in ("queued", "active", "incomplete")}
            outbox = await self.redis.xlen(outbox_key(QUEUE))
        except (RedisError, OSError):
            return {"unreachable": 1}
        return {**waiting, "outbox": outbox, "unrecorded": len(self.jobs) - len(self.catalogue.taken)}

    async def settle_down(self, within: float) -> float:
        """Wait until everything is over; how long it took."""
        started = time.monotonic()

        async def quiet() -> bool:
            return not any((await self.left()).values())

        await self.until(quiet, within)
        return time.monotonic() - started

    async def account(self, kind: str, seconds: float, drained: float) -> Figures:
        """Compare the witnesses. AssertionError names the promise that was broken and by which record."""
        bodies: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        started = 0
        for row in self.trace():
            started += row["event"] == "start"
            bodies[row["record"]].setdefault(row["token"], {}).update(row)
        recorded = self.catalogue.recorded()
        lost = set(self.jobs) - recorded.keys()
        assert not lost, f"lost: {sorted(lost)[:10]}"
        assert recorded.keys() == set(self.jobs)
        for record, (token, result) in recorded.items():
            assert self.catalogue.taken[record] == {token}, f"{record} was recorded under several tokens"
            assert result["token"] == str(token), f"{record}: the result is another run's"
            body = bodies[record][str(token)]
            assert (body["pid"], body["started"]) == (result["pid"], result["started"])
            assert "ended" in body, f"{record}: the recorded body did not end"
            assert token == max(map(int, bodies[record])), f"{record}: a superseded body was recorded"
            marker = json.loads(await self.redis.get(keys.marker_key(TASK, record)) or b"{}")
            assert marker.get("token") == str(token), f"{record}: the marker is another run's"
        assert await self.redis.llen(keys.quarantine_key(TASK)) == 0, "quarantined"
        assert await self.redis.llen(keys.dead_letters_key(TASK)) == 0, "dead letters"
        assert await self.redis.xlen(refused_key(QUEUE)) == 0, "the hub refused entries"
        assert await self.redis.hlen(keys.deaths_key(QUEUE)) == 0, "deaths are remembered of jobs that are over"
        assert [key async for key in self.redis.scan_iter("lock:*")] == [], "locks are left"
        counters = {name.decode(): int(n) for name, n in (await self.redis.hgetall(keys.counters_key(QUEUE))).items()}
        assert counters.get("vanished", 0) == 0
        events = [event for member in self.members for event in member.events()]
        faults = [event for event in events if event.get("level") in ("error", "critical") or event["event"] == "?"]
        assert not faults, f"the workers logged {len(faults)} faults: {faults[:10]}"
        return Figures(
            kind,
            seconds,
            len(self.jobs),
            len(recorded),
            len(lost),
            counters.get("takeovers", 0),
            started - len(self.jobs),
            counters.get("stale", 0),
            len(events) - sum(event["event"] == "job.settled" for event in events),
            self.catalogue.deliveries,
            drained,
            dict(self.blows),
        )


@contextlib.asynccontextmanager
async def fleet(folder: Path, times: Times | None = None) -> AsyncIterator[Fleet]:
    """A fleet at work, with a hub on a real socket. Without `times`: the usual ones."""
    found = Fleet(folder, times)
    found.catalogue.register_agent(AGENT, TOKEN)
    server = uvicorn.Server(
        uvicorn.Config(create_app(load_settings(), found.catalogue), log_config=None, access_log=False)
    )
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server._serve([listener]))
    try:
        await found.start(url_of(listener))
        yield found
    finally:
        try:
            await found.stop()
        finally:
            server.should_exit = True
            await serving
            listener.close()
