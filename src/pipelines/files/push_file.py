"""push_file: a file to another machine, rsync over ssh, and there compared.

The file arrives at its path below the scan's root, below `destination`: `/music/a/b.mp3` found below `/music` becomes
`<destination>/a/b.mp3`. A run that is cut off leaves what has arrived in a folder `.phaze-partial` beside it, and the
next one sends what is missing. The far side puts the whole file in place at once, over an older one of that name.
Where no next one follows (the file is gone, changed or refused), what has arrived is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import InputChanged, InputRejected, RecordNotFoundError, TaskError
from pipelines.files import rsync, ssh
from pipelines.files.digests import digest
from pipelines.files.rsync import Stats
from pipelines.files.ssh_target import HOST, USER
from pipelines.files.transfer import (
    DISK_RATE,
    Mismatch,
    Stalled,
    explained,
    look,
    moved,
    on_disk,
    sha256_named,
    transfer_seconds,
)
from pipelines.payload import FilePayload, TaskResult, decode_path, encode_path

PASSES = 3
"""Times that a file is sent before it is said that it does not arrive as it is."""

FORGETTING = 45.0
"""Seconds to remove what has arrived of a file that can come to nothing; after them it is left there."""

Verified = Literal["far-sha256", "rsync-checksum"]


def _folder(encoded: str) -> str:
    path = os.fsencode(decode_path(encoded))
    if not path.startswith(b"/") or b"\0" in path or b"\n" in path or b".." in path.split(b"/"):
        raise ValueError("must be an absolute folder, without .. and line breaks")
    if rsync.is_pattern(path):
        raise ValueError("must hold none of * ? [ and backslash: the far rsync would take it for a pattern")
    return encoded


class PushPayload(FilePayload):
    """One file to push to `user@host:destination`. The agent's own key (`ctx.ask("ssh-key")`) opens the door."""

    host: str = Field(max_length=255, pattern=HOST)
    port: int = Field(default=22, ge=1, le=65_535)
    user: str = Field(max_length=64, pattern=USER)
    destination: Annotated[str, AfterValidator(_folder)]
    """Percent-encoded absolute folder on the other machine, which is there already."""
    host_keys: list[str] = Field(min_length=1, max_length=20)
    """Public keys as known_hosts or ssh-keyscan has them; the host must show one of these."""
    stall: float = Field(default=60.0, ge=1, le=3600)
    """Seconds in which something must move on the line."""


class Push(TaskResult):
    """A file that is on the other machine, and how that is known.

    `verified`: `far-sha256`: a program of the far side hashed what is there, and it is the file's SHA-256;
    `rsync-checksum`: it has none, and a second pass of rsync (`--checksum`, its own hash of both files) found no
    difference. `bytes`: the file's; `sent`: all bytes that went over the line; `resumed`: bytes of the file that were
    there already; `rate`: bytes sent a second.
    """

    format: Literal[1] = 1
    host: str = ""
    path: str = Field(default="", description="percent-encoded, on the other machine")
    sha256: str = Field(default="", description="hex, of the file; compared with the far one's")
    verified: Verified | Literal[""] = ""
    bytes: int = 0
    sent: int = 0
    resumed: int = 0
    passes: int = 0
    seconds: float = 0.0
    rate: float = 0.0


def endpoint(payload: PushPayload) -> str:
    """The dependency: `ssh:<host>:<port>`."""
    return f"ssh:{payload.host}:{payload.port}"


@task(Policy(timeout=transfer_seconds, outside_effects=True, dependency=endpoint))
async def push_file(ctx: TaskContext, payload: PushPayload) -> Push:
    """The file in its place on the other machine, compared with ours.

    Raises InputChanged, RecordNotFoundError, InputRejected (`host-key-changed`, `host-key-unknown`,
    `host-key-unreadable`, `name-too-long`, `name-not-allowed`, `too-large`, `not-a-file`), each after what has arrived
    is removed, as far as it can be; and what is retried: ToolMissing (here or there), Unreachable, Stalled, Refused,
    Mismatch, Unreadable, NotGranted.
    """
    ssh.sweep()
    for name in ("rsync", "ssh"):
        ssh.tool(name)
    try:
        await look(payload)
        async with _folder_for(ctx, payload) as folder:
            return await _Pushing(ctx, payload, folder).run()
    except (InputChanged, InputRejected, RecordNotFoundError):
        await _forget(ctx, payload)
        raise


@contextlib.asynccontextmanager
async def _folder_for(ctx: TaskContext, payload: PushPayload) -> AsyncIterator[Path]:
    answer = await ctx.ask("ssh-key", {"host": payload.host})
    with ssh.private_folder(
        host=payload.host,
        port=payload.port,
        user=payload.user,
        key=str(answer["key"]),
        host_keys=payload.host_keys,
        stall=payload.stall,
    ) as folder:
        yield folder


