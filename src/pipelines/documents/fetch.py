"""One document from a stranger's URL, without being led into our own network.

At every hop the scheme is checked, the host is resolved here, each of its addresses is judged, and the connection goes
to the very address that was judged: a name that answers differently the second time is never asked a second time. The
server still sees its own name (Host, and SNI, by which its certificate is checked). A proxy of the environment is not
used: it would resolve by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, TYPE_CHECKING

from pipelines.documents.addresses import Address, Network, may_reach
from pipelines.errors import InputRejected, RecordNotFoundError, TryLater
from pipelines.retry_after import retry_after

if TYPE_CHECKING:
    import ssl

    import httpx

HEAD = 1024
"""Bytes among which `%PDF-` must be: as all readers do it (PDF 1.7, appendix H.3, note 13)."""

MAGIC = b"%PDF-"

GONE = frozenset({404, 410})
BUSY = frozenset({408, 425, 429})
REDIRECTS = frozenset({301, 302, 303, 307, 308})

BLOCK = 1 << 16
"""Bytes that are taken in, or unpacked, at a time."""

CONNECT, SILENCE = 10.0, 30.0
"""Seconds to connect to one address, and without a byte."""

MOST_ADDRESSES = 4
"""Of one host, that are tried one after the other."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> its addresses as text."""


@dataclass(frozen=True)
class FetchLimits:
    """`bytes` of the document, `seconds` for all of it, `redirects` in a row."""

    bytes: int = 100 << 20
    seconds: float = 300.0
    redirects: int = 5


