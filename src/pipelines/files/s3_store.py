"""One object in an S3 store, spoken to by signed requests: each is signed when it is sent, bounded, and tried again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from pipelines.errors import InputRejected
from pipelines.files.s3_answers import (
    Answer,
    Listed,
    Misfit,
    UploadGone,
    completion,
    parts_of,
    trouble,
    upload_id_of,
    uploads_of,
)
from pipelines.files.s3_signer import LONGEST_KEY, Granted, Wanted
from pipelines.files.transfer import Mismatch, Refused, Stalled, Unreachable

if TYPE_CHECKING:
    import httpx

    from pipelines.context import TaskContext

ATTEMPTS = 5
"""Of one request in one run; the run itself is retried for ever."""

FORBIDDEN_ATTEMPTS = 2
"""Of a request that the store forbids: its signature may have run out on the way, a second one has not."""

FIRST_WAIT, MOST_WAIT = 0.5, 30.0
"""Seconds before the second attempt, doubled for each further one; half of each wait is chance."""

LONGEST_RETRY_AFTER = 60.0
"""Seconds that a run waits if the store asks for it; for more, it ends and comes back."""

SHORT = 120.0
"""Seconds for a request without a large body."""

COMPLETING = 900.0
"""Seconds for the store to put an object together: S3 says minutes for large ones."""

MOST_ANSWER = 4 << 20

AS_IT_IS = {"accept-encoding": "identity"}
"""No server on the way packs what is measured and hashed."""

Body = Callable[[], AsyncIterator[bytes]]
"""Makes the body anew for each attempt."""


class Store:
    """The requests, and what they cost: `retries`, `sent` bytes of bodies."""

    def __init__(self, ctx: TaskContext, client: httpx.AsyncClient, *, stall: float) -> None:
        self._ctx = ctx
        self._client = client
        self._stall = stall
        self._not_before = 0.0
        self.bucket = ""
        self.key = ""
        self.retries = 0

    # The operations.

    async def head(self) -> Answer | None:
        """The object's headers; None if it is not there (or may not be looked at, as far as can be told)."""
        answer = await self._request(Wanted(kind="head"), missing_is_fine=True)
        return answer if answer.status < 300 else None

    async def put(self, wanted: Wanted, body: Body, size: int, limit: float) -> Answer:
        """Send an object or a part, `size` bytes, in `limit` seconds."""
        # When the last byte is written the kernel may still hold megabytes of them: that is no silence of the store.
        return await self._request(wanted, body=body, size=size, limit=limit, silence=limit)

    async def unfinished(self) -> list[str]:
        """The ids of the object's unfinished multipart uploads."""
        return uploads_of(await self._request(Wanted(kind="uploads")), self.key)

    async def create(self, content: str) -> str:
        """Begin a multipart upload; its id."""
        return upload_id_of(await self._request(Wanted(kind="create", content=content)))

    async def parts(self, upload_id: str) -> dict[int, Listed]:
        """The parts that the store has. Raises UploadGone."""
        found: dict[int, Listed] = {}
        after = 0
        while True:
            answer = await self._request(Wanted(kind="parts", upload_id=upload_id, after=after))
            page, following = parts_of(answer)
            found |= page
            if following <= after:
                return found
            after = following

    async def complete(self, upload_id: str, parts: dict[int, Listed], *, sums: bool) -> None:
        """Make the object of its parts; `sums`: the store's list names their sha256.

        A store may keep sums that its list leaves out, and then takes no completion without them (SeaweedFS).
        """
        try:
            await self._complete(upload_id, completion(parts, sums=sums))
        except Misfit:
            await self._complete(upload_id, completion(parts, sums=not sums))

    async def _complete(self, upload_id: str, text: bytes) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield text

        wanted = Wanted(kind="complete", upload_id=upload_id)
        await self._request(wanted, body=body, size=len(text), limit=COMPLETING, silence=COMPLETING)

    async def abort(self, upload_id: str) -> None:
        """Throw an unfinished upload away; one that is gone is fine."""
        try:
            await self._request(Wanted(kind="abort", upload_id=upload_id))
        except UploadGone:
            return

    async def hash_back(self, limit: float) -> str:
        """Read the object, all of it; its sha256 (hex)."""
        granted = await self._grant(Wanted(kind="get"))
        hashed = hashlib.sha256()
        async with (
            bounded(f"{self.host}, reading it back", limit),
            self._client.stream("GET", granted.request.url, headers=granted.request.headers) as response,
        ):
            if (error := trouble(Answer(response.status_code), "get", self.host)) is not None:
                raise error
            async for block in response.aiter_raw(1 << 20):
                hashed.update(block)
        return hashed.hexdigest()

    # How each is sent.

    host = "the store"

    async def _grant(self, wanted: Wanted) -> Granted:
        granted = Granted.model_validate(await self._ctx.ask("s3", wanted.model_dump()))
        self.bucket, self.key = granted.bucket, granted.key
        if len(self.key.encode()) > LONGEST_KEY:
            raise InputRejected("name-too-long", f"the object's key has more than {LONGEST_KEY} bytes")
        self.host = granted.request.url.split("/")[2].rpartition("@")[2]
        return granted

    async def _request(
        self,
        wanted: Wanted,
        *,
        body: Body | None = None,
        size: int = 0,
        limit: float = SHORT,
        silence: float | None = None,
        missing_is_fine: bool = False,
    ) -> Answer:
        attempt = 0
        while True:
            attempt += 1
            await self._wait_for_turn()
            answer = Answer(0)
            try:
                # Signed again for each attempt: a signature that has run out is replaced by trying again.
                granted = await self._grant(wanted)
                async with bounded(f"{self.host}, {wanted.kind}", limit):
                    answer = await self._once(granted, body, size, silence or self._stall)
                if missing_is_fine and answer.status in (403, 404) and attempt >= FORBIDDEN_ATTEMPTS:
                    return answer
                if missing_is_fine and answer.status == 404:
                    return answer
                error = trouble(answer, wanted.kind, self.host)
                if error is None:
                    return answer
            except Unreachable as unreachable:
                error = unreachable
            if attempt >= attempts_for(error, answer):
                raise error
            self.retries += 1
            await self._wait(attempt, answer, error)

    async def _once(self, granted: Granted, body: Body | None, size: int, silence: float) -> Answer:
        import httpx

        request = self._client.build_request(
            granted.request.method,
            granted.request.url,
            content=None if body is None else body(),
            headers={**granted.request.headers, "content-length": str(size)},
            timeout=httpx.Timeout(self._stall, read=silence, pool=None),
        )
        response = await self._client.send(request, stream=True)
        try:
            text = bytearray()
            async for block in response.aiter_bytes():
                text += block
                if len(text) > MOST_ANSWER:
                    raise Refused(f"{self.host} answered more than {MOST_ANSWER >> 20} MiB; is it an S3 API?")
        finally:
            await response.aclose()
        return Answer(
            response.status_code, {name.lower(): value for name, value in response.headers.items()}, bytes(text)
        )

    async def _wait_for_turn(self) -> None:
        """Until the store wants to be spoken to again; all parts wait together."""
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))

    async def _wait(self, attempt: int, answer: Answer, error: Exception) -> None:
        asked = answer.retry_after
        if asked is not None and asked > LONGEST_RETRY_AFTER:
            raise error
        most = min(FIRST_WAIT * 2 ** (attempt - 1), MOST_WAIT)
        wait = max(random.uniform(most / 2, most), asked or 0.0)  # noqa: S311 - chance keeps parts apart
        if answer.status in (429, 503):
            self._not_before = max(self._not_before, time.monotonic() + wait)
        else:
            await asyncio.sleep(wait)


