"""s3_upload: a file to an object store, in parts, by signed requests.

    hash the file -> is the object there already? -> unfinished upload, or a new one
        -> list its parts -> send what is missing or wrong -> list again -> complete -> verify

The store's own list is the truth about what has arrived: a run after a kill sends only what the list lacks, and what
the store answered to a single part decides nothing. The credentials stay with the control plane, which signs each
request when it is about to be sent (`ctx.ask("s3", ...)`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterable
from typing import BinaryIO, Literal

from pydantic import Field

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import InputChanged, InputRejected, RecordNotFoundError, TaskError
from pipelines.files.digests import LARGEST_PART, Digests, Part, base64_of, digest, part_size
from pipelines.files.s3_answers import Answer, Listed, UploadGone
from pipelines.files.s3_signer import Wanted
from pipelines.files.s3_store import Store, http_client
from pipelines.files.transfer import (
    LEAST_RATE,
    Mismatch,
    Rate,
    Refused,
    explained,
    look,
    moved,
    on_disk,
    sha256_named,
    transfer_seconds,
)
from pipelines.payload import FilePayload, TaskResult, decode_path

BLOCK = 64 << 10
"""Bytes of a part in memory at once; each must be taken by the network within `stall` seconds."""

ROUNDS = 3
"""Of sending what the store's list lacks. Parts that are still wrong then are damaged on their way every time."""

BEGINNINGS = 3
"""Uploads begun in one run; somebody else throws them away if that is not enough."""

LEAST_PART_SECONDS = 60.0
PATIENCE = 8.0
"""A part may take so many times what it takes at the rate of the run so far; then its connection is given up."""

ABORTING = 30.0
"""Seconds to throw the parts of an upload away that can come to nothing."""

Verified = Literal["store-sha256", "store-md5", "read-back", ""]


class S3UploadPayload(FilePayload):
    """One file to upload. Where to, and with which credentials, the control plane knows by the record's id."""

    store: str = Field(max_length=255, pattern=r"^[A-Za-z0-9.:\[\]_-]+$")
    """The store's host, for its circuit."""
    parallel: int = Field(default=4, ge=1, le=64)
    """Parts that are sent at once."""
    stall: float = Field(default=60.0, gt=0, le=3600)
    """Seconds in which something must move on each connection."""


class Upload(TaskResult):
    """An object that is in the store, and how that is known.

    `verified`: `store-sha256`: the store computed SHA-256 of what arrived (of several parts: of each part, and the hash
    of these) and it is the file's; `store-md5`: the same with MD5, by the ETag; `read-back`: the object was read and
    its SHA-256 is the file's. `bytes`: the file's; `sent`: the bytes of parts that this run sent, those that were sent
    again included; `resumed`: parts that were there already; `rate`: bytes sent a second.
    """

    format: Literal[1] = 1
    bucket: str = ""
    key: str = ""
    sha256: str = Field(default="", description="hex, of the file")
    etag: str = Field(default="", description="as the store answered")
    verified: Verified = ""
    bytes: int = 0
    sent: int = 0
    parts: int = 0
    part_size: int = 0
    resumed: int = 0
    retries: int = 0
    seconds: float = 0.0
    rate: float = 0.0


def endpoint(payload: S3UploadPayload) -> str:
    """The dependency: `s3:<host>`, so that one store's outage holds up no other."""
    return f"s3:{payload.store}"


@task(Policy(timeout=transfer_seconds, outside_effects=True, dependency=endpoint))
async def s3_upload(ctx: TaskContext, payload: S3UploadPayload) -> Upload:
    """The file as an object, complete and verified, or nothing that can be seen.

    Raises InputChanged, RecordNotFoundError and InputRejected (`not-a-file`, `too-large`, `name-too-long`), each after
    the parts sent so far are thrown away; and what is retried: Unreachable, Stalled, Refused, Mismatch, Unreadable,
    NotAnswered, NotGranted.
    """
    async with http_client(payload.parallel, payload.stall) as client:
        store = Store(ctx, client, stall=payload.stall)
        try:
            return await _Transfer(ctx, payload, store).run()
        except (InputChanged, InputRejected, RecordNotFoundError):
            await _abort_all(store)
            raise


