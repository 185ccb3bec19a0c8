"""Real file systems that the moves have to cope with, and real machines to send files to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.faulty import FaultyProxy, faulty_proxy
from tests.object_store import ACCESS_KEY, SECRET_KEY, new_bucket, object_store
from tests.pipelines.files.bucket import BUCKET, PART, Bucket


def _run(*argv: object) -> str:
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", "size=1m", "none", place)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount")
    yield place
    _run("umount", "--lazy", place)


@pytest.fixture
def exfat(tmp_path: Path) -> Iterator[Path]:
    """exFAT by FUSE: names are one whatever their case, no hard links, no flags to rename, inodes as it likes."""
    place, image = tmp_path / "exfat", tmp_path / "exfat.img"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    device = ""
    try:
        _run("mkfs.exfat", image)
        device = _run("losetup", "--find", "--show", image)
        _run("mount.exfat-fuse", device, place)
    except (OSError, subprocess.CalledProcessError):
        if device:
            _run("losetup", "--detach", device)
        pytest.skip("no exfat-fuse here, or this is not root")
    assert os.path.ismount(place)
    yield place
    _run("umount", "--lazy", place)
    _run("losetup", "--detach", device)


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


@pytest.fixture(scope="session")
def strict_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store that takes no request whose signature is not right."""
    with object_store(tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
async def strict_proxy(strict_url: str) -> AsyncIterator[FaultyProxy]:
    """The way to it."""
    async with faulty_proxy(int(strict_url.rpartition(":")[2])) as running:
        yield running


@pytest.fixture
def strict(strict_proxy: FaultyProxy, strict_url: str) -> Bucket:
    """An empty bucket of it, with the right keys."""
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return Bucket(strict_proxy.url, strict_url, bucket=new_bucket(strict_url), **keys)
