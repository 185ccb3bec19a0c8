"""What a worker holds: a claimed run of a job, and how it ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from saq.job import Job

Kind = Literal["settle", "retry", "release", "park"]
Reason = Literal["timeout", "abort", "lost", "distrusted", "shutdown"]


def raw(name: str) -> bytes:
    """A key or a part of one as the server has it, whatever bytes it consists of."""
    return name.encode("utf-8", "surrogateescape")


class Run:
    """One job under our lease. `text` is the job as stored, before the claim."""

    __slots__ = (
        "attempts", "begun", "cancelled_for", "context", "deadline", "id", "job", "marker", "names",
        "outside_effects", "own_deaths", "record", "service", "started", "stop", "takeovers", "task", "text", "timeout",
        "token", "trusted_until",
    )  # fmt: skip

    def __init__(self, reply: list[Any], *, claimed_before: float, lease: float) -> None:
        """`claimed_before`: the lease clock from before the claim was sent, so that trust ends before the lease."""
        job_id, text, service, record, token, marker, deaths = reply
        self.names: tuple[bytes, bytes, bytes] = job_id, service, record
        """Its id, service and record id as the server has them, whatever bytes they consist of."""
        self.id: str = job_id.decode("utf-8", "surrogateescape")
        self.text: bytes = text
        self.service: str = service.decode("utf-8", "surrogateescape")
        self.record: str = record.decode("utf-8", "surrogateescape")
        self.token: str = token.decode()
        self.marker: bytes | None = marker
        self.takeovers = self.own_deaths = 0
        if deaths:
            takeovers, _, own = deaths.partition(b":")
            self.takeovers, self.own_deaths = int(takeovers), int(own)
        self.trusted_until = claimed_before + lease
        self.timeout = 0.0
        self.deadline = float("inf")
        """Monotonic seconds at which the body must have ended; past it the lease is no longer renewed."""
        self.stop: asyncio.TimerHandle | None = None
        self.started = time.time()
        self.outside_effects = False
        self.job: Job | None = None
        self.attempts = 0
        self.context: Any = None
        """What the body was called with."""
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.cancelled_for: Reason | None = None

    def limit(self, seconds: float) -> None:
        """Let the body run for `seconds` from now. One that takes no notice then is ended with its process."""
        self.no_limit()
        self.timeout, self.deadline = seconds, time.monotonic() + seconds
        self.stop = asyncio.get_running_loop().call_later(seconds, self.cancel, "timeout")

    def no_limit(self) -> None:
        """Let it run as long as it likes; the end of a run as well."""
        self.deadline = float("inf")
        if self.stop is not None:
            self.stop.cancel()

    def cancel(self, reason: Reason) -> None:
        """Ask the body to end; the first reason stands. One that has not begun is not begun any more."""
        if self.cancelled_for is None and (self.task is None or not self.task.done()):
            self.cancelled_for = reason
            if self.task is not None and self.begun:  # before its first step a task would end without a word
                self.task.cancel()


@dataclass(frozen=True, slots=True)
class Onward:
    """What a stage of a pipeline leaves behind, in the step in which its run is settled."""

    service: str = ""
    """Whose stream the record goes to; '' for none."""
    user_id: str = ""
    data: str = ""
    """A JSON object."""
    version: str = ""
    pages: str = ""
    """The record's pages as a JSON list; '-' drops those of the run's version, '' leaves them as they are."""


@dataclass(slots=True)
class Ending:
    """How a run ends; see settle.lua for the fields."""

    kind: Kind
    run: Run
    text: bytes | str
    status: str
    outcome: str
    """What people are told: done, partial, rejected, skipped, answered, retried, parked, dead-letter ..."""
    number: float = 0.0
    marker: str = ""
    marker_ms: int = 0
    entry: str = ""
    letter: str = ""
    where: str = ""
    deaths: str = ""
    stage: tuple[str, ...] = ()

    def arguments(self) -> tuple[Any, ...]:
        """The values for the step script. The short ones are one: each costs the client as much as a long one."""
        run = self.run
        head = f"{self.kind} {run.token} {self.status} {self.number} {self.marker_ms} {len(self.stage)} {self.deaths}"
        return head, *run.names, self.text, self.marker, self.entry, self.letter, raw(self.where), *self.stage

    def size(self) -> int:
        """Bytes, about, that it takes on its way."""
        texts = len(self.text) + len(self.marker) + len(self.entry) + len(self.letter)
        return texts + sum(map(len, self.stage)) if self.stage else texts
