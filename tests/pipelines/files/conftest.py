from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.faulty import FaultyProxy, faulty_proxy
from tests.pipelines.files.bucket import BUCKET, PART, Bucket


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    """moto's S3 API in a process of its own."""
    port = free_port()
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    # S3 takes no part under 5 MiB but the last; less makes the tests quick.
    env = {**os.environ, "S3_UPLOAD_PART_MIN_SIZE": str(PART)}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, "moto's server ended"
            try:
                httpx.get(f"http://127.0.0.1:{port}/moto-api/", timeout=5)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def proxy(moto_port: int) -> AsyncIterator[FaultyProxy]:
    """The way to an empty store that knows one bucket."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{moto_port}") as client:
        await client.post("/moto-api/reset")
        assert (await client.put(f"/{BUCKET}")).status_code == 200
    async with faulty_proxy(moto_port) as running:
        yield running


@pytest.fixture
def bucket(proxy: FaultyProxy, moto_port: int) -> Bucket:
    """What is in it, seen without the proxy; and contexts for tasks, which go through the proxy."""
    return Bucket(proxy.url, f"http://127.0.0.1:{moto_port}")
