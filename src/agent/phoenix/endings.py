"""How a run ends, put into words: what is recorded, what the stored job says from now on, what goes to which list."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
import traceback
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any

import structlog
from saq.job import Status
from saq.utils import now

from agent.phoenix import keys, quick_json
from agent.phoenix.backoff import retry_delay
from agent.phoenix.outbox import MAX_ENTRY, MAX_NAME, is_name
from agent.phoenix.runs import Ending, Onward, Run
from agent.phoenix.streams import META, came_from_stream, fields_of_job, progress_message
from agent.redaction import redact_text
from pipelines.errors import TryLater

if TYPE_CHECKING:
    from collections.abc import Container

    from agent.phoenix.queue import LaneQueue
    from pipelines.payload import Outcome

log = structlog.get_logger()

MARKER_IDLE = 7 * 24 * 3600
"""Seconds that a marker lives after its last use."""

MARKER_LIFE = 30 * 24 * 3600
"""Seconds that a marker lives at most; after that the catalogue says what is done."""

ERROR_CHARACTERS = 8_000
"""Of a traceback, the end: the last frames say what went wrong."""

LOOKED_AT = 1_000_000
"""Of a traceback, what is searched for secrets before it is cut: half a secret is not known for one."""

SORTED = json.JSONEncoder(sort_keys=True, default=str)
"""One text for equal arguments, whatever their order; to the letter, for its hash is stored."""

DEFAULT_TTL = 600
"""SAQ's own, in seconds."""

LONGEST_TTL = 10 * 365 * 24 * 3600
"""Longer ones would not fit the server's clock."""

OWN_DEATHS = 3
"""A job that killed its child, or its worker while it ran alone, so many times is quarantined."""

LONGEST_ASKED = 3600.0
"""Seconds: the longest wait that another side's Retry-After may cause."""

UNKNOWN_SERVICE = "unknown"
"""In whose quarantine are the jobs of no task: a renamed or removed one's, a misspelt one, what nobody can decode."""


class Quarantined(Exception):
    """The job can never run as it is: an unknown task, arguments that do not validate, a payload nobody can decode."""


class NotStarted(Exception):
    """The body never began, for a reason that says nothing of the job: it goes back without an attempt."""


class CircuitHeld(Exception):
    """The circuit that the job leans on is open; the job waits for it."""

    def __init__(self, circuit: str) -> None:
        super().__init__(circuit)
        self.circuit = circuit


@dataclass(slots=True)
class Result:
    """What a run came to."""

    value: Any
    """Anything that JSON can hold."""
    outcome: Outcome = "done"
    reason: str | None = None
    version: str | None = None
    """What the result stands for; None: a hash of the job's arguments."""
    remember: bool = True
    """Whether a marker answers the same version from now on."""
    onward: Onward | None = None
    """What a stage of a pipeline leaves to the next one."""


