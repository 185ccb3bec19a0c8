"""Every variable means what it says, and a wrong one is named in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.errors import ConfigError
from agent.settings import VARIABLES, Settings, example, load_settings, unknown_variables
from tests.conftest import REPO


def test_defaults_are_the_designs() -> None:
    settings = load_settings()
    assert [settings.concurrency(lane) for lane in ("analyze", "fingerprint", "meta", "io")] == [4, 2, 2, 4]
    assert [settings.concurrency(lane) for lane in ("router", "parser", "grouper")] == [2, 2, 2]
    assert settings.worker_max_jobs == 8
    assert settings.agent_lane is None
    assert settings.agent_heartbeat


@pytest.mark.parametrize("name", ["WORKER_MAX_JOBS", "PHAZE_WORKER_MAX_JOBS"])
def test_the_ceiling_clamps_a_lane_and_never_raises_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert load_settings().concurrency("analyze") == 3
    monkeypatch.setenv(name, "100")
    assert load_settings().concurrency("analyze") == 4
    assert load_settings().concurrency(None) == 100


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PHAZE_AGENT_LANE", "analyse", "PHAZE_AGENT_LANE=analyse is not a lane; the lanes are analyze"),
        ("PHAZE_AGENT_ID", "box-analyze", "PHAZE_AGENT_ID=box-analyze must not end in -analyze"),
        ("PHAZE_AGENT_ID", "a b", "PHAZE_AGENT_ID=a b must be 1 to 63 letters"),
        ("WORKER_MAX_JOBS", "many", "WORKER_MAX_JOBS=many should be a valid integer"),
        ("PHAZE_WORKER_MAX_JOBS", "0", "WORKER_MAX_JOBS=0 should be greater than or equal to 1"),
        ("PHAZE_LANE_IO_CONCURRENCY", "0", "PHAZE_LANE_IO_CONCURRENCY=0 should be greater"),
        ("PHAZE_LANE_META_CONCURRENCY", "2.5", "PHAZE_LANE_META_CONCURRENCY=2.5 should be a valid integer"),
        ("PHAZE_HUB_PORT", "70000", "PHAZE_HUB_PORT=70000 should be less than or equal to 65535"),
        ("PHAZE_REDIS_URL", "http://x", "PHAZE_REDIS_URL must start with redis://"),
        ("PHAZE_REDIS_URL", "valkey://:hidden@x", "PHAZE_REDIS_URL must start with redis://, rediss:// or unix://"),
        ("PHAZE_AGENT_TOKEN", "t\u00f6ken", "PHAZE_AGENT_TOKEN must be visible ASCII characters"),
        ("PHAZE_LOG_LEVEL", "loud", "PHAZE_LOG_LEVEL=loud should be 'debug'"),
        ("PHAZE_SHUTDOWN_GRACE", "nan", "PHAZE_SHUTDOWN_GRACE"),
        ("PHAZE_PUSH_TO", "nas:/x", "PHAZE_PUSH_TO=nas:/x must be ssh://USER@HOST[:PORT]/FOLDER"),
        ("PHAZE_PUSH_TO", "ssh://nas/x", "PHAZE_PUSH_TO=ssh://nas/x must be ssh://USER@HOST"),
        ("PHAZE_PUSH_TO", "ssh://u@nas", "PHAZE_PUSH_TO=ssh://u@nas must be ssh://USER@HOST"),
        ("PHAZE_PUSH_TO", "ssh://-o@nas/x", "PHAZE_PUSH_TO=ssh://-o@nas/x must be ssh://USER@HOST"),
        ("PHAZE_PUSH_TO", "ssh://u@nas:0/x", "PHAZE_PUSH_TO=ssh://u@nas:0/x must be ssh://USER@HOST"),
        ("PHAZE_PUSH_TO", "ssh://u@nas:ftp/x", "PHAZE_PUSH_TO=ssh://u@nas:ftp/x must have a host, and as its port"),
        ("PHAZE_HUB_NAMES", "http://x", "PHAZE_HUB_NAMES=http://x must be names such as hub.example"),
        ("PHAZE_HUB_NAMES", "a.example, b.example/hub", "PHAZE_HUB_NAMES=a.example, b.example/hub must be names"),
        ("PHAZE_HUB_NAMES", "a.example b.example", "PHAZE_HUB_NAMES=a.example b.example must be names"),
        ("PHAZE_HUB_URL", "http://", "PHAZE_HUB_URL=http:// must start with http:// or https:// and name a host"),
        ("PHAZE_HUB_URL", "http://hub:many", "PHAZE_HUB_URL=http://hub:many must start with"),
        (
            "PHAZE_S3_ENDPOINT",
            "https://:9000",
            "PHAZE_S3_ENDPOINT=https://:9000 must start with http:// or https:// and",
        ),
        ("PHAZE_MOVE_ROOTS", "/m:music", "PHAZE_MOVE_ROOTS=/m:music must be absolute folders"),
        ("PHAZE_DOCUMENT_ROOTS", "/m/../n", "PHAZE_DOCUMENT_ROOTS=/m/../n must be absolute folders"),
        ("PHAZE_BILLING_FIELDS", "duration=7d", "PHAZE_BILLING_FIELDS must be a JSON object"),
        ("PHAZE_BILLING_FIELDS", " ", "PHAZE_BILLING_FIELDS must be a JSON object"),
        ("PHAZE_BILLING_URL", "http://proxy:99999", "PHAZE_BILLING_URL=http://proxy:99999 must be an http:// or"),
        ("PHAZE_LLM_URL", "http://[::1/v1", "PHAZE_LLM_URL=http://[::1/v1 must be an http:// or https:// address"),
        ("PHAZE_DATA_DIR", "~nobody-here/x", "PHAZE_DATA_DIR=~nobody-here/x must be a folder; there is no home"),
        ("PHAZE_MODELS_DIR", "~nobody-here/x", "PHAZE_MODELS_DIR=~nobody-here/x must be a folder; there is no home"),
        ("PHAZE_CHILD_MEMORY_MB", "9" * 30, f"PHAZE_CHILD_MEMORY_MB={'9' * 30} should be less than or equal to"),
        ("PHAZE_AGENT_LANE", "io\n\x1b[31m", r"PHAZE_AGENT_LANE=io\n\x1b[31m is not a lane"),
        ("PHAZE_AGENT_ID", "x" * 70_000, f"PHAZE_AGENT_ID={'x' * 100}... must be 1 to 63 letters"),
        ("PHAZE_DOCUMENT_NETWORKS", "x" * 70_000, f"PHAZE_DOCUMENT_NETWORKS={'x' * 100}... "),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert str(error.value).startswith(said)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PHAZE_PUSH_TO", "ssh://phaze@nas.example/volume1/music"),
        ("PHAZE_PUSH_TO", "ssh://u@192.168.1.4:2222/a%20b"),
        ("PHAZE_PUSH_TO", "ssh://u@[fd00::1]/x"),
        ("PHAZE_HUB_NAMES", "hub.example, nas:8443,my_box,"),
        ("PHAZE_S3_ENDPOINT", "http://[::1]:9000/store"),
        ("PHAZE_MOVE_ROOTS", "/m:/n o:"),
    ],
)
def test_a_good_value_is_taken(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load_settings(), VARIABLES[name]) == value


def test_a_password_in_a_target_is_refused_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_PUSH_TO", "ssh://u:hunter2@nas/x")
    with pytest.raises(ConfigError, match="without a password") as error:
        load_settings()
    assert "hunter2" not in str(error.value)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    assert load_settings() == load_settings()
    assert load_settings().agent_lane is None


def test_a_secret_comes_from_its_file_and_never_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret-value\n", "utf-8")
    monkeypatch.setenv("PHAZE_AGENT_TOKEN_FILE", str(tmp_path / "token"))
    settings = load_settings()
    assert settings.agent_token is not None
    assert settings.agent_token.get_secret_value() == "s3cret-value"
    assert "s3cret-value" not in repr(settings)


def test_a_secret_file_from_windows_holds_the_same_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"\xef\xbb\xbfopen sesame\r\n")
    monkeypatch.setenv("PHAZE_HUB_PASSWORD_FILE", str(tmp_path / "password"))
    password = load_settings().hub_password
    assert password is not None
    assert password.get_secret_value() == "open sesame"


@pytest.mark.parametrize("content", [b"", b" \r\n", b"\xef\xbb\xbf"])
def test_a_blank_secret_file_stops_the_start(content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hub would start with a login that nobody can pass, a signer with a key that no store knows."""
    (tmp_path / "password").write_bytes(content)
    monkeypatch.setenv("PHAZE_HUB_PASSWORD_FILE", str(tmp_path / "password"))
    with pytest.raises(ConfigError, match=r"PHAZE_HUB_PASSWORD_FILE=\S+ is empty; write the secret into it"):
        load_settings()


