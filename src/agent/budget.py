"""What there is for the lanes, by machine and cgroup, and what their slots ask for."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent.lanes import CPU_LANES
from agent.settings import Settings

CGROUP = Path("/sys/fs/cgroup")
"""Where a container sees its own cgroup: version 2 here, version 1 in the folders `cpu` and `memory`."""

NO_LIMIT = 1 << 60
"""Bytes; version 1 says `no limit` as a number near 2^63."""


@dataclass(frozen=True)
class LaneBudget:
    """One lane's slots: `effective` = min(`knob`, the ceiling WORKER_MAX_JOBS)."""

    lane: str
    knob: int
    ceiling: int
    effective: int
    cpu: bool


def lanes(settings: Settings, names: Iterable[str]) -> list[LaneBudget]:
    """The lanes so called, in their order."""
    ceiling = settings.worker_max_jobs
    return [
        LaneBudget(lane, settings.lane_knob(lane), ceiling, settings.concurrency(lane), lane in CPU_LANES)
        for lane in names
    ]


def machine_cores() -> int:
    """Cores that this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1


def cores(root: Path = CGROUP) -> float:
    """The machine's cores, or what the cgroup's quota leaves of them (1.5: one and a half)."""
    return min([float(machine_cores()), *_quotas(root)])


def _quotas(root: Path) -> Iterator[float]:
    """Version 2: `cpu.max` holds `<quota or max> <period>` in microseconds. Version 1: a file each, -1 for no limit."""
    v2, v1 = _words(root / "cpu.max"), _words(root / "cpu/cpu.cfs_quota_us") + _words(root / "cpu/cpu.cfs_period_us")
    for words in (v2, v1):
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])


def memory(root: Path = CGROUP) -> int:
    """Bytes: the machine's memory, or the cgroup's limit where that is less."""
    limits = [psutil.virtual_memory().total]
    for file in (root / "memory.max", root / "memory/memory.limit_in_bytes"):
        words = _words(file)
        if len(words) == 1 and words[0].isdigit() and int(words[0]) < NO_LIMIT:
            limits.append(int(words[0]))
    return min(limits)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text("ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def shown(number: float) -> str:
    """`2`, `1.5`, `0.25`."""
    return str(int(number)) if math.isclose(number, round(number)) else f"{number:.2f}".rstrip("0")