async def resolve(host: str, port: int) -> list[str]:
    """The system's resolver, in a thread of the loop's. Raises OSError (socket.gaierror)."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Fetcher:
    """`await Fetcher(...).fetch(url, file)`. `networks`: the operator's exceptions from "public addresses only"."""

    def __init__(
        self,
        networks: Sequence[Network] = (),
        limits: FetchLimits | None = None,
        *,
        resolve: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._networks, self._resolve, self._tls = networks, resolve, tls
        self._limits = limits or FetchLimits()

    async def fetch(self, url: str, file: IO[bytes]) -> int:
        """Write the document to `file`; how many bytes it has.

        Raises InputRejected (`bad-url`, `forbidden-address`, `redirect-loop`, `too-many-redirects`, `refused`,
        `empty`, `not-a-pdf`, `too-large`), RecordNotFoundError (404, 410) and TryLater. None of them says more of the
        URL than its host: what else is in it may be a secret.
        """
        import httpx

        host = ""
        try:
            async with asyncio.timeout(self._limits.seconds):
                seen: set[httpx.URL] = set()
                place = _parsed(url)
                while True:
                    host = place.host
                    if place in seen:
                        raise InputRejected("redirect-loop", f"{host} leads back to where it came from")
                    if len(seen) > self._limits.redirects:
                        raise InputRejected("too-many-redirects", f"more than {self._limits.redirects} in a row")
                    seen.add(place)
                    async with self._answer(place) as answer:
                        if answer.status_code not in REDIRECTS:
                            return await self._receive(answer, host, file)
                        place = _next(place, answer)
        except TimeoutError:
            raise TryLater(f"{host} has not sent the document within {self._limits.seconds:.0f} s") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise TryLater(f"{host} broke off: {type(error).__name__} {error}".rstrip()) from None

    @contextlib.asynccontextmanager
    async def _answer(self, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        """The head of the answer of the first of the host's addresses that can be connected to."""
        import httpx

        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await self._addresses(url.host, port)
        # A client for each hop: connections are kept by address, and this one was proved for this host's name alone.
        async with httpx.AsyncClient(
            verify=self._tls or _trust(),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(SILENCE, connect=CONNECT),
        ) as client:
            for address in addresses:
                request = client.build_request(
                    "GET",
                    url.copy_with(host=str(address)),
                    headers={
                        "Host": url.netloc.decode("ascii"),
                        "Accept": "application/pdf, */*;q=0.5",
                        "Accept-Encoding": "identity",
                        "User-Agent": "phaze-agent",
                    },
                    extensions={"sni_hostname": url.raw_host.decode("ascii")},
                )
                try:
                    answer = await client.send(request, stream=True)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if address == addresses[-1]:
                        raise
                    continue
                try:
                    yield answer
                finally:
                    await answer.aclose()
                return

    async def _addresses(self, host: str, port: int) -> list[Address]:
        """Of a host, all of them judged. Raises InputRejected, TryLater."""
        try:
            found = [host] if _is_address(host) else await self._resolve(host, port)
            addresses = list(dict.fromkeys(ipaddress.ip_address(text) for text in found))
        except (OSError, UnicodeError) as error:
            raise TryLater(f"the name {host} cannot be resolved: {error}") from None
        if not addresses:
            raise TryLater(f"the name {host} has no address")
        if not all(may_reach(address, self._networks) for address in addresses):
            raise InputRejected(
                "forbidden-address",
                f"{host} is not on the public internet; if it may be fetched from, add its network to "
                "PHAZE_DOCUMENT_NETWORKS",
            )
        return addresses[:MOST_ADDRESSES]

    async def _receive(self, answer: httpx.Response, host: str, file: IO[bytes]) -> int:
        """Take the body in, judged by what it is and not by what the server calls it."""
        _judge(answer, host)
        declared = answer.headers.get("content-length", "")
        most = self._limits.bytes
        if declared.isascii() and declared.isdigit() and int(declared) > most:
            raise too_large(most)
        size, head, known = 0, b"", False
        async for block in _unpacked(answer):
            size += len(block)
            if size > most:
                raise too_large(most)
            if not known:
                head += block[: HEAD - len(head)]
                if known := len(head) == HEAD:
                    check_head(head)
            file.write(block)
        if not known:
            check_head(head)
        file.flush()
        return size


async def _unpacked(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The body in blocks of BLOCK bytes at most. httpx would unpack all that a block holds, and what is packed twice
    makes gigabytes of one. Raises InputRejected, httpx.DecodingError."""
    import httpx

    named = [name.strip().lower() for name in answer.headers.get("content-encoding", "").split(",")]
    packed = [name for name in named if name not in ("", "identity")]
    if packed and packed not in (["gzip"], ["x-gzip"], ["deflate"]):
        raise InputRejected(
            "refused", "its server sends it packed, though asked not to, and not just by gzip or deflate"
        )
    if not packed:
        async for block in answer.aiter_raw(BLOCK):
            yield block
        return
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)  # by its head: gzip or zlib
    try:
        async for block in answer.aiter_raw(BLOCK):
            while block and not unpacking.eof:
                yield unpacking.decompress(block, BLOCK)
                block = unpacking.unconsumed_tail
        while not unpacking.eof:
            held_back = unpacking.decompress(b"", BLOCK)
            if not held_back:
                raise zlib.error("what is packed is cut off")
            yield held_back
    except zlib.error as error:
        raise httpx.DecodingError(str(error), request=answer.request) from None


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    """Whom to believe: SSL_CERT_FILE, else the certificates that httpx brings. Reading them takes a while."""
    import httpx

    return httpx.create_ssl_context()


def check_head(head: bytes) -> None:
    """Judge a document by its first 1024 bytes. Raises InputRejected (`empty`, `not-a-pdf`)."""
    if not head:
        raise InputRejected("empty", "it has no bytes")
    if MAGIC not in head[:HEAD]:
        kind = "a web page" if head.lstrip()[:1] == b"<" else "something else"
        raise InputRejected("not-a-pdf", f"it is {kind}: no %PDF- among its first {HEAD} bytes")


def too_large(most: int) -> InputRejected:
    return InputRejected("too-large", f"over {most >> 20} MiB; PHAZE_DOCUMENT_MAX_MB says how large one may be")


def _parsed(text: str) -> httpx.URL:
    import httpx

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise InputRejected("bad-url", "it cannot be understood; give an http:// or https:// address") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InputRejected("bad-url", "only http:// and https:// addresses are fetched")
    return url.copy_with(fragment=None)


def _next(place: httpx.URL, answer: httpx.Response) -> httpx.URL:
    """Where a redirect leads."""
    import httpx

    to = answer.headers.get("location", "")
    if not to:
        raise InputRejected("bad-url", f"{place.host} redirects to nowhere")
    try:
        return _parsed(str(place.copy_with(userinfo=b"").join(to)))
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise InputRejected("bad-url", f"{place.host} redirects to what is no address") from None


def _judge(answer: httpx.Response, host: str) -> None:
    """What a status means. Raises RecordNotFoundError, TryLater, InputRejected."""
    status = answer.status_code
    said = f"{host} answered {status}"
    if status == 200:
        return
    if status in GONE:
        raise RecordNotFoundError(f"{said}: the document is not there (any more)")
    if status in BUSY or status >= 500:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        raise TryLater(said, retry_after(headers))
    remedy = "the link may have expired: hand the record in again with a new one" if status in (401, 403) else ""
    raise InputRejected("refused", f"{said}; {remedy}" if remedy else said)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