def http_client(parallel: int, stall: float) -> httpx.AsyncClient:
    """A client for `parallel` connections, on which the kernel too waits `stall` seconds for a sign of the other side.

    TCP_USER_TIMEOUT (Linux): of data that was written and that nobody takes, however much of it the kernel holds.
    A proxy of the environment is used as it is.
    """
    import httpx

    limits = httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel)
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None or urllib.request.getproxies():
        return httpx.AsyncClient(limits=limits, timeout=stall, headers=AS_IT_IS)
    transport = httpx.AsyncHTTPTransport(
        limits=limits, socket_options=[(socket.IPPROTO_TCP, option, max(1, int(stall * 1000)))]
    )
    return httpx.AsyncClient(transport=transport, timeout=stall, headers=AS_IT_IS)


@contextlib.asynccontextmanager
async def bounded(said: str, limit: float) -> AsyncIterator[None]:
    """At most `limit` seconds; every way for a line to fail is `Unreachable`, which names no address."""
    import httpx

    try:
        async with asyncio.timeout(limit):
            yield
    except TimeoutError:
        raise Stalled(f"{said}: not done within {limit:.0f} s") from None
    except httpx.TimeoutException as error:
        raise Stalled(f"{said}: nothing moved ({type(error).__name__})") from None
    except httpx.TransportError as error:
        raise Unreachable(f"{said}: {type(error).__name__} {error}") from None


def attempts_for(error: Exception, answer: Answer) -> int:
    """How often a request that ends so is sent in one run."""
    if isinstance(error, Unreachable | Mismatch):
        return ATTEMPTS
    return FORBIDDEN_ATTEMPTS if isinstance(error, Refused) and answer.status == 403 else 1
