"""The io worker killed in the middle of its transfers: real processes, a store that checks signatures, an sshd."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis.asyncio import Redis

from agent.hub.catalogue import Catalogue
from agent.lanes import queue_name
from agent.phoenix import keys
from agent.phoenix.letters import Letters
from agent.producer import Producer
from pipelines.files import rsync
from pipelines.files.push_file import PushPayload
from pipelines.files.s3_upload import S3UploadPayload
from pipelines.payload import encode_path
from tests.conftest import REPO
from tests.far_side import FarSide, far_side
from tests.faulty import Fault, FaultyLine, FaultyProxy, faulty_line
from tests.hub.conftest import catalogue, serving
from tests.hub.deliveries import AGENT, TOKEN, scan
from tests.pipelines.files.bucket import MIB, Bucket
from tests.pipelines.files.conftest import strict, strict_proxy, strict_url

__all__ = ["catalogue", "strict", "strict_proxy", "strict_url"]

PART = 8 * MIB
PARTS = 4
PUSHED = 12 * MIB
WITHIN = 60.0
GONE = 10.0
"""Seconds for what a killed worker had started to be gone: less than ssh takes to notice a line that is dead."""


async def until(holds: Callable[[], Any], within: float = WITHIN) -> None:
    async with asyncio.timeout(within):
        while not holds():
            await asyncio.sleep(0.05)


@dataclass
class Transfers:
    """Two files on their way, one to the store and one to the other machine; each stands still half-way."""

    upload: Path
    push: Path
    there: Path
    temporary: Path
    environment: dict[str, str]
    log: Path
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self) -> None:
        """One more worker."""
        with self.log.open("ab") as log:
            argv = (sys.executable, "-m", "tests.agent.io_worker")
            self.workers.append(
                await asyncio.create_subprocess_exec(*argv, env=self.environment, cwd=REPO, stdout=log, stderr=log)
            )

    async def kill(self) -> None:
        """kill -9 of the worker; what it had started ends with it."""
        below = psutil.Process(self.workers[-1].pid).children(recursive=True)
        assert {"rsync", "ssh"} <= {child.name() for child in below}
        self.workers[-1].kill()
        await self.workers[-1].wait()
        await until(lambda: not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], GONE)


@pytest.fixture
async def half_way(
    catalogue: Catalogue, redis: Redis, valkey_url: str, strict: Bucket, strict_proxy: FaultyProxy, tmp_path: Path
) -> AsyncIterator[Transfers]:
    """Both have got so far, and their worker has been killed; what held them up is gone."""
    folders = {name: tmp_path / name for name in ("music", "there", "far", "temporary")}
    for folder in folders.values():
        folder.mkdir()
    music = folders["music"]
    sizes = {"upload.flac": PARTS * PART, "push.flac": PUSHED, "stays.flac": 10}
    found = []
    for name, size in sizes.items():
        path = music / name
        path.write_bytes(os.urandom(size))
        found.append(
            {"path": encode_path(path), "size": size, "mtime_ns": path.stat().st_mtime_ns, "sha256": sha256(path)}
        )
    scan(catalogue, encode_path(music), found)
    host = strict.url.removeprefix("http://")
    s3 = {
        "s3_bucket": strict.signer().bucket, "s3_endpoint": strict.url, "s3_access_key_id": "AK",
        "s3_secret_access_key": "secret-key", "s3_addressing": "path",
    }  # fmt: skip
    strict_proxy.faults = [Fault(lambda request: request.part >= 3, times=99, hang=MIB)]
    with far_side(folders["far"]) as far:
        async with serving(catalogue, redis, **s3) as hub, faulty_line(far.port) as line:
            line.rate = 8 * MIB
            environment = {
                **os.environ, "PHAZE_AGENT_LANE": "io", "PHAZE_REDIS_URL": valkey_url, "PHAZE_HUB_URL": hub,
                "PHAZE_AGENT_TOKEN": TOKEN, "PHAZE_PUSH_KEY_FILE": str(far.folder / "mine"), "PHAZE_LOG_FORMAT": "json",
                "TMPDIR": str(folders["temporary"]),
            }  # fmt: skip
            running = Transfers(
                music / "upload.flac", music / "push.flac", folders["there"], folders["temporary"], environment,
                tmp_path / "worker.log",
            )  # fmt: skip
            files = [
                {**common, "root": encode_path(music), "version": f"{common.pop('sha256')}:test"} for common in found
            ]
            producer = Producer(redis)
            await producer.enqueue(AGENT, "s3_upload", "1", S3UploadPayload(**files[0], store=host, parallel=2))
            await producer.enqueue(AGENT, "push_file", "2", pushing(files[1], far, line, folders["there"]))
            await running.start()
            try:
                await until(lambda: line.sent > PUSHED / 2)
                line.rate = 64 << 10
                await until(lambda: len(stored(strict)) == 2)
                assert [path for path in folders["temporary"].rglob("key") if path.read_text() == far.key]
                await running.kill()
                line.rate, strict_proxy.faults = None, []
                strict_proxy.seen.clear()
                yield running
            finally:
                for worker in running.workers:
                    with contextlib.suppress(ProcessLookupError):
                        worker.kill()
                    await worker.wait()


def pushing(common: dict[str, Any], far: FarSide, line: FaultyLine, there: Path) -> PushPayload:
    return PushPayload(
        **common, host="127.0.0.1", port=line.here, user=far.user, destination=encode_path(there),
        host_keys=[far.host_key], stall=30,
    )  # fmt: skip


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def key_of(half_way: Transfers) -> str:
    return f"{AGENT}{half_way.upload}"


def stored(bucket: Bucket) -> list[int]:
    """The parts of all unfinished uploads."""
    found: list[int] = []
    for key, upload_id in bucket.all_unfinished():
        found += bucket.stored_parts(upload_id, key)
    return found


async def test_the_next_worker_sends_what_is_missing_and_each_result_is_recorded_once(
    half_way: Transfers, catalogue: Catalogue, strict: Bucket, strict_proxy: FaultyProxy, redis: Redis
) -> None:
    partial = half_way.there / rsync.PARTIAL / half_way.push.name
    await until(partial.exists)
    arrived = partial.stat().st_size
    await half_way.start()
    await until(lambda: len(catalogue.transfers(9)) == 2)
    found = {row.service: row for row in catalogue.transfers(9)}
    upload, push = found["s3_upload"], found["push_file"]
    assert (upload.outcome, push.outcome, upload.attempts, push.attempts) == ("done", "done", 1, 1)
    assert sorted(strict_proxy.parts()) == [3, 4]
    assert (upload.result["resumed"], upload.result["sent"], upload.result["verified"]) == (2, 2 * PART, "store-sha256")
    assert strict.objects() == [key_of(half_way)]
    assert strict.sha256(key_of(half_way)) == sha256(half_way.upload)
    assert arrived > PUSHED / 4
    assert push.result["resumed"] >= arrived - MIB
    assert push.result["sent"] < PUSHED - arrived + 2 * MIB
    assert [path for path in half_way.there.rglob("*") if path.is_file()] == [half_way.there / half_way.push.name]
    assert sha256(half_way.there / half_way.push.name) == sha256(half_way.push)
    assert not strict.all_unfinished()
    assert not list(half_way.temporary.rglob("*key*"))
    queue = queue_name(AGENT, "io")
    assert not await redis.zcard(keys.incomplete_key(queue))


async def test_of_a_transfer_that_ends_as_a_dead_letter_no_part_and_no_key_is_left(
    half_way: Transfers, catalogue: Catalogue, strict: Bucket, redis: Redis
) -> None:
    half_way.upload.unlink()
    half_way.push.unlink()
    await half_way.start()
    letters = Letters(redis, keys.dead_letters_key, ("s3_upload", "push_file"))
    async with asyncio.timeout(WITHIN):
        while len(found := await letters.all()) < 2:
            await asyncio.sleep(0.05)
    assert {letter.key for letter in found} == {"s3_upload:1", "push_file:2"}
    assert not strict.all_unfinished()
    assert not strict.objects()
    assert not list(half_way.temporary.iterdir())
    assert not catalogue.transfers(9)
