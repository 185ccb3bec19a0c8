from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner, Result

from agent.errors import ConfigError, WrongUse
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FINGERPRINT
from agent.hub.server import listen, with_secrets
from agent.operator.agents import agents as commands
from tests.hub.deliveries import closing, part, result, seen


class Hub:
    """A hub in its own process."""

    def __init__(self, data: Path, redis_url: str | None, *options: str, **env: str) -> None:
        self.data = data
        given = {"PHAZE_DATA_DIR": str(data), "PHAZE_HUB_PORT": "0", "PHAZE_AGENT_TOKEN": "t", **env}
        if redis_url is not None:
            given["PHAZE_REDIS_URL"] = redis_url
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent.cli", "hub", *options],
            env={**os.environ, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def url(self) -> str:
        """Its address, once it answers."""
        end = time.monotonic() + 30
        while time.monotonic() < end and self.process.poll() is None:
            try:
                url = (self.data / "hub.url").read_text().strip()
                httpx.get(f"{url}/health", timeout=1).raise_for_status()
                return url
            except (OSError, httpx.HTTPError):
                time.sleep(0.02)
        raise AssertionError(self.end())

    def end(self, number: int = signal.SIGTERM) -> str:
        """Send the signal, wait; what it logged."""
        self.process.send_signal(number)
        try:
            return self.process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_in_time(tmp_path: Path, valkey_url: str, number: int) -> None:
    hub = Hub(tmp_path, valkey_url)
    url = hub.url()
    headers = {"Authorization": "Bearer t"}
    with httpx.Client(base_url=url, headers=headers) as client:  # holds a connection open across the signal
        assert client.post("/api/agents/local/heartbeat", json={}).status_code == 200
        started = time.monotonic()
        log = hub.end(number)
    assert time.monotonic() - started < 5
    assert hub.process.returncode == 0, log
    assert '"hub.stopped"' in log or "hub.stopped" in log
    assert sorted(file.name for file in tmp_path.iterdir()) == ["catalogue.sqlite"]


SLOW = """
import os, pathlib, time
from pipelines.music.print_index import PrintIndex

def admit(index, name, items):
    pathlib.Path(os.environ["SLOW_PID"]).write_text(f"{os.getpid()} ")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass
    return []

PrintIndex.admit = admit
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_long_comparison_holds_up_nothing_and_ends_with_the_hub(tmp_path: Path, valkey_url: str, number: int) -> None:
    data, pid_file = tmp_path / "data", tmp_path / "pid"
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    hub = Hub(data, valkey_url, PYTHONPATH=str(tmp_path), SLOW_PID=str(pid_file))
    url, headers = hub.url(), {"Authorization": "Bearer t"}
    with httpx.Client(base_url=url, headers=headers) as client:
        asked = client.post("/api/scans", json={"agent_id": "local", "roots": ["/m"]})
        [scan_id] = asked.json()["scans"]
        told = [part(scan_id, [seen("/m/a")]), closing(scan_id, files=1), result(FINGERPRINT, 1, "/m/a", raw="")]
        body = {"entries": [entry.model_dump(mode="json") for entry in told]}
        assert client.post("/api/agents/local/results", json=body).json() == {"refused": []}
        pid = int(until(lambda: pid_file.exists() and pid_file.read_text()))
        assert client.get("/api/tracks").json()["total"] == 1
        started = time.monotonic()
        log = hub.end(number)
    assert time.monotonic() - started < 5
    assert hub.process.returncode == (0 if number == signal.SIGTERM else -number), log
    until(lambda: not runs(pid))


def runs(pid: int) -> bool:
    """Whether that process is alive."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def until(condition: Callable[[], Any]) -> Any:
    """What `condition` answers once that is true."""
    end = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("linked", [False, True])
def test_a_second_hub_on_a_catalogue_is_refused_and_leaves_the_first_as_it_was(
    tmp_path: Path, valkey_url: str, linked: bool
) -> None:
    data = tmp_path / "data"
    (tmp_path / "link").symlink_to(data)
    first = Hub(data, valkey_url)
    url = first.url()
    second = Hub(tmp_path / "link" if linked else data, valkey_url)
    log, _ = second.process.communicate(timeout=60)
    assert second.process.returncode == 2
    assert re.fullmatch(r"phaze: another hub runs on \S+, of which only one may; end that one, or set PHAZE_.*\n", log)
    assert first.url() == url
    first.end()


def test_a_hub_takes_over_from_one_that_is_ending_or_was_killed(tmp_path: Path, valkey_url: str) -> None:
    first = Hub(tmp_path, valkey_url)
    first.url()
    second = Hub(tmp_path, valkey_url)
    time.sleep(1)
    first.end(signal.SIGKILL)
    (tmp_path / "hub.url").unlink()
    second.url()
    second.end()


def test_what_it_writes_is_its_users_alone(tmp_path: Path, valkey_url: str) -> None:
    hub = Hub(tmp_path / "data", valkey_url)
    hub.url()
    assert (tmp_path / "data").stat().st_mode & 0o77 == 0
    assert {file.name for file in (tmp_path / "data").rglob("*") if file.stat().st_mode & 0o77} == set()
    hub.end()


def test_what_a_killed_hub_owed_the_next_one_queues(tmp_path: Path, valkey_url: str) -> None:
    hub = Hub(tmp_path, valkey_url)
    body = {"agent_id": "local", "roots": ["/m"]}
    answer = httpx.post(f"{hub.url()}/api/scans", json=body, headers={"Authorization": "Bearer t"})
    [scan_id] = answer.json()["scans"]
    hub.end(signal.SIGKILL)
    with Catalogue(tmp_path) as catalogue:
        catalogue.forget(catalogue.unchecked(-60, 10))
        assert set(catalogue.owed_versions(10)) == {("scan_directory", scan_id)}
    again = Hub(tmp_path, valkey_url)
    url, end = again.url(), time.monotonic() + 10
    while httpx.get(f"{url}/api/status").json()["lanes"]["meta"]["queued"] != 1:
        assert time.monotonic() < end
        time.sleep(0.05)
    again.end()


def test_it_needs_a_queue_server(tmp_path: Path) -> None:
    hub = Hub(tmp_path, None)
    log, _ = hub.process.communicate(timeout=20)
    assert hub.process.returncode == 2
    assert "PHAZE_REDIS_URL is not set" in log
    assert "Traceback" not in log


def test_a_catalogue_that_cannot_be_opened_is_one_line(tmp_path: Path, valkey_url: str) -> None:
    (tmp_path / "catalogue.sqlite").write_bytes(b"not a database" * 100)
    for command, redis in (("hub", valkey_url), ("tracks", None)):
        env = {**os.environ, "PHAZE_DATA_DIR": str(tmp_path), **({"PHAZE_REDIS_URL": redis} if redis else {})}
        ended = subprocess.run([sys.executable, "-m", "agent.cli", command], env=env, capture_output=True, text=True)
        assert ended.returncode == 1
        assert re.fullmatch(r"phaze: .*catalogue\.sqlite: .*restore the file from a backup.*\n", ended.stderr)


@pytest.mark.parametrize(
    ("host", "container"), [("0.0.0.0", ""), ("127.0.0.1", "docker"), ("0.0.0.0", "podman"), ("::", "")]
)
def test_a_hub_that_others_can_reach_does_not_start_without_a_password(
    tmp_path: Path, valkey_url: str, host: str, container: str
) -> None:
    hub = Hub(tmp_path, valkey_url, PHAZE_HUB_HOST=host, container=container)
    log, _ = hub.process.communicate(timeout=60)
    assert hub.process.returncode == 2
    assert re.fullmatch(r"phaze: PHAZE_HUB_PASSWORD is not set, .*`phaze hub --first-start`\n", log)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_with_a_password_it_listens_where_it_is_told(tmp_path: Path, valkey_url: str, host: str) -> None:
    (tmp_path / "password").write_text("hush hush\n")
    (tmp_path / "user").write_text("ann\n")
    files = {"PHAZE_HUB_PASSWORD_FILE": str(tmp_path / "password"), "PHAZE_HUB_USER_FILE": str(tmp_path / "user")}
    hub = Hub(tmp_path / "data", valkey_url, PHAZE_HUB_HOST=host, container="docker", **files)
    url = hub.url().replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{url}/api/queues").status_code == 401
    assert httpx.get(f"{url}/api/queues", auth=("ann", "hush hush")).status_code == 200
    log = hub.end()
    assert "hush hush" not in log
    assert {(file.name, file.stat().st_mode & 0o777) for file in (tmp_path / "data").glob("hub.*")} == {
        ("hub.key", 0o600)
    }


def test_a_first_start_makes_a_password_and_a_token_and_says_the_password_once(tmp_path: Path, valkey_url: str) -> None:
    tokens = tmp_path / "secrets" / "agent.token"
    tokens.parent.mkdir()
    env = {"PHAZE_HUB_HOST": "0.0.0.0", "container": "docker", "PHAZE_AGENT_TOKEN_FILE": str(tokens)}
    said = []
    for _ in range(2):
        hub = Hub(tmp_path, valkey_url, "--first-start", PHAZE_AGENT_TOKEN="", **env)
        url = hub.url().replace("0.0.0.0", "127.0.0.1")
        password, token = (tmp_path / "hub.password").read_text(), tokens.read_text()
        assert httpx.get(f"{url}/api/queues", auth=("phaze", password)).status_code == 200
        bearer = {"Authorization": f"Bearer {token}"}
        assert httpx.post(f"{url}/api/agents/local/heartbeat", json={}, headers=bearer).status_code == 200
        log = hub.end()
        said.append(f"the hub's user is phaze, its password {password} (printed this once)" in log)
        assert (password in log) == said[-1]
        assert token not in log
    assert said == [True, False]
    assert {file.stat().st_mode & 0o777 for file in (tokens, tmp_path / "hub.password")} == {0o600}


def test_a_first_start_uses_what_is_set_and_says_what_it_cannot_write(tmp_path: Path, valkey_url: str) -> None:
    hub = Hub(tmp_path, valkey_url, "--first-start", PHAZE_HUB_PASSWORD="mine", container="docker")
    assert httpx.get(f"{hub.url()}/api/queues", auth=("phaze", "mine")).status_code == 200
    assert "password" not in hub.end().replace("PHAZE_HUB_PASSWORD", "")
    assert not (tmp_path / "hub.password").exists()
    lost = Hub(tmp_path, valkey_url, "--first-start", PHAZE_HUB_PASSWORD_FILE=str(tmp_path / "no" / "file"))
    log, _ = lost.process.communicate(timeout=60)
    assert lost.process.returncode == 2
    assert re.fullmatch(r"phaze: .*no/file.* cannot be used \(No such file or directory\); .*\n", log)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, whom something is denied")
def test_another_user_than_at_the_first_start_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub.password").write_text("x")
    (tmp_path / "hub.password").chmod(0o600)
    monkeypatch.setenv("PHAZE_HUB_PASSWORD_FILE", str(tmp_path / "hub.password"))
    os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=r"Permission denied.*PHAZE_UID.*runbooks/first-start\.md"):
            with_secrets()
    finally:
        os.seteuid(0)