async def _forget(ctx: TaskContext, payload: PushPayload) -> None:
    """Remove what earlier runs have left of the file on the far side; what fails is left there."""
    with contextlib.suppress(TaskError, OSError, TimeoutError):
        async with asyncio.timeout(FORGETTING), _folder_for(ctx, payload) as folder:
            far_folder, name = os.path.split(far_path(payload))
            await ssh.remove(folder, b"/".join((far_folder, rsync.PARTIAL.encode(), name)), FORGETTING)


def far_path(payload: PushPayload) -> bytes:
    """Where the file lies on the other machine."""
    _, name = rsync.below(decode_path(payload.path), decode_path(payload.root))
    return os.fsencode(decode_path(payload.destination)).rstrip(b"/") + b"/" + name


class _Pushing:
    """One run, out of the private folder."""

    def __init__(self, ctx: TaskContext, payload: PushPayload, folder: Path) -> None:
        self._ctx = ctx
        self._payload = payload
        self._folder = folder
        path = decode_path(payload.path)
        self._source, self._name = rsync.below(path, decode_path(payload.root))
        self._destination = os.fsencode(decode_path(payload.destination))
        self._limit = transfer_seconds(payload)
        self._total = Stats()
        self._started = time.monotonic()

    async def run(self) -> Push:
        payload = self._payload
        before = await look(payload)
        expected = sha256_named(payload) or await self._local()
        for number in range(1, PASSES + 1):
            await self._ctx.check()
            await self._send([] if number == 1 else ["--ignore-times"])
            await self._ctx.progress(1.0, "comparing")
            found = await ssh.sha256_of(self._folder, far_path(payload), self._limit)
            await look(payload, before)
            if found == expected:
                return self._result("far-sha256", expected, number)
            if await self._local() != expected:
                raise InputChanged(f"{decode_path(payload.path)} is not as it was scanned")
            if found is None and (await self._send(["--checksum"])).transferred == 0:
                return self._result("rsync-checksum", expected, number)
        raise Mismatch(f"what is on {payload.host} after {PASSES} passes is not the file that was sent")

    async def _send(self, extra: list[str]) -> Stats:
        """One pass of rsync. Raises Stalled and what its end means."""
        stall, size = self._payload.stall, self._payload.size
        # Before the first byte and after the last one a disk may have to be read through; in between bytes must move.
        # rsync's own --timeout does not notice a line that is dead one way only.
        quiet = stall + size / DISK_RATE
        last = 0
        said = bytearray()

        async def on_output(block: bytes) -> None:
            nonlocal last
            said.extend(block)
            del said[:-500]
            found = rsync.progress_of(bytes(said))
            if found is not None and found[0] != last:
                done = last = found[0]
                watch.reschedule(asyncio.get_running_loop().time() + (stall if done < size else quiet))
                rate = done / max(time.monotonic() - self._started, 1e-3)
                await self._ctx.progress(min(1.0, done / max(size, 1)), moved(done, size, rate))

        argv = rsync.arguments(self._source, self._destination, self._payload.stall, extra)
        try:
            async with asyncio.timeout(quiet) as watch:
                names = rsync.names(self._name)
                done = await ssh.run(self._folder, argv, stdin=names, limit=self._limit, on_output=on_output)
        except TimeoutError:
            raise Stalled(f"{self._payload.host}: nothing moved for {stall:.0f} s, at {last} of {size} bytes") from None
        if done.code != 0:
            await look(self._payload)  # of a file that is gone rsync says no more than that something is
            raise rsync.trouble(done, self._payload.host)
        stats = rsync.stats_of(done.out)
        total = self._total
        self._total = Stats(
            total.transferred + stats.transferred,
            total.literal + stats.literal,
            total.matched + stats.matched,
            total.sent + stats.sent,
        )
        return stats

    async def _local(self) -> str:
        """The file's own SHA-256, now."""

        async def on_bytes(done: int) -> None:
            await self._ctx.progress(0.0, f"hashed {done >> 20} of {self._payload.size >> 20} MB")

        try:
            found = await digest(decode_path(self._payload.path), self._payload.size, on_bytes)
        except OSError as error:
            raise await on_disk(explained, error, self._payload) from error
        return found.sha256.hex()

    def _result(self, verified: Verified, sha256: str, passes: int) -> Push:
        seconds = time.monotonic() - self._started
        return Push(
            host=self._payload.host,
            path=encode_path(far_path(self._payload)),
            sha256=sha256,
            verified=verified,
            bytes=self._payload.size,
            sent=self._total.sent,
            resumed=self._total.matched,
            passes=passes,
            seconds=round(seconds, 3),
            rate=round(self._total.sent / max(seconds, 1e-3), 1),
        )
