"""LANE_TASKS: the table of what runs where. Everything about routing is derived from it.

Adding a task is one line here and one function in `pipelines`, or a processor class ("module:Class", as in
agent.processors); other packages add theirs by entry point (plugins.py).
"""

from __future__ import annotations

import importlib
import inspect
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel

from agent import plugins
from agent.errors import ConfigError
from agent.redaction import redact_text
from pipelines.context import policy_of
from pipelines.payload import Payload

if TYPE_CHECKING:
    from agent.processors import BaseProcessor

LANE_TASKS: dict[str, dict[str, str]] = {
    "analyze": {
        "process_file": "pipelines.music.analyze:process_file",
    },
    "fingerprint": {
        "fingerprint_file": "pipelines.music.fingerprint:fingerprint_file",
        "ingest_file": "pipelines.music.ingest:ingest_file",
    },
    "meta": {
        "extract_file_metadata": "pipelines.music.metadata:extract_file_metadata",
        "scan_directory": "pipelines.music.scan:scan_directory",
        "scan_live_set": "pipelines.music.live_set:scan_live_set",
        "execute_approved_batch": "pipelines.files.execute_approved_batch:execute_approved_batch",
    },
    "io": {
        "s3_upload": "pipelines.files.s3_upload:s3_upload",
        "push_file": "pipelines.files.push_file:push_file",
    },
    "router": {
        "router": "agent.processors.router:Router",
    },
    "parser": {
        "parser": "agent.processors.parser:Parser",
    },
    "grouper": {
        "grouper": "agent.processors.grouper:Grouper",
    },
}

FILE_LANES = ("analyze", "fingerprint", "meta", "io")
DOCUMENT_LANES = ("router", "parser", "grouper")
"""Nobody pays for both kinds who has only one: an agent runs those of files, of documents, or all (`lanes_for`)."""

CPU_LANES = {"analyze", "fingerprint", *DOCUMENT_LANES}
"""Lanes bound by the processor: one slot is one core, so numeric libraries are pinned to one thread."""

PLUGINS = plugins.installed()
"""What other packages add: in the table from here on, where all is derived as for our own."""

plugins.add(PLUGINS, LANE_TASKS, CPU_LANES)

HEARTBEAT_LANE = "analyze"
"""The one lane whose worker beats for the agent."""

LANES: tuple[str, ...] = tuple(LANE_TASKS)
AGENT_TASKS: Mapping[str, str] = ChainMap(*reversed(LANE_TASKS.values()))
"""task -> "module:function" or "module:Class" of all lanes: a view, so that a line more in the table is here too."""

Task = Callable[[Any, Any], Awaitable[BaseModel]]


def lanes_for(*, files: bool = True, documents: bool = False) -> tuple[str, ...]:
    """The lanes of an agent for files, for documents, or both; what other packages add runs in any case."""
    left_out = (*(() if files else FILE_LANES), *(() if documents else DOCUMENT_LANES))
    return tuple(lane for lane in LANES if lane not in left_out)


def lane_for_task(task: str) -> str:
    """The lane that runs `task`; KeyError names the tasks there are."""
    for lane, tasks in LANE_TASKS.items():
        if task in tasks:
            return lane
    raise KeyError(f"{task} is not a task; the tasks are {', '.join(AGENT_TASKS)}")


def tasks_of(lane: str | None) -> Mapping[str, str]:
    """name -> "module:function" of one lane, or of all lanes for None (all-mode)."""
    return AGENT_TASKS if lane is None else LANE_TASKS[lane]


def base_queue_name(agent_id: str) -> str:
    """The legacy queue of an agent, from before lanes: only ever drained."""
    return f"phaze-agent-{agent_id}"


def queue_name(agent_id: str, lane: str | None) -> str:
    """`phaze-agent-<agent_id>-<lane>`; the base queue for None."""
    return base_queue_name(agent_id) if lane is None else f"{base_queue_name(agent_id)}-{lane}"


def job_key(task: str, record_id: str) -> str:
    """`<task>:<record_id>`: the deterministic key under which a job is known everywhere."""
    return f"{task}:{record_id}"


def record_id_of(key: str) -> str:
    """What follows the first colon of a key; the whole key where there is none (a plain producer's UUID)."""
    _, colon, record_id = key.partition(":")
    return record_id if colon else key


def load_task(target: str) -> Any:
    """Import "module:function". Only a lane's own worker loads its tasks, so that it imports only its own code."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def load_checked(name: str) -> Task | type[BaseProcessor]:
    """The function, or the processor class, of a task. Raises ConfigError, which names the package, if it cannot be
    imported or is neither."""
    target = AGENT_TASKS[name]
    try:
        function: Task = load_task(target)
        if isinstance(function, type):
            from agent.processors.base import checked

            return checked(function)
        payload_model(function)
        policy_of(function)
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{name} is not an `async def`")
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        owner = next((new.package for new in PLUGINS if new.task == name), plugins.OURS)
        reason = redact_text(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
        remedy = "install it anew" if owner == plugins.OURS else f"mend it, or pip uninstall {owner}"
        raise ConfigError(
            f"the package {owner}: its task {name} cannot be loaded from {target} ({reason}); {remedy}"
        ) from error
    return function


def payload_model(function: Task) -> type[Payload]:
    """The payload class in a task's signature `(ctx, payload: Model) -> Model`."""
    hints = get_type_hints(function)
    model = hints.get("payload")
    if not (isinstance(model, type) and issubclass(model, Payload)):
        raise TypeError(f"{function!r} needs a parameter `payload` annotated with a subclass of Payload")
    return model
