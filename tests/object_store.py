"""An S3 store that looks at every signature: SeaweedFS in one process, with one key pair, on loopback ports."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.servers import WHEELS

ACCESS_KEY, SECRET_KEY = "AK", "secret-key"
PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
READY = 60.0
SMALLEST_PART = 5 << 20
"""Bytes of a part that is not the last; of smaller ones it makes no object, as S3."""


def _free_ports(count: int) -> list[int]:
    """All are held until all are found, so that no two are the same."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _program() -> Path:
    found = WHEELS / "bin" / "weed"
    if not found.exists():
        reason = "no SeaweedFS is here; `make test` fetches it where there is a wheel"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[str]:
    """Its URL; what it stores is in `folder`. Skipped where the program is not, failed where CI is set."""
    program = _program()
    identity = {
        "name": "phaze",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}), "utf-8")
    names = [f"-{name}{kind}" for name in PORTS for kind in ("", ".grpc")]
    ports = dict(zip(names, map(str, _free_ports(len(names))), strict=True))
    argv = [
        *(str(program), "-logtostderr=true", "server", "-dir", str(folder), "-ip", "127.0.0.1"),
        *("-ip.bind", "127.0.0.1", "-s3", "-s3.config", str(folder / "s3.json"), "-s3.iam=false"),
        *("-s3.port.iceberg", "0", "-s3.port.lance", "0", "-volume.max", "500", "-master.volumeSizeLimitMB", "64"),
        *(word for pair in ports.items() for word in pair),
    ]
    with (folder / "log").open("wb") as log:
        env = {**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}  # one volume for a bucket, not seven
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{ports['-s3.port']}"
    try:
        deadline = time.monotonic() + READY
        while not _answers(url):
            said = (folder / "log").read_text("utf-8", "replace")[-2000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        yield url
    finally:
        process.kill()  # asked to stop, it takes a quarter of a minute
        process.wait()


def new_bucket(url: str) -> str:
    """The name of a new bucket."""
    import botocore.session

    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    client = botocore.session.Session().create_client("s3", region_name="us-east-1", endpoint_url=url, **keys)
    name = f"archive-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    client.close()
    return name


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    return False