def test_a_secret_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_AGENT_TOKEN_FILE", "/nowhere/token")
    with pytest.raises(ConfigError, match=r"PHAZE_AGENT_TOKEN_FILE=/nowhere/token cannot be read \(No such file"):
        load_settings()


def test_dotenv_is_read_and_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("PHAZE_AGENT_ID=from-file\nPHAZE_LANE_IO_CONCURRENCY=7\nOTHER=1\n", "utf-8")
    assert load_settings().agent_id == "from-file"
    monkeypatch.setenv("PHAZE_AGENT_ID", "from-environment")
    assert load_settings().agent_id == "from-environment"
    assert load_settings().lane_knob("io") == 7


def test_the_first_line_of_a_dotenv_from_windows_counts_too() -> None:
    Path(".env").write_bytes(b"\xef\xbb\xbfPHAZE_AGENT_ID=first\r\nPHAZE_HUB_PASSWORD_FILE=missing\r\n")
    with pytest.raises(ConfigError, match="PHAZE_HUB_PASSWORD_FILE=missing cannot be read"):
        load_settings()
    Path(".env").write_bytes(b"\xef\xbb\xbfPHAZE_AGENT_ID=first\r\n")
    assert load_settings().agent_id == "first"
    Path(".env").write_bytes(b"\xef\xbb\xbfPHAZE_AGENT_TOKEN_FILE=missing\r\n")
    with pytest.raises(ConfigError, match="PHAZE_AGENT_TOKEN_FILE=missing cannot be read"):
        load_settings()


