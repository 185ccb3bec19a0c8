"""Queues and jobs as SAQ's page gets them: every leaf plain text or a number, without secrets, of a bearable size.

SAQ's page gives what it gets to snabbdom, which takes an object for the description of an element, with properties to
set on it (`{"props": {"innerHTML": ...}}`). Whoever can enqueue a job would run scripts there. So that nothing but text
and numbers leaves from here, whatever a stored job holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from saq.job import Status

from agent.redaction import redact_names, redact_text

LONGEST = 20_000
"""Characters of one field of a job on its own page."""

LONGEST_IN_LIST = 300
"""The same where many jobs are listed."""


MARGIN = 2_000
"""Characters that are looked at beyond: half a secret may not look like one."""


class ShownJob(TypedDict):
    """Times in Unix milliseconds, 0 for none; `progress` from 0 to 1."""

    key: str
    queue: str
    function: str
    kwargs: str
    status: str
    queued: float
    started: float
    completed: float
    progress: float
    attempts: float
    result: str
    error: str


class ShownWorker(TypedDict):
    """What SAQ's page tells of a worker: counts of jobs, and `uptime` in milliseconds."""

    stats: dict[str, float]


class ShownQueue(TypedDict):
    """A queue; where it could not be looked at, the reason stands in the place of its count."""

    name: str
    active: float | str
    queued: float | str
    scheduled: float | str
    workers: dict[str, ShownWorker]
    jobs: list[ShownJob]


def shown_job(queue: str, job: Mapping[str, Any], most: int = LONGEST) -> ShownJob:
    """Out of SAQ's `Job.to_dict`; each text is cut after `most` characters."""
    status = job.get("status", Status.NEW)
    return {
        "key": plain(job.get("key", "")),  # whole: it is also its address
        "queue": queue,
        "function": text(job.get("function"), most),
        "kwargs": text(job.get("kwargs"), most),
        "status": text(status.value if isinstance(status, Status) else status, most),
        "queued": number(job.get("queued")),
        "started": number(job.get("started")),
        "completed": number(job.get("completed")),
        "progress": number(job.get("progress")),
        "attempts": number(job.get("attempts")),
        "result": text(job.get("result"), most),
        "error": text(job.get("error"), most),
    }


def shown_queue(name: str, info: Mapping[str, Any]) -> ShownQueue:
    """Out of SAQ's `Queue.info`."""
    return {
        "name": name,
        "active": number(info["active"]),
        "queued": number(info["queued"]),
        "scheduled": number(info["scheduled"]),
        "workers": {plain(worker): _worker(told) for worker, told in info["workers"].items()},
        "jobs": [shown_job(name, job, LONGEST_IN_LIST) for job in info["jobs"]],
    }


def failed_queue(name: str, reason: str) -> ShownQueue:
    """One that could not be looked at."""
    return {"name": name, "active": text(reason, 300), "queued": "", "scheduled": "", "workers": {}, "jobs": []}


def text(value: Any, most: int) -> str:
    """The value as Python writes it (text as it is) without what is or looks like a secret; empty for None."""
    if value is None:
        return ""
    try:
        whole = value if isinstance(value, str) else repr(redact_names(value))
    except RecursionError:
        return "[nested too deeply to be shown]"
    shown = redact_text(whole[: most + MARGIN])[:most]
    return plain(shown if len(whole) <= most else f"{shown} [of {len(whole):,} characters]")


def plain(value: Any) -> str:
    """Text that can be written in UTF-8."""
    return str(value).encode("utf-8", "replace").decode()


def number(value: Any) -> float:
    """A number that JSON can carry; 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:  # NaN is not, either
        return 0
    return value


def _worker(told: Any) -> ShownWorker:
    stats = told.get("stats") if isinstance(told, Mapping) else None
    return {
        "stats": {
            name: number(stats.get(name)) if isinstance(stats, Mapping) else 0
            for name in ("complete", "retried", "failed", "uptime")
        }
    }
