"""Tasks and lanes of other installed packages, read from their entry points. Nothing of theirs is imported here.

A package names a lane by a group and a task by an entry of it, as the lane table does ("module:function"):

    [project.entry-points."phaze.lanes.meta"]          a task more on a lane that is there
    [project.entry-points."phaze.lanes.words"]         a lane of its own
    [project.entry-points."phaze.cpu_lanes.words"]     the same, bound by the processor: one slot is one core

A value may also name a processor class (agent.processors): then producers of any language ask for it by a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions

from agent.errors import ConfigError

OURS = "phaze-agent"
NAMESPACE = "phaze."
LANES, CPU_LANES = "phaze.lanes.", "phaze.cpu_lanes."

NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
"""Of a lane and of a task. No dash and no dot: a lane is part of a variable's name, and an agent `a-b` with a lane `c`
would share its queue with an agent `a` and a lane `b-c`."""

TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

RESERVED = frozenset({"all", "cron", "unknown", "parked", "breaker", "deaths", "aborts", "counters"})
"""Words that stand for something else in keys, in logs and on the command line."""


@dataclass(frozen=True, order=True)
class Added:
    """One task that a package adds to a lane."""

    package: str
    lane: str
    task: str
    target: str
    """"module:function"."""
    cpu: bool
    """Whether its lane is said to be bound by the processor."""


def installed() -> list[Added]:
    """What all installed packages add, in an order that does not depend on the disk. Raises ConfigError."""
    return sorted(added for package in _packages() for added in _added_by(package))


def _packages() -> Iterator[Distribution]:
    """The packages whose entry points speak of us; of two with one name the first on the path, as Python imports it."""
    seen = set()
    for package in distributions():
        try:
            text = package.read_text("entry_points.txt") or ""
        except UnicodeDecodeError:
            continue  # not written by any installer, and nothing that we can name
        if NAMESPACE not in text:
            continue
        name = re.sub(r"[-_.]+", "-", _name(package)).lower()
        if name not in seen:
            seen.add(name)
            yield package


def _name(package: Distribution) -> str:
    try:
        return package.name or "without a name"
    except Exception:  # half uninstalled: what Python's versions raise then differs
        return "without a name"


def _added_by(package: Distribution) -> Iterator[Added]:
    name = _name(package)
    try:
        entries = list(package.entry_points)
    except (TypeError, ValueError):
        raise _refused(name, "has entry points that cannot be read") from None
    for entry in entries:
        for group, cpu in ((LANES, False), (CPU_LANES, True)):
            if entry.group.startswith(group):
                yield Added(name, entry.group.removeprefix(group), entry.name, entry.value.strip(), cpu)
                break
        else:
            if entry.group.startswith(NAMESPACE):
                read = f"{LANES}<lane> and {CPU_LANES}<lane>"
                raise _refused(name, f"has entry points in {entry.group}; only {read} are read")


def add(found: Iterable[Added], table: dict[str, dict[str, str]], cpu_lanes: set[str]) -> None:
    """Write `found` into the lane table. Raises ConfigError where it does not fit; what is there is never replaced.

    Lanes and tasks share their names, so that `phaze pause NAME` means one of them. Only a lane's own task may have its
    name: then NAME is both.
    """
    taken = {task: f"a task of {OURS} on {lane}" for lane, tasks in table.items() for task in tasks}
    taken |= dict.fromkeys(table, f"a lane of {OURS}")
    namesakes = {lane for lane, tasks in table.items() if lane in tasks}
    not_bound = table.keys() - cpu_lanes
    for new in found:
        _check_name(new.package, "lane", new.lane)
        _check_name(new.package, "task", new.task)
        if not TARGET.fullmatch(new.target):
            raise _refused(new.package, f"gives {new.target!r} for its task {new.task}; it must read module:function")
        if new.lane not in table and new.lane in taken:
            raise _refused(new.package, f"adds the lane {new.lane}, but that is already {taken[new.lane]}")
        taken.setdefault(new.lane, f"a lane of {new.package}")
        if new.task == new.lane and new.lane not in namesakes:
            namesakes.add(new.lane)
        elif new.task in taken:
            said = f"adds the task {new.task} to the lane {new.lane}, but that is already {taken[new.task]}"
            raise _refused(new.package, f"{said}; give it another name")
        taken[new.task] = f"a task of {new.package} on {new.lane}"
        if new.cpu and new.lane in not_bound:
            raise _refused(new.package, f"says that {new.lane} is bound by the processor; use {LANES}{new.lane}")
        table.setdefault(new.lane, {})[new.task] = new.target
        if new.cpu:
            cpu_lanes.add(new.lane)


def _check_name(package: str, kind: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise _refused(
            package,
            f"names a {kind} {name!r}; use 1 to 48 lower-case letters, digits and underscores, the first a letter",
        )
    if name in RESERVED:
        raise _refused(package, f"names a {kind} {name}, a word that has another meaning; choose another")


def _refused(package: str, what: str) -> ConfigError:
    return ConfigError(f"the package {package} {what}; mend it, or pip uninstall {package}")
