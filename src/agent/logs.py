"""Logs as events with fields: JSON for machines, lines for people, secrets redacted by a processor."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from agent.redaction import NAMES, redact_names, redact_text

LogFormat = Literal["auto", "console", "json"]


def redact_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """structlog processor: no field that is secret by name leaves through a log line."""
    for name, value in event.items():
        if isinstance(value, dict | list | tuple | set | frozenset) or NAMES.search(name):
            event[name] = redact_names(value, name)
    return event


def redact_line(_logger: WrappedLogger, _method: str, line: Any) -> Any:
    """Last processor: nothing that looks like a secret leaves either, whatever object it was part of."""
    return redact_text(line)


def configure(level: str = "info", log_format: LogFormat = "auto", **fields: Any) -> None:
    """Set up structlog and route the standard library's loggers (saq, uvicorn) through it, to stderr.

    `fields` are bound to every line of this process (lane, agent, worker).
    """
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.UnicodeDecoder(),
        structlog.processors.format_exc_info,
        redact_fields,
    ]
    renderer: Processor = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
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
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**{name: value for name, value in fields.items() if value is not None})
