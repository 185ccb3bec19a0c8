"""Logs as events with fields: JSON for machines, lines for people, secrets redacted by a processor."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

SECRET_NAME = re.compile(r"(token|password|secret|api_?key|authorization|signature|credential)s?$", re.IGNORECASE)
SECRET_TEXT = (
    (re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]+"), "Bearer [redacted]"),
    (
        re.compile(r"(?i)([?&](?:x-amz-[a-z-]+|signature|awsaccesskeyid|token|sig|key)=)[^&\s\"']+"),
        r"\1[redacted]",
    ),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^:/@\s]*:)[^@/\s]+@"), r"\1[redacted]@"),
)
REDACTED = "[redacted]"

LogFormat = Literal["auto", "console", "json"]


def redact_text(text: str) -> str:
    """Replace bearer tokens, presigned query values and passwords in URLs."""
    for pattern, replacement in SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _redact(value: Any, name: str = "") -> Any:
    # A fencing token is a number that orders runs, not a secret.
    if SECRET_NAME.search(name) and not isinstance(value, int):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {key: _redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(item) for item in value]
    return value


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """structlog processor: no secret leaves through a log line, by the field's name or by its look."""
    return {key: _redact(value, key) for key, value in event.items()}


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
        redact,
    ]
    renderer: Processor = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
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
