"""Secrets are found where they stand, and looking for them takes no longer than the text is long."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.redaction import MOST_KNOWN, REDACTED, hide, redact_lines, redact_names, redact_text, without_known


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


@given(
    st.lists(st.text("ab{}\n", max_size=5) | st.sampled_from(["Bearer HUSH", "token", "api_key=HUSH", "=HUSH", "sk-"]))
)
def test_lines_that_leave_together_are_redacted_each_for_itself(lines: list[str]) -> None:
    assert redact_lines(lines) == "\n".join(map(redact_text, lines))


@pytest.fixture
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.redaction._known", {})
    monkeypatch.setattr("agent.redaction._forms", ())


@pytest.mark.usefixtures("_nothing_known")
def test_a_secret_that_is_known_is_hidden_however_it_is_written_and_however_little_it_looks_like_one() -> None:
    secret = 'plain/words+"of\\mine'
    hide(secret)
    for text in (secret, json.dumps({"said": secret}), repr([secret]), f"https://x/y?of={quote(secret, safe='')}"):
        assert "words" not in redact_text(text)
    assert without_known({"a": [secret, 1, None], secret: {"b": f"<{secret}>"}}) == {
        "a": [REDACTED, 1, None],
        REDACTED: {"b": f"<{REDACTED}>"},
    }


@pytest.mark.usefixtures("_nothing_known")
def test_of_very_many_secrets_those_met_last_are_known_and_short_ones_are_none() -> None:
    for number in range(MOST_KNOWN + 10):
        hide(f"secret-number-{number:05d}")
    hide("abc")
    assert redact_text("abc") == "abc"
    assert redact_text(f"x secret-number-{MOST_KNOWN:05d} y") == f"x {REDACTED} y"
    assert redact_text("secret-number-00000") == "secret-number-00000"


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


@pytest.mark.parametrize("url", ["redis://:HUSH@HUSH@nas:6379/0", "https://u:HUSH@@HUSH@nas/x?mail=a@b"])
def test_a_password_in_a_url_is_hidden_to_its_last_at_sign(url: str) -> None:
    """Whoever did not write %40 for it: the server's address ends at the last one, and so it connects."""
    said = redact_text(f"cannot reach {url}, trying again")
    assert "HUSH" not in said
    assert "@nas" in said
    assert said.endswith("trying again")
