"""No secret leaves through a log line."""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from agent import logs
from agent.redaction import redact_text


@pytest.fixture(autouse=True)
def _restore_logging() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def logged(capsys: pytest.CaptureFixture[str], **fields: object) -> dict[str, object]:
    logs.configure("info", "json", lane="io")
    structlog.get_logger().info("job.claimed", **fields)
    line: dict[str, object] = json.loads(capsys.readouterr().err)
    return line


def test_a_line_is_an_event_with_fields(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, task="s3_upload", attempts=2)
    assert (line["event"], line["lane"], line["task"], line["attempts"]) == ("job.claimed", "io", "s3_upload", 2)
    assert line["level"] == "info"
    assert "timestamp" in line


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("api_key", "hunter2"),
        ("agent_token", "hunter2"),
        ("headers", {"Authorization": "hunter2"}),
        ("error", "401 for Authorization: Bearer hunter2"),
        ("url", "https://s3/x?partNumber=1&X-Amz-Signature=hunter2&X-Amz-Date=1"),
        ("url", "redis://user:hunter2@host/0"),
        ("nested", [{"password": "hunter2"}]),
        ("url", "https://llm/x?api_key=hunter2"),
        ("url", "https://llm/x?a=1&access_token=hunter2&b=2"),
        ("body", "client_secret=hunter2&grant_type=client_credentials"),
        ("said", "x-api-key: hunter2"),
        ("said", "{'X-Api-Key': 'hunter2'}"),
        ("said", '{"headers": {"x-api-key": "hunter2"}}'),
        ("said", "Authorization: Token hunter2"),
    ],
)
def test_secrets_are_redacted_by_name_and_by_look(
    capsys: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    assert "hunter2" not in json.dumps(logged(capsys, **{field: value}))


@pytest.mark.parametrize("text", ["Authorization: Basic aHVudGVyMjp4", "sent Basic aHVudGVyMjp4 and was refused"])
def test_a_password_in_base64_is_redacted(text: str) -> None:
    assert "aHVudGVyMjp4" not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "a basic configuration",
        "KEY is process_file:7",
        "key=process_file:7",
        "the fencing token: 17",
        "invalid username-password pair",
        "give the agent's token, or a file with PHAZE_AGENT_TOKEN_FILE",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("text", ["a-" * 50_000, "a-" * 50_000 + "key", "api_key " * 10_000, "?token" * 10_000])
def test_a_long_text_takes_no_long_time(text: str) -> None:
    started = time.process_time()
    redact_text("https://" + text)
    assert time.process_time() - started < 2.0


def test_a_fencing_token_is_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert logged(capsys, token=17)["token"] == 17


def test_an_exceptions_text_is_redacted_and_the_standard_library_logs_the_same_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info", "json")
    try:
        raise ValueError("Bearer hunter2")
    except ValueError:
        logging.getLogger("other").exception("failed with %s", "redis://u:hunter2@h")
    line = json.loads(capsys.readouterr().err)
    assert line["logger"] == "other"
    assert "hunter2" not in json.dumps(line)
    assert "ValueError" in line["exception"]


def test_lines_that_are_written_together_are_all_written_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    log = structlog.get_logger()

    def say() -> None:
        log.info("one")
        other = threading.Thread(target=lambda: log.info("of another thread"))
        other.start()
        other.join(10)
        log.info("two")
        assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["of another thread"]
        raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"), logs.together():
        say()
    log.info("three")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["one", "two", "three"]


def test_a_line_says_when_it_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    before = datetime.now(UTC)
    structlog.get_logger().info("now")
    said = datetime.fromisoformat(json.loads(capsys.readouterr().err)["timestamp"])
    assert before - timedelta(milliseconds=1) <= said <= datetime.now(UTC)
