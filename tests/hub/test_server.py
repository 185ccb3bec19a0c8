from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from agent.errors import ConfigError
from agent.hub.catalogue import Catalogue
from agent.hub.server import listen


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


def test_an_address_that_is_taken_or_not_ours_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"PHAZE_HUB_PORT={port} is taken"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"PHAZE_HUB_HOST=192\.0\.2\.1"):
        listen("192.0.2.1", 0)