class Endings:
    """Builds the endings of one worker's runs. `outbox`: whether results go to a control plane.

    `tasks`: what the worker can do; None for anything. Any other name is a stranger's, and gets no list of its own.
    """

    def __init__(self, queue: LaneQueue, worker: str, *, outbox: bool, tasks: Container[str] | None = None) -> None:
        self._queue = queue
        self._worker = worker
        self._worker_json = json.dumps(worker)
        self._outbox = outbox
        self._tasks = tasks

    def done(self, run: Run, result: Result) -> Ending:
        """Record a result; its NaN and infinities become null. Raises TypeError or ValueError if it is not JSON."""
        job = run.job
        assert job is not None
        value = self._value(run, result.value)
        finished = time.time()
        document = self._document(run, result, value, finished)
        if self._outbox and len(document) > MAX_ENTRY:
            raise ValueError(f"it takes {len(document):,} bytes of {MAX_ENTRY:,}; report it in parts")
        text = self._finished_text(run, Status.COMPLETE, value, None)
        shown = ttl_ms(job.ttl)
        return Ending(
            "settle",
            run,
            text,
            "complete",
            result.outcome,
            number=shown,
            marker=document if result.remember else "",
            marker_ms=_marker_ms(job.key, shown) if result.remember else 0,
            entry=("=" if result.remember else document) if self._outbox else "",
            deaths="-" if run.takeovers or run.own_deaths else "",
            stage=self._stage(run, result.outcome, result.onward, result.reason or ""),
        )

    def answered(self, run: Run, marker: dict[str, Any], stored: str) -> Ending:
        """The version is done: its stored result again, and its marker lives on for another while, unless somebody has
        had it forgotten meanwhile."""
        job = run.job
        assert job is not None
        age = time.time() - float(marker.get("timestamp", 0))
        left = max(1, min(MARKER_IDLE, MARKER_LIFE - age))
        text = self._finished_text(run, Status.COMPLETE, self._value(run, marker.get("result")), None)
        return Ending(
            "settle", run, text, "complete", "answered", number=ttl_ms(job.ttl),
            marker_ms=int(left * 1000), entry=stored if self._outbox else "",
            deaths="-" if run.takeovers or run.own_deaths else "", stage=self._stage(run, "answered"),
        )  # fmt: skip

    def retried(self, run: Run, error: BaseException, *, own_death: bool = False) -> Ending:
        """Once more, after the backoff, and not before the other side wants it; a child's death is counted against the
        job."""
        job = run.job
        assert job is not None
        job.attempts = run.attempts
        job.status, job.error = Status.QUEUED, error_text(error)
        job.started = job.completed = 0
        job.worker_id = None
        deaths = f"{run.takeovers}:{run.own_deaths + 1}" if own_death else ""
        text = self._queue.serialize(job)
        asked = error.after if isinstance(error, TryLater) and error.after is not None else 0.0
        wait = max(retry_delay(run.attempts), min(asked, LONGEST_ASKED))
        return Ending("retry", run, text, "queued", "retried", number=wait, deaths=deaths)

    def released(self, run: Run) -> Ending:
        """Back to the head of the queue, as if nothing had happened."""
        return Ending("release", run, run.text, "queued", "released")

    def parked(self, run: Run, circuit: str) -> Ending:
        """Until the circuit lets it through; no attempt is used."""
        return Ending("park", run, run.text, "queued", "parked", where=circuit)

    def aborted(self, run: Run, reason: str) -> Ending:
        """Somebody wanted it to end. The control plane is told, so that it does not ask for it again."""
        job = run.job
        assert job is not None
        text = self._finished_text(run, Status.ABORTED, "null", reason)
        return Ending(
            "settle", run, text, "aborted", "aborted", number=ttl_ms(job.ttl), deaths="-",
            entry=self.entry_of_abort(run, reason), stage=self._stage(run, "aborted", said=reason),
        )  # fmt: skip

    def entry_of_abort(self, run: Run, reason: str) -> str:
        """What the control plane is told of an aborted job; '' for nothing."""
        return self._rejection(run, f"aborted: {redact_text(reason)}", time.time())

    def buried(self, run: Run, error: BaseException) -> Ending:
        """A dead letter: its record is not there. The control plane is told, so that it asks no more."""
        where = keys.dead_letters_key(run.service)
        return self._set_aside(run, error, where, "dead-letter", f"not-found: {redact_text(str(error))}")

    def quarantined(self, run: Run, error: BaseException) -> Ending:
        """Set aside until somebody looks."""
        known = run.service and (self._tasks is None or run.service in self._tasks)
        where = keys.quarantine_key(run.service if known else UNKNOWN_SERVICE)
        return self._set_aside(run, error, where, "quarantined", f"quarantined: {redact_text(str(error))}")

    def unspeakable(self, run: Run, error: BaseException) -> Ending:
        """Set aside where no other ending could be built: with nothing but what the claim said."""
        run.job = None
        return self.quarantined(run, error)

    def _value(self, run: Run, value: Any) -> str:
        """A result as JSON (RFC 8259), which has no NaN: one number that is none costs itself, not the hour's work."""
        if (quick := quick_json.dumps(value)) is not None:
            return quick
        text = json.dumps(value)
        if "NaN" not in text and "Infinity" not in text:
            return text
        lost: list[str] = []
        value = json.loads(text, parse_constant=lost.append)
        if lost:
            log.warning("job.result_not_finite", task=run.service, record_id=run.record, nulls=len(lost))
        return json.dumps(value)

    def _set_aside(self, run: Run, error: BaseException, where: str, outcome: str, reason: str) -> Ending:
        finished = time.time()
        said = redact_text(f"{type(error).__name__}: {error}")
        letter = {
            "id": run.id,
            "queue": self._queue.name,
            "service": run.service,
            "record_id": run.record,
            "error": said,
            "traceback": error_text(error),
            "attempts": run.attempts,
            "takeovers": run.takeovers,
            "own_deaths": run.own_deaths,
            "first": run.job.queued / 1000 if run.job and isinstance(run.job.queued, int) else None,
            "last": finished,
            "worker": self._worker,
            "job": base64.b64encode(run.text).decode("ascii"),
        }
        if run.job is not None and came_from_stream(run):
            letter |= {name: run.job.meta[name] for name in META} | {"fields": fields_of_job(run.job)}
        entry = self._rejection(run, reason, finished)
        text = self._finished_text(run, Status.FAILED, "null", said)
        ttl = run.job.ttl if run.job else DEFAULT_TTL
        return Ending(
            "settle", run, text, "failed", outcome, number=ttl_ms(ttl), entry=entry,
            letter=json.dumps(letter), where=where, deaths="-", stage=self._stage(run, outcome, said=said),
        )  # fmt: skip

    def _rejection(self, run: Run, reason: str, finished: float) -> str:
        """An entry for the outbox by which the control plane learns that it need not ask again."""
        if not (self._outbox and run.service and is_name(run.service) and is_name(run.record)):
            return ""
        result = Result({"outcome": "rejected", "reason": reason}, "rejected", reason, _version_named(run))
        return self._document(run, result, json.dumps(result.value), finished)

    def _stage(self, run: Run, outcome: str, onward: Onward | None = None, said: str = "") -> tuple[str, ...]:
        """For settle.lua: the next stage's entry, the pages, and that the entries of the run's stream are over."""
        asked = came_from_stream(run)
        if not asked and onward is None:
            return ()
        onward = onward or Onward()
        told = progress_message(run.service, run.record, outcome, note=redact_text(said))
        left = onward.service, onward.user_id, onward.data, onward.version, onward.pages
        return ("1" if asked else "0", *left, told)

    def _document(self, run: Run, result: Result, value: str, finished: float) -> str:
        """The marker and the outbox entry, one text: `value` is the result's JSON, as it will also be stored."""
        version = result.version if result.version is not None else version_of(run)
        if not is_name(version):
            raise ValueError(f"its version must be 1 to {MAX_NAME} characters of text")
        reason = "null" if result.reason is None else quoted(result.reason)
        return (
            f'{{"timestamp": {finished:.3f}, "service": {quoted(run.service)}, '
            f'"record_id": {quoted(run.record)}, "version": {quoted(version)}, "token": "{run.token}", '
            f'"outcome": "{result.outcome}", "reason": {reason}, "worker": {self._worker_json}, '
            f'"attempts": {run.attempts}, "started_at": {run.started:.3f}, "finished_at": {finished:.3f}, '
            f'"result": {value}}}'
        )

    def _finished_text(self, run: Run, status: Status, value: str, error: str | None) -> bytes:
        """The stored job, to the letter, with its end after it: of two fields with one name the last one counts."""
        reason = "null" if error is None else quoted(error)
        said = (
            f', "attempts": {run.attempts}, "started": {int(run.started * 1000)}, "completed": {now()}, '
            f'"progress": {1.0 if status is Status.COMPLETE else 0.0}, "result": {value}, '
            f'"error": {reason}, "worker_id": {self._worker_json}, "status": "{status.value}"}}'
        )
        if run.job is None:  # nobody can decode it: what was there stays as it was
            return run.text
        return run.text.rstrip()[:-1] + said.encode()


