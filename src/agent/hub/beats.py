"""Heartbeats as they come in: who is alive, and whether two workers beat for one agent, of which only one should."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ALIVE, STALE = 90.0, 300.0
"""Seconds since the last beat: under the first an agent is alive, under the second stale, then dead."""

REMEMBERED = 20
"""Workers of one agent that are told apart at most."""

State = Literal["alive", "stale", "dead", "never"]


def state_of(last_beat_at: float | None, now: float) -> State:
    """What a last beat (Unix seconds; None: there was none) says of its agent."""
    if last_beat_at is None:
        return "never"
    age = now - last_beat_at
    return "alive" if age < ALIVE else "stale" if age < STALE else "dead"


@dataclass
class _Beater:
    name: str
    first: float
    last: float

    def overlaps(self, other: _Beater) -> bool:
        """Whether each was heard after the other had begun."""
        return self.last >= other.first and other.last >= self.first


class Beats:
    """Who beats for each agent, since this hub started. Times are of the monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._beaters: dict[str, dict[tuple[str, ...], _Beater]] = {}

    def note(self, agent_id: str, beat: Mapping[str, Any], now: float | None = None) -> None:
        """A beat came in; it is of the worker with that host, process and time of start."""
        now = time.monotonic() if now is None else now
        known = self._beaters.setdefault(agent_id, {})
        who = tuple(str(beat.get(name))[:200] for name in ("hostname", "worker_pid", "started_at"))
        found = known.pop(who, None)
        known[who] = _Beater(f"{who[0]} (process {who[1]})", now if found is None else found.first, now)
        for old in [key for key, beater in known.items() if now - beater.last >= ALIVE]:
            del known[old]
        while len(known) > REMEMBERED:
            del known[next(iter(known))]

    def rivals(self, agent_id: str, now: float | None = None) -> list[str]:
        """The workers that beat for the agent at the same time, where there are several; else none.

        One that was replaced does not count: it fell silent before its successor's first beat.
        """
        now = time.monotonic() if now is None else now
        fresh = [beater for beater in self._beaters.get(agent_id, {}).values() if now - beater.last < ALIVE]
        return sorted(one.name for one in fresh if any(one.overlaps(other) for other in fresh if other is not one))