def test_agents_are_let_in_and_out_while_the_hub_runs(
    tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHAZE_DATA_DIR", str(tmp_path))
    hub = Hub(tmp_path, valkey_url)
    url = hub.url()

    def agents(*words: str) -> Result:
        return CliRunner().invoke(commands, words)

    def beat(token: str, agent: str = "nas") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(f"{url}/api/agents/{agent}/heartbeat", json={"hostname": "h"}, headers=headers).status_code

    first = agents("add", "nas").stdout.strip()
    assert beat(first) == 200
    second = agents("rotate", "nas").stdout.strip()
    assert (beat(first), beat(second)) == (403, 200)
    assert agents("revoke", "nas").exit_code == 0
    assert beat(second) == 403
    listed = {row["id"]: row["state"] for row in json.loads(agents("list", "--json").stdout)}
    assert listed == {"local": "never", "nas": "revoked"}
    assert "revoked" in agents("list").stdout
    assert beat(agents("rotate", "nas").stdout.strip()) == 200
    for words, said in (
        (("add", "nas"), "phaze agents rotate nas"),
        (("add", "nas-io"), "must not end in -io"),
        (("add", "a b"), "must be 1 to 63"),
        (("revoke", "nobody"), "there are local, nas"),
    ):
        refused = agents(*words)
        assert isinstance(refused.exception, WrongUse)
        assert said in str(refused.exception)
        assert refused.output == ""
    assert f"or the file {tmp_path / 'agent.token'})" in agents("rotate", "local").stderr
    (tmp_path / "secret").write_text("t")
    with monkeypatch.context() as patch:
        patch.setenv("PHAZE_AGENT_TOKEN_FILE", str(tmp_path / "secret"))
        patch.delenv("PHAZE_AGENT_TOKEN", raising=False)
        assert f"or the file {tmp_path / 'secret'})" in agents("rotate", "local").stderr, "as in containers"
    assert beat("t", "local") == 403
    stored = (tmp_path / "catalogue.sqlite").read_bytes()
    assert not [token for token in (first, second) if token.encode() in stored]
    agents("revoke", "local")
    hub.end()
    again = Hub(tmp_path, valkey_url)
    url = again.url()
    assert beat("t", "local") == 403, "a start brings no revoked agent back"
    assert "agent.revoked" in again.end()


def test_what_is_announced_takes_connections() -> None:
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname(), timeout=1).close()


def test_an_address_that_is_taken_or_not_ours_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"PHAZE_HUB_PORT={port} is taken"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"PHAZE_HUB_HOST=192\.0\.2\.1"):
        listen("192.0.2.1", 0)
