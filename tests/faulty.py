"""A proxy that does to HTTP what networks and overloaded servers do: answers itself, cuts, hangs, damages, delays."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

CHUNK = 65_536


@dataclass(frozen=True)
class Request:
    """What the proxy knows of a request when it decides."""

    method: str
    target: str
    size: int

    @property
    def part(self) -> int:
        """The part's number; 0 for all that sends none."""
        found = re.search(r"[?&]partNumber=(\d+)", self.target)
        return int(found[1]) if found and self.method == "PUT" else 0

    @property
    def kind(self) -> str:
        """As in `Wanted`: part, put, create, complete, abort, parts, uploads, head, get."""
        has_id = "uploadId=" in self.target
        if self.method == "POST":
            return "complete" if has_id else "create"
        if self.method == "PUT":
            return "part" if has_id else "put"
        if self.method == "DELETE":
            return "abort"
        if self.method == "GET":
            return "parts" if has_id else "uploads" if "uploads" in self.target else "get"
        return self.method.lower()


@dataclass
class Fault:
    """What happens to the next `times` requests for which `on` holds. One of: an answer, or something on the way."""

    on: Callable[[Request], bool]
    times: int = 1
    answer: bytes = b""
    """Sent instead of asking the server."""
    cut: int | None = None
    """The line is reset after so many bytes of the body."""
    hang: int | None = None
    """Nothing is read after so many bytes of the body, and nothing answered."""
    flip: bool = False
    """One byte of the body is damaged."""
    rate: float | None = None
    """Bytes of the body a second."""
    lose: bool = False
    """The server does it, and its answer is lost."""
    rewrite: Callable[[bytes], bytes] | None = None
    """Of the server's answer."""
    ask: Callable[[bytes], bytes] | None = None
    """Of the request's head."""


@dataclass
class FaultyProxy:
    """`url` stands for the server at `port`. `seen`: every request; `received`: bytes of bodies, faults included."""

    port: int
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)
    received: int = 0
    most_at_once: int = 0
    _bodies: int = 0

    def kinds(self) -> list[str]:
        return [request.kind for request in self.seen]

    def parts(self) -> list[int]:
        return [request.part for request in self.seen if request.part]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b" ", 2)
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        request = Request(method.decode(), target.decode(), int(length[1]) if length else 0)
        self.seen.append(request)
        fault = next((fault for fault in self.faults if fault.times > 0 and fault.on(request)), None)
        if fault is None:
            fault = Fault(lambda _request: True)
        else:
            fault.times -= 1
        if fault.answer:
            await reader.readexactly(request.size)
            self.received += request.size
            writer.write(fault.answer)
            await writer.drain()
            return True
        return await self._forward(head, request, fault, reader, writer)

    async def _forward(
        self, head: bytes, request: Request, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        server, up = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = fault.ask(head) if fault.ask else head
            up.write(re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head[:-4]) + b"\r\nconnection: close\r\n\r\n")
            self._bodies += request.size > 0
            self.most_at_once = max(self.most_at_once, self._bodies)
            try:
                await self._body(request.size, fault, reader, up)
            finally:
                self._bodies -= request.size > 0
            await up.drain()
            answer = await server.read(-1)
        finally:
            up.transport.abort()
        if fault.lose:
            return False
        writer.write(fault.rewrite(answer) if fault.rewrite else answer)
        await writer.drain()
        writer.write_eof()
        return False

    async def _body(self, size: int, fault: Fault, reader: asyncio.StreamReader, up: asyncio.StreamWriter) -> None:
        done = 0
        while done < size or fault.hang == done:
            if fault.hang is not None and done >= fault.hang:
                await asyncio.sleep(3600)
            block = await reader.read(min(CHUNK, size - done))
            if not block:
                raise ConnectionResetError
            if fault.flip and done == 0:
                block = bytes([block[0] ^ 1]) + block[1:]
            done += len(block)
            self.received += len(block)
            if fault.cut is not None and done >= fault.cut:
                raise ConnectionResetError
            if fault.rate is not None:
                await asyncio.sleep(len(block) / fault.rate)
            up.write(block)
            await up.drain()


@dataclass
class FaultyLine:
    """A TCP line to `port`, with what it does to the bytes from the client. `sent` counts them."""

    port: int
    here: int = 0
    rate: float | None = None
    cut: int | None = None
    hang: int | None = None
    sent: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server, up = await asyncio.open_connection("127.0.0.1", self.port)
        back = asyncio.ensure_future(self._back(server, writer))
        try:
            with contextlib.suppress(OSError):
                while block := await reader.read(CHUNK):
                    self.sent += len(block)
                    if self.cut is not None and self.sent > self.cut:
                        break
                    if self.hang is not None and self.sent > self.hang:
                        await asyncio.sleep(3600)
                    if self.rate is not None:
                        await asyncio.sleep(len(block) / self.rate)
                    up.write(block)
                    await up.drain()
        finally:
            up.transport.abort()
            writer.transport.abort()
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)

    async def _back(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await server.read(CHUNK):
                writer.write(block)
                await writer.drain()
            writer.transport.abort()


def answer(status: str, code: str = "", *headers: str) -> bytes:
    """An answer of an S3 store to say no with."""
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "content-type: application/xml", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(handle: Handle) -> AsyncIterator[int]:
    """The port of the loopback address on which `handle` takes connections."""
    running: set[asyncio.Future[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(handle(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def faulty_proxy(port: int) -> AsyncIterator[FaultyProxy]:
    """An HTTP proxy before the server at `port`."""
    proxy = FaultyProxy(port)
    async with listening(proxy.handle) as here:
        proxy.url = f"http://127.0.0.1:{here}"
        yield proxy


@contextlib.asynccontextmanager
async def faulty_line(port: int) -> AsyncIterator[FaultyLine]:
    """A TCP line to the server at `port`."""
    line = FaultyLine(port)
    async with listening(line.handle) as here:
        line.here = here
        yield line
