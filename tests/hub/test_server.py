from __future__ import annotations

import contextlib
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

from agent.errors import ConfigError
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import FINGERPRINT
from agent.hub.server import listen
from tests.hub.deliveries import closing, part, result, seen


class Hub:
    """A hub in its own process."""

    def __init__(self, data: Path, redis_url: str | None, **env: str) -> None:
        self.data = data
        given = {"PHAZE_DATA_DIR": str(data), "PHAZE_HUB_PORT": "0", "PHAZE_AGENT_TOKEN": "t", **env}
        if redis_url is not None:
            given["PHAZE_REDIS_URL"] = redis_url
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent.cli", "hub"],
            env={**os.environ, **given},
            stderr=subprocess.PIPE,
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
            return self.process.communicate(timeout=10)[1]
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
from pipelines.music import duplicates

def duplicate_groups(prints):
    pathlib.Path(os.environ["SLOW_PID"]).write_text(f"{os.getpid()} ")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass
    return []

duplicates.duplicate_groups = duplicate_groups
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


def test_what_a_killed_hub_owed_the_next_one_queues(tmp_path: Path, valkey_url: str) -> None:
    hub = Hub(tmp_path, valkey_url)
    body = {"agent_id": "local", "roots": ["/m"]}
    answer = httpx.post(f"{hub.url()}/api/scans", json=body, headers={"Authorization": "Bearer t"})
    [scan_id] = answer.json()["scans"]
    hub.end(signal.SIGKILL)
    with Catalogue(tmp_path) as catalogue:
        catalogue.forget(catalogue.unchecked(-60, 10))
        assert catalogue.owed_keys(10) == {("scan_directory", scan_id)}
    again = Hub(tmp_path, valkey_url)
    url, end = again.url(), time.monotonic() + 10
    while httpx.get(f"{url}/api/status").json()["lanes"]["meta"]["queued"] != 1:
        assert time.monotonic() < end
        time.sleep(0.05)
    again.end()


def test_it_needs_a_queue_server(tmp_path: Path) -> None:
    hub = Hub(tmp_path, None)
    _, log = hub.process.communicate(timeout=20)
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