def version_of(run: Run) -> str:
    """The version that a job's arguments name, else a hash of them."""
    arguments = run.job.kwargs if run.job is not None else None
    named = arguments.get("version") if isinstance(arguments, dict) else None
    if isinstance(named, str) and named:
        return named
    text = SORTED.encode(arguments or {})
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _version_named(run: Run) -> str:
    try:
        version = version_of(run)
    except (TypeError, ValueError):
        return "unknown"
    return version if is_name(version) else "unknown"


def error_text(error: BaseException) -> str:
    """The traceback's end, without secrets."""
    text = "".join(traceback.format_exception(error))
    return redact_text(text[-LOOKED_AT:])[-ERROR_CHARACTERS:]


def ttl_ms(ttl: Any) -> int:
    """SAQ's ttl (seconds; 0 for ever, negative not at all) in whole milliseconds (0; -1), for the scripts.

    At most LONGEST_TTL; SAQ's default for what is no number.
    """
    is_number = isinstance(ttl, int) or (isinstance(ttl, float) and not math.isnan(ttl))
    seconds: float = ttl if is_number else DEFAULT_TTL
    if seconds <= 0:
        return 0 if seconds == 0 else -1
    return math.ceil(min(seconds, LONGEST_TTL) * 1000)


def _marker_ms(key: str, shown: int) -> int:
    """How long a marker lives: a key that says which record it is about is remembered, a random one while it shows."""
    return MARKER_IDLE * 1000 if ":" in key or shown == 0 else max(shown, 1000)
