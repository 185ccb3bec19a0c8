"""The Docker engine that tests in containers want (marker `compose`)."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from functools import cache
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from tests.conftest import REPO
from tests.servers import READY, free_port

VALKEY = "valkey/valkey:8.1"


def starter() -> Path:
    """The script that starts an engine where there is none: PHAZE_TEST_DOCKER_UP."""
    return Path(os.environ.get("PHAZE_TEST_DOCKER_UP") or REPO.parent / "shared/docker/up")


@cache
def _why_not() -> str | None:
    """Why no containers can be run here; None where they can."""
    try:
        for command in (["docker", "info"], ["docker", "compose", "version"]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode:
                return f"`{' '.join(command)}`: {(done.stderr or done.stdout).strip()[-200:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def must_answer() -> None:
    """Skip the test where no engine with Compose answers; fail it where CI is set."""
    if (reason := _why_not()) is not None:
        said = f"no Docker engine with Compose answers ({reason}); {starter()} starts one, where it is there"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(said)


class QueueServer:
    """The image that people run, in a container; a tests.servers.Server."""

    def __init__(self, *settings: str) -> None:
        must_answer()
        testcontainers_config.ryuk_disabled = True  # who removes it if we cannot is an image more, from a registry
        self._port = free_port()  # the engine's own choice is another one after each start
        self.url = f"redis://127.0.0.1:{self._port}"
        self._made = DockerContainer(VALKEY).with_command(["valkey-server", "--save", "", *settings])
        self._made.ports["6379/tcp"] = ("127.0.0.1", self._port)  # with_bind_ports: for all the network

    def start(self) -> None:
        if self._made.status == "not_started":
            self._made.start()
        else:
            self._made.get_wrapped_container().start()
        self._answers()

    def _answers(self) -> None:
        deadline = time.monotonic() + READY
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as line:
                line.sendall(b"PING\r\n")
                if line.recv(16).startswith(b"+PONG"):
                    return
            time.sleep(0.05)
        raise TimeoutError(self._made.get_logs())

    def kill(self) -> None:
        self._made.get_wrapped_container().kill()

    def close(self) -> None:
        self._made.stop()
