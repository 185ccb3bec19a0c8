"""Secrets are found where they stand, and looking for them takes no longer than the text is long."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.redaction import redact_names, redact_text


def nested(value: Any, depth: int) -> Any:
    """JSON within JSON within ..."""
    return value if depth == 0 else nested({"about": json.dumps(value)}, depth - 1)


@given(
    st.sampled_from(["token", "password", "client_secret", "X-Api-Key", "Set-Cookie", "accessKey", "private_key"]),
    st.text(min_size=1, max_size=30).map(lambda text: f"HUSH{text}"),
    st.integers(0, 3),
)
def test_what_a_secrets_name_stands_before_is_hidden_in_json_python_and_texts_within_texts(
    name: str, secret: str, depth: int
) -> None:
    value = nested({"before": 1, name: secret, "after": 2}, depth)
    for text in (json.dumps(value), repr(value), repr(redact_names(value))):
        assert "HUSH" not in redact_text(text)
        assert "after" in redact_text(text)


@pytest.mark.parametrize("text", ["a newer token: 5", "key='process_file:1'", "the password is wrong", "tokens: 3"])
def test_what_only_speaks_of_secrets_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "part", ["a.a.", "token", "token='", "token=\\", "?token=", "a://", "a://:", "bearer ", "'", "\\"]
)
def test_no_text_takes_long(part: str) -> None:
    text = part * (200_000 // len(part))
    started = time.monotonic()
    redact_text(text)
    assert time.monotonic() - started < 10, "0.1 s is usual; looking back over all of it would take minutes"