def test_a_dotenv_in_another_encoding_is_one_line() -> None:
    Path(".env").write_bytes(b"PHAZE_AGENT_ID=\xe9\n")
    with pytest.raises(ConfigError, match=r"\.env is not UTF-8 text"):
        load_settings()


def test_between_single_quotes_a_value_is_taken_as_it_stands() -> None:
    """As Compose takes it; .env.example says so."""
    Path(".env").write_text("PHAZE_HUB_PASSWORD='pa$word #1'\n", "utf-8")
    password = load_settings().hub_password
    assert password is not None
    assert password.get_secret_value() == "pa$word #1"
    assert "between single quotes" in example().splitlines()[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, whom something is denied")
@pytest.mark.parametrize("folder", [0o700, 0o755], ids=["in-a-folder-of-another-user", "of-another-user"])
def test_a_dotenv_that_may_not_be_read_is_one_line(folder: int) -> None:
    Path(".env").write_text("PHAZE_AGENT_ID=x\n", "utf-8")
    Path(".env").chmod(0)
    Path.cwd().chmod(folder)
    os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=r"^\.env of the working directory cannot be read \(Permission denied\);"):
            load_settings()
    finally:
        os.seteuid(0)


def test_a_misspelt_variable_is_told_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_LANE_ANALYSE_CONCURRENCY", "2")
    monkeypatch.setenv("PHAZE_XYZZY", "2")
    assert list(unknown_variables()) == [
        ("PHAZE_LANE_ANALYSE_CONCURRENCY", "PHAZE_LANE_ANALYZE_CONCURRENCY"),
        ("PHAZE_XYZZY", None),
    ]


def test_the_example_file_is_current_and_loads() -> None:
    assert (REPO / ".env.example").read_text("utf-8") == example(), "run: phaze settings --example > .env.example"
    uncommented = "\n".join(
        line.removeprefix("#") for line in example().splitlines() if line.startswith("#") and line[1:2] not in (" ", "")
    )
    Path(".env").write_text(uncommented, "utf-8")
    assert load_settings().model_copy(update={"data_dir": Path()}) == Settings().model_copy(update={"data_dir": Path()})


@pytest.mark.parametrize(("lane", "beats"), [("analyze", True), ("fingerprint", False), ("meta", False), (None, False)])
def test_only_the_analyze_lane_beats(lane: str | None, beats: bool) -> None:
    assert load_settings(agent_lane=lane).beats is beats
    assert not load_settings(agent_lane=lane, agent_heartbeat=False).beats


@pytest.mark.parametrize("user", ["a:b", "a\nb", ""])
def test_a_user_that_http_cannot_carry_is_refused(user: str) -> None:
    with pytest.raises(ConfigError, match="PHAZE_HUB_USER"):
        load_settings(hub_user=user)


def test_the_hubs_user_may_stand_in_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user").write_text("ann\n", "utf-8")
    monkeypatch.setenv("PHAZE_HUB_USER_FILE", str(tmp_path / "user"))
    assert load_settings().hub_user == "ann"
    assert "PHAZE_HUB_USER_FILE" not in dict(unknown_variables())
    monkeypatch.setenv("PHAZE_HUB_USER", "bob")
    assert load_settings().hub_user == "bob"
