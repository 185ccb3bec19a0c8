"""Retry-After (RFC 9110, 10.2.3): how long a server wants to be left alone."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; None if it does not say, or says what nobody can read. Names of `headers` in lower case.

    A date counts from the server's own `date`, so that no clock but its own matters.
    """
    said = headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        until = parsedate_to_datetime(said).timestamp()
        now = parsedate_to_datetime(headers["date"]).timestamp()
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return max(0.0, until - now)
