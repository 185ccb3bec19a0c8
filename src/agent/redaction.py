"""Secrets out of text: by the look of the text, by the name of the field that holds it, and those that are known."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO, cast
from urllib.parse import quote

REDACTED = "[redacted]"

NAME = (
    r"(?:token|password|passwd|passphrase|secret|(?:api|access|private)[_-]?key|authorization|cookie|signature"
    r"|credential)s?"
)
NAMES = re.compile(f"{NAME}$", re.IGNORECASE)
"""Fields whose value is a secret whatever it looks like. A fencing token is a number, or is called `fence`."""

KEYS = r"[\w-]*(?:api[_-]?key|(?:access|auth|id|refresh|security|session)[_-]?token|client[_-]?secret|passw(?:or)?d)"
"""What is secret by its name in running text too. A bare `token` there is a fencing token."""

LOOKS = (
    (re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]+"), "Bearer [redacted]"),
    (re.compile(r"\b(?i:basic)\s+(?=[a-z+/_-]*[A-Z0-9])[\w+/-]{4,}=*"), "Basic [redacted]"),
    (re.compile(rf"(?is)({NAME}\\{{0,9}}[\"']?\s{{0,3}}[:=]\s{{0,3}}(\\{{0,9}}[\"']))(?!\d+\2)(?:(?!\2)(?:\\.|.))+"),
     r"\1[redacted]"),
    (re.compile(r"(?i)(\bauthorization[\\\"']*\s*[:=]\s*[\\\"']*(?:[a-z][\w-]*\s+)?)[^\s\"',;\\]+"), r"\1[redacted]"),
    (re.compile(rf"(?i)((?<![\w-]){KEYS}[\\\"']*\s*[:=]\s*[\\\"']*)[^\s\"',;&\\}})]+"), r"\1[redacted]"),
    (re.compile(r"(?i)([?&](?:x-(?:amz|goog)-[a-z-]+|[\w-]*(?:token|secret|signature|credential)s?|awsaccesskeyid"
                r"|googleaccessid|auth|sig|key)=)[^&\s\"'\\]+"), r"\1[redacted]"),
    (re.compile(r"\bsk-[\w-]{16,}"), REDACTED),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^:/@\s\"']{0,200}:)[^/\s\"']{1,500}@"), r"\1[redacted]@"),
)  # fmt: skip
"""Credentials of HTTP, what stands in quotes behind a secret's name (JSON or Python within a text, or within a text
within one; a number in quotes is a fencing token), keys by their names, the values of presigned queries, keys of model
providers (`sk-...`), passwords in URLs."""

MARKS = ("://", "?", "&", "bearer", "basic", "authorization", "key", "token", "secret", "passw", "passphrase", "cookie",
         "signature", "credential", "sk-")  # fmt: skip
"""Each of LOOKS wants one of these; most texts hold none, and to search for them costs less."""


MOST_KNOWN = 2_000
"""Secrets that a process knows at a time; of more, those that it met least lately are forgotten."""

SHORTEST = 4
"""Characters of a secret that is looked for as such: a shorter one would be found in every other word."""

_known: dict[str, None] = {}
_forms: tuple[str, ...] = ()


def hide(secret: str) -> None:
    """Let no text that passes here hold `secret` from now on, as it is or as JSON, Python or a URL would write it."""
    global _forms
    if len(secret) < SHORTEST:
        return
    is_new = secret not in _known
    _known.pop(secret, None)
    _known[secret] = None
    if is_new:
        while len(_known) > MOST_KNOWN:
            del _known[next(iter(_known))]
        forms = {form for one in _known for form in (one, json.dumps(one)[1:-1], repr(one)[1:-1], quote(one, safe=""))}
        _forms = tuple(sorted(forms, key=len, reverse=True))  # one may be the beginning of another


def mask_output() -> None:
    """Hide what is known in all that Python code of this process prints."""
    sys.stdout, sys.stderr = (cast("TextIO", Masked(stream)) for stream in (sys.stdout, sys.stderr))


def without_known(value: Any) -> Any:
    """`value`, which is JSON, without the secrets that are known, at any depth."""
    if not _forms:
        return value
    if isinstance(value, str):
        return _without_known(value)
    if isinstance(value, dict):
        return {_without_known(key): without_known(item) for key, item in value.items()}
    return [without_known(item) for item in value] if isinstance(value, list) else value


def _without_known(text: str) -> str:
    for form in _forms:
        if form in text:
            text = text.replace(form, REDACTED)
    return text


class Masked:
    """A stream of text, such as `sys.stderr`, into which nobody of this process writes a secret that is known."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write; the number of characters that were given."""
        self._stream.write(_without_known(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_text(text: str) -> str:
    """`text` without what is known to be a secret, or looks like one."""
    text = _without_known(text)
    if _is_marked(text):
        for pattern, replacement in LOOKS:
            text = pattern.sub(replacement, text)
    return text


def redact_lines(lines: Sequence[str]) -> str:
    """Lines, each redacted, as one text; most hold nothing, which is seen in all of them at once."""
    text = "\n".join(lines)
    if _is_marked(text) or any(form in text for form in _forms):
        text = "\n".join(map(redact_text, lines))
    return text


def _is_marked(text: str) -> bool:
    low = text.lower()
    return any(mark in low for mark in MARKS)


def redact_names(value: Any, name: str = "") -> Any:
    """`value` with the contents of fields that are secret by name replaced, at any depth."""
    if isinstance(value, dict):
        return {key: redact_names(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_names(item, name) for item in value]
    if isinstance(value, str | bytes) and NAMES.search(name):
        return REDACTED
    return value
