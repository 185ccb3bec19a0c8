"""Secrets out of text: by the look of the text, and by the name of the field that holds it."""

from __future__ import annotations

import re
from typing import Any

REDACTED = "[redacted]"

NAME = (
    r"(?:token|password|passwd|passphrase|secret|(?:api|access|private)[_-]?key|authorization|cookie|signature"
    r"|credential)s?"
)
NAMES = re.compile(f"{NAME}$", re.IGNORECASE)
"""Fields whose value is a secret whatever it looks like. A fencing token is a number, or is called `fence`."""

LOOKS = (
    (re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]+"), "Bearer [redacted]"),
    (re.compile(r"(?i)([?&](?:x-(?:amz|goog)-[a-z-]+|signature|awsaccesskeyid|googleaccessid|token|sig|key)=)[^&\s\"'\\]+"),
     r"\1[redacted]"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^:/@\s\"']{0,200}:)[^@/\s\"']{1,500}@"), r"\1[redacted]@"),
    (re.compile(rf"(?is)({NAME}\\{{0,9}}[\"']?\s{{0,3}}[:=]\s{{0,3}}(\\{{0,9}}[\"']))(?:(?!\2)(?:\\.|.))+"),
     r"\1[redacted]"),
)  # fmt: skip
"""Bearer tokens, the values of presigned queries, passwords in URLs, and what stands in quotes behind a secret's name:
JSON or Python within a text, or within a text within one. Each looks no further back than a few hundred characters."""


def redact_text(text: str) -> str:
    """`text` without what looks like a secret."""
    for pattern, replacement in LOOKS:
        text = pattern.sub(replacement, text)
    return text


def redact_names(value: Any, name: str = "") -> Any:
    """`value` with the contents of fields that are secret by name replaced, at any depth."""
    if isinstance(value, dict):
        return {key: redact_names(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_names(item, name) for item in value]
    if isinstance(value, str | bytes) and NAMES.search(name):
        return REDACTED
    return value
