"""Logs as events with fields: JSON for machines, lines for people, secrets redacted by a processor."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from agent.redaction import NAMES, redact_lines, redact_names, redact_text

LogFormat = Literal["auto", "console", "json"]

LEVELS = {"exception": "error", "warn": "warning"}
"""Names of methods that are not names of levels."""

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Values that hold no others, and are no bytes."""
ENCODER = json.JSONEncoder(default=repr, skipkeys=True)
"""For what orjson refuses: lone surrogates of names of files, integers beyond 64 bits."""


def redact_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """structlog processor: no field that is secret by name leaves through a log line. Bytes become text."""
    secret = secret_names(tuple(event))
    for name, value in event.items():
        if type(value) not in PLAIN or name in secret:
            clean = redact_names(value, name)
            event[name] = clean.decode("utf-8", "replace") if isinstance(clean, bytes) else clean
    return event


@lru_cache(maxsize=1024)
def secret_names(names: tuple[str, ...]) -> frozenset[str]:
    """Those of fields' names that are secret; the same few fields come with most lines."""
    return frozenset(name for name in names if NAMES.search(name))


def redact_line(_logger: WrappedLogger, _method: str, line: Any) -> Any:
    """Last processor of foreign lines: nothing that looks like a secret leaves, whatever object it was part of."""
    return redact_text(line)


def render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Last but one processor: one JSON object; what JSON does not know becomes its repr."""
    try:
        return orjson.dumps(event, default=repr).decode()
    except TypeError:
        return ENCODER.encode(event)


def _timestamp() -> str:
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}+00:00"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Bound:
    """First processor: the fields of this process, on every line, with its level and time."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = {name: value for name, value in fields.items() if value is not None}

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        level = LEVELS.get(method, method)
        return {"timestamp": _timestamp(), "level": level, "event": event.pop("event", ""), **self._fields, **event}


HELD = threading.local()
"""`lines` of this thread that are written at once, while it is within `together`."""


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Write the lines of the body, which must not wait for anything, with one call: that is a good part of the cost."""
    lines: list[str] = []
    HELD.lines = lines
    try:
        yield
    finally:
        HELD.lines = None
        if lines:
            _write(lines)


def _write(lines: Sequence[str]) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(redact_lines(lines) + "\n")
        sys.stderr.flush()


class Lines:
    """Where our own events end: a line to stderr, as it is at that moment, redacted.

    A closed pipe or a full disk costs the line, never the job that it tells of.
    """

    def msg(self, line: str) -> None:
        """Write one line, or hold it back for `together`."""
        held = getattr(HELD, "lines", None)
        if held is not None:
            held.append(line)
        else:
            _write([line])

    debug = info = warning = error = critical = msg


def configure(level: str = "info", log_format: LogFormat = "auto", **fields: Any) -> None:
    """Set up structlog, and the standard library's loggers (saq, uvicorn) to write the same lines, to stderr.

    Our own events do not pass through the standard library, which costs more than all else that a worker does for a
    job. `fields` are bound to every line of this process (lane, agent, worker).
    """
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    shared: list[Processor] = [Bound(fields), structlog.processors.format_exc_info, redact_fields]
    renderer: Processor = render_json if as_json else structlog.dev.ConsoleRenderer()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer, redact_line],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("saq").setLevel(logging.WARNING if level.upper() == "INFO" else level.upper())
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=lambda *_args: Lines(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
