"""A web site on real sockets that does as it is told: each path has its answer, sent byte by byte if need be."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Send = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """`answers`: path -> the whole answer, or a function that sends it. `heads`: what was asked, request heads."""

    port: int = 0
    answers: dict[str, bytes | Send] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    sent: int = 0
    """Bytes that endless answers have sent."""
    names: list[str | None] = field(default_factory=list)
    """The server names (SNI) that were asked for."""

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                path = head.split(" ")[1].partition("?")[0]
                answer = self.answers.get(path, ok(b"", status="404 Not Found"))
                if callable(answer):
                    await answer(writer)
                else:
                    writer.write(answer)
                    await writer.drain()
        finally:
            writer.close()

    def endless(self, head: bytes, block: bytes, pause: float = 0.0) -> Send:
        """An answer that never ends."""

        async def send(writer: asyncio.StreamWriter) -> None:
            writer.write(head)
            while True:
                writer.write(block)
                await writer.drain()
                self.sent += len(block)
                await asyncio.sleep(pause)

        return send


def ok(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return ok(b"", f"location: {to}", status=status)


@contextlib.asynccontextmanager
async def serving(host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """A site on a loopback address; all of 127.0.0.0/8 is this machine."""
    site = Site()
    if tls is not None:
        tls.sni_callback = lambda line, name, context: site.names.append(name)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(site.handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, port, ssl=tls)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
