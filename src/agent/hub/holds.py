"""What keeps jobs back until somebody lets them go: paused lanes and tasks, circuits that stay open.

Nobody waits for such a job as one waits for a retry: it may take for ever, and uses no attempts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from redis.asyncio import Redis

from agent.display import duration_text
from agent.lanes import LANE_TASKS, record_id_of
from agent.phoenix import keys
from agent.phoenix.breaker import OPEN_MS, Breakers, Circuit
from agent.phoenix.scripts import Scripts
from agent.redis_client import reply

STAYS_OPEN = 1.5 * OPEN_MS / 1000
"""Seconds not closed after which a circuit counts as one that stays open: its first probes have failed as well."""

Record = tuple[str, str]
"""Task and record id."""


@dataclass(frozen=True)
class Holds:
    """What is held."""

    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Task -> what is paused of it: its lane, itself."""
    circuits: Mapping[Circuit, frozenset[Record]] = field(default_factory=dict)
    """Those that stay open -> the jobs that wait for each, as far as they were looked at."""

    @property
    def records(self) -> frozenset[Record]:
        """The jobs that wait for a circuit, as far as they were looked at."""
        return frozenset().union(*self.circuits.values())

    @property
    def parked(self) -> int:
        """All jobs that wait for a circuit."""
        return sum(circuit.parked for circuit in self.circuits)

    def said(self, owed: Mapping[str, int]) -> dict[str, str]:
        """Name -> one line with the remedy, of what holds something that is owed. `owed`: task -> jobs."""
        paused = sorted({name for task, names in self.tasks.items() if owed.get(task) for name in names})
        return {name: f"{name} is paused; `phaze resume {name}` lets it go on" for name in paused} | {
            circuit.name: _line(circuit)
            for circuit, records in self.circuits.items()
            if any(owed.get(task) for task, _ in records)
        }


def _line(circuit: Circuit) -> str:
    name = circuit.name
    if circuit.forced == "open":
        return (
            f"the circuit {name} is held open ({circuit.reason}); `phaze breaker reset {name}` gives it back to itself"
        )
    again = duration_text(OPEN_MS / 1000)
    return f"the circuit {name} stays open, for what it stands for fails; mend that, it is tried again every {again}"


class Holding:
    """Looks, and remembers since when each circuit is open."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._breakers = Breakers(Scripts(redis), redis)
        self._open_since: dict[str, float] = {}
        """Circuit -> monotonic seconds of the first look since which it was never found closed."""

    async def look(self, queues: Collection[str], most: int) -> Holds:
        """What is held of the jobs on these queues; up to `most` jobs of each circuit are named."""
        paused = {name.decode("utf-8", "replace") for name in await reply(self._redis.smembers(keys.PAUSED))}
        tasks = {
            task: [name for name in dict.fromkeys((lane, task)) if name in paused]
            for lane, table in LANE_TASKS.items()
            for task in table
            if {lane, task} & paused
        }
        names = set(self._open_since)
        for queue in queues:
            names |= {name.decode() for name in await reply(self._redis.smembers(keys.parked_index_key(queue)))}
        circuits: dict[Circuit, frozenset[Record]] = {}
        for name in sorted(name for name in names if not name.startswith(keys.PAUSED_PREFIX)):
            circuit = await self._breakers.look(name)
            if self._stays_open(circuit):
                circuits[circuit] = await self._waiting_for(name, queues, most)
        return Holds(tasks, circuits)

    def _stays_open(self, circuit: Circuit) -> bool:
        if circuit.forced == "closed" or (circuit.forced == "none" and circuit.state == "closed"):
            self._open_since.pop(circuit.name, None)
            return False
        since = self._open_since.setdefault(circuit.name, time.monotonic())
        return circuit.forced == "open" or time.monotonic() - since > STAYS_OPEN

    async def _waiting_for(self, circuit: str, queues: Collection[str], most: int) -> frozenset[Record]:
        ids = await reply(self._redis.lrange(keys.parked_key(circuit), 0, most - 1))
        found: set[Record] = set()
        for queue in queues:
            prefix = keys.job_prefix(queue).encode()
            mine = [job_id for job_id in ids if job_id.startswith(prefix)]
            # An id may still be listed whose job was released by hand, or is over.
            due = await self._redis.zmscore(keys.incomplete_key(queue), mine) if mine else []
            parked = [job_id for job_id, at in zip(mine, due, strict=True) if at is not None and at >= keys.FAR_FUTURE]
            found |= {_record(job_id.removeprefix(prefix).decode("utf-8", "surrogateescape")) for job_id in parked}
        return frozenset(found)


def _record(key: str) -> Record:
    return key.partition(":")[0], record_id_of(key)