async def _abort_all(store: Store, keep: str = "") -> None:
    """Throw away the object's unfinished uploads. What fails is left to the bucket's own rule for such."""
    with contextlib.suppress(TaskError, TimeoutError):
        async with asyncio.timeout(ABORTING):
            for upload_id in await store.unfinished():
                if upload_id != keep:
                    await store.abort(upload_id)


class _Transfer:
    """One run."""

    def __init__(self, ctx: TaskContext, payload: S3UploadPayload, store: Store) -> None:
        self._ctx = ctx
        self._payload = payload
        self._store = store
        self._path = decode_path(payload.path)
        self._rate = Rate()
        self._there = 0
        """Bytes that the store has."""
        self._mine: dict[int, str] = {}
        """Part number -> the ETag that this run was given for it."""
        self._resumed = 0

    async def run(self) -> Upload:
        payload = self._payload
        if part_size(payload.size) > LARGEST_PART:
            raise InputRejected("too-large", f"{payload.size} bytes; a store takes 10,000 parts of 5 GiB at most")
        before = await look(payload)
        digests = await self._hash()
        await look(payload, before)
        head = await self._store.head()
        self._rate = Rate()
        if head is None or not await self._is_it(head, digests, read=False):
            try:
                with await on_disk(self._path.open, "rb") as file:
                    await self._send(file, digests, before)
            except OSError as error:
                if isinstance(error, ConnectionError):
                    raise
                raise await on_disk(explained, error, payload) from error
            head = await self._store.head()
            if head is None:
                raise Refused(f"{self._store.host} does not show the object that it took; allow s3:GetObject")
        verified = await self._is_it(head, digests, read=True)
        if not verified:
            raise Mismatch(f"the object {self._store.key} is not the file that was sent; it is sent again")
        await self._ctx.progress(1.0, moved(digests.size, digests.size, self._rate.per_second))
        return self._result(head, digests, verified)

    async def _hash(self) -> Digests:
        size = self._payload.size

        async def on_bytes(done: int) -> None:
            await self._ctx.progress(0.0, f"hashed {done >> 20} of {size >> 20} MB")

        try:
            digests = await digest(self._path, size, on_bytes)
        except OSError as error:
            raise await on_disk(explained, error, self._payload) from error
        named = sha256_named(self._payload)
        if digests.size != size or named not in ("", digests.sha256.hex()):
            raise InputChanged(f"{self._path} is not as it was scanned")
        return digests

    # Sending.

    async def _send(self, file: BinaryIO, digests: Digests, before: os.stat_result) -> None:
        if len(digests.parts) == 1:
            (part,) = digests.parts
            await self._ctx.check()
            await self._send_part(file, "", part, digests.sha256.hex())
            return
        for _ in range(BEGINNINGS):
            try:
                upload_id = await self._upload(digests)
                listed = await self._send_parts(file, upload_id, digests)
                sums = all(part.sha256 for part in listed.values())
                own = {part.number: base64_of(part.sha256) for part in digests.parts}
                parts = {number: listed[number]._replace(sha256=own[number]) for number in own}
                await look(self._payload, before)
                await self._ctx.check()
                await self._store.complete(upload_id, parts, sums=sums)
                await _abort_all(self._store, keep=upload_id)
                return
            except UploadGone:
                head = await self._store.head()
                if head is not None and await self._is_it(head, digests, read=False):
                    return  # the answer to `complete` was lost, or another run was faster
        raise Refused("the upload disappears again and again; does a rule of the bucket or another program abort it?")

    async def _upload(self, digests: Digests) -> str:
        unfinished = await self._store.unfinished()
        self._mine = {}
        return unfinished[-1] if unfinished else await self._store.create(digests.sha256.hex())

    async def _send_parts(self, file: BinaryIO, upload_id: str, digests: Digests) -> dict[int, Listed]:
        """Until the store's list has every part right; that list."""
        for number in range(ROUNDS + 1):
            listed = await self._store.parts(upload_id)
            wrong = self._wrong(digests, listed)
            self._there = digests.size - sum(part.size for part in wrong)
            if number == 0:
                self._resumed = len(digests.parts) - len(wrong)
            if not wrong:
                return listed
            if number < ROUNDS:
                await self._send_all(file, upload_id, wrong)
        raise Mismatch(f"{len(wrong)} parts arrive damaged each time; the first is {wrong[0].number}")

    def _wrong(self, digests: Digests, listed: dict[int, Listed]) -> list[Part]:
        """The parts that the store has not, or not right: by its SHA-256, else by an ETag that is the MD5.

        Where no ETag is one (a store that encrypts), a part is right if this run sent it; the whole is looked at later.
        """
        opaque = not any(part.md5.hex() == listed[part.number].etag for part in digests.parts if part.number in listed)

        def is_right(part: Part, found: Listed | None) -> bool:
            if found is None or found.size != part.size:
                return False
            if found.sha256:
                return found.sha256 == base64_of(part.sha256)
            return found.etag == (self._mine.get(part.number) if opaque else part.md5.hex())

        return [part for part in digests.parts if not is_right(part, listed.get(part.number))]

    async def _send_all(self, file: BinaryIO, upload_id: str, parts: Iterable[Part]) -> None:
        waiting = iter(parts)

        async def send() -> None:
            for part in waiting:
                await self._ctx.check()
                answer = await self._send_part(file, upload_id, part)
                self._mine[part.number] = answer.headers.get("etag", "").strip('"')

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._payload.parallel):
                    group.create_task(send())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    async def _send_part(self, file: BinaryIO, upload_id: str, part: Part, content: str = "") -> Answer:
        wanted = Wanted(
            kind="part" if upload_id else "put",
            upload_id=upload_id,
            number=part.number if upload_id else 0,
            sha256=base64_of(part.sha256),
            md5=base64_of(part.md5),
            content=content,
        )
        answer = await self._store.put(wanted, lambda: self._body(file, part), part.size, self._limit(part.size))
        self._there += part.size
        rate = self._rate.per_second
        fraction = min(1.0, self._there / max(self._payload.size, 1))
        await self._ctx.progress(fraction, moved(self._there, self._payload.size, rate))
        return answer

    def _limit(self, size: int) -> float:
        """Seconds for a part: by the run's rate once there is one, with patience; at 16 KiB/s all the same."""
        rate = self._rate.per_second / self._payload.parallel
        slowest = size / LEAST_RATE + LEAST_PART_SECONDS
        if self._rate.bytes <= size:
            return slowest
        return min(slowest, max(LEAST_PART_SECONDS, PATIENCE * size / rate))

    async def _body(self, file: BinaryIO, part: Part) -> AsyncIterator[bytes]:
        """The part's bytes off the disk. The last block leaves only if all of them are those that were hashed."""
        hashed = hashlib.sha256()
        done = 0
        while done < part.size:
            block = await on_disk(os.pread, file.fileno(), min(BLOCK, part.size - done), part.offset + done)
            hashed.update(block)
            done += len(block)
            if not block or (done == part.size and hashed.digest() != part.sha256):
                raise InputChanged(f"{self._path} changed while it was sent")
            yield block
            self._rate.add(len(block))

    # What has arrived.

    async def _is_it(self, head: Answer, digests: Digests, *, read: bool) -> Verified:
        """How it is known that the object is the file; empty: it is not, or (unless `read`) it is not known."""
        said = head.headers
        if said.get("content-length") != str(digests.size):
            return ""
        if said.get("x-amz-meta-sha256", digests.sha256.hex()) != digests.sha256.hex():
            return ""
        if checksum := said.get("x-amz-checksum-sha256"):
            return "store-sha256" if checksum.partition("-")[0] == digests.checksum else ""
        if said.get("etag", "").strip('"') == digests.etag:
            return "store-md5"
        if not read:
            return ""
        await self._ctx.progress(1.0, "reading it back")
        found = await self._store.hash_back(limit=transfer_seconds(self._payload))
        return "read-back" if found == digests.sha256.hex() else ""

    def _result(self, head: Answer, digests: Digests, verified: Verified) -> Upload:
        seconds = self._rate.seconds
        return Upload(
            bucket=self._store.bucket,
            key=self._store.key,
            sha256=digests.sha256.hex(),
            etag=head.headers.get("etag", "").strip('"'),
            verified=verified,
            bytes=digests.size,
            sent=self._rate.bytes,
            parts=len(digests.parts),
            part_size=part_size(digests.size),
            resumed=self._resumed,
            retries=self._store.retries,
            seconds=round(seconds, 3),
            rate=round(self._rate.bytes / max(seconds, 1e-3), 1),
        )
