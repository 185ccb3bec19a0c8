"""The queue server under test: redis-server where it is installed, else the embedded Valkey; and its counters."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import redis

WORKER_CORE, OTHER_CORE = 1, 0
"""The worker has a core of its own; the producer, the server and the harness share the other one."""


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes that start within run on `core`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def binary() -> str:
    """The server's program."""
    found = shutil.which("redis-server")
    if found is None:
        from agent.valkey import get_binary_path

        found = str(get_binary_path())
    return found


@contextlib.contextmanager
def running() -> Iterator[str]:
    """A server of our own on a free port, without persistence, until the block ends: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"redis://127.0.0.1:{port}/0"
    with tempfile.TemporaryDirectory() as folder:
        options = {"port": str(port), "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder}
        command = [binary(), *(part for name, value in options.items() for part in (f"--{name}", value))]
        with pinned(OTHER_CORE):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = redis.Redis.from_url(url)
            for _ in range(100):
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    break
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(20)


class Server:
    """What the server counts."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url, decode_responses=True)

    @property
    def version(self) -> str:
        """Name and version, as in `Redis 7.0.15`."""
        info = self.client.info("server")
        valkey = info.get("valkey_version")
        return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"

    def wipe(self, *, sync: bool = False) -> None:
        """Empty it; `sync`: every write goes to the disk before it is answered from now on."""
        self.client.flushall()
        self.client.script_flush()
        self.client.config_set("appendfsync", "always" if sync else "everysec")
        self.client.config_set("appendonly", "yes" if sync else "no")

    def reset(self) -> None:
        """Count from here."""
        self.client.config_resetstat()

    def counters(self, jobs: int) -> dict[str, float]:
        """Commands, those within scripts included, and round trips (reads of a socket), per job."""
        stats = self.client.info("commandstats")
        own = ("cmdstat_info", "cmdstat_config")
        calls = sum(value["calls"] for name, value in stats.items() if not name.startswith(own))
        return {"commands": calls / jobs, "trips": self.client.info("stats")["total_reads_processed"] / jobs}
