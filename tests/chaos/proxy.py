"""A TCP proxy in front of a Unix socket, or a port, that does what networks do: cut, delay, carry little, fall silent
with the line still up."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

CHUNK = 65_536


class Line:
    """One connection from a client to the server behind."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.ends = (client, server)
        self.silent = False

    def cut(self) -> None:
        """Both ends lose it at once, with whatever was on the way."""
        for end in self.ends:
            end.transport.abort()


class Proxy:
    """`start()` gives the URL. `delay` holds every chunk back for up to so many seconds; `rate` is how many bytes a
    second all lines together carry each way, 0 for what they can."""

    def __init__(self, target: Path | int) -> None:
        self.target = target
        self._server: asyncio.Server | None = None
        self._lines: set[Line] = set()
        self._carriers: set[asyncio.Task[None]] = set()
        self._chance = random.Random(7)
        self._free = {True: 0.0, False: 0.0}
        """When the way to the server, and the way back, is free again."""
        self.delay = self.rate = 0.0
        self.answered = 0
        """Bytes that came from behind."""
        self.cuts = 0
        self.silenced = 0

    async def start(self) -> str:
        """Listen on a free port of the loopback address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"redis://127.0.0.1:{port}"

    async def stop(self) -> None:
        """Cut everything and listen no more."""
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.cut()
        for carrier in list(self._carriers):
            carrier.cancel()
        await asyncio.gather(*self._carriers, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self, share: float = 1.0) -> None:
        """Cut that share of the lines, at random."""
        for line in list(self._lines):
            if self._chance.random() < share:
                line.cut()
                self.cuts += 1

    def silence(self, share: float) -> None:
        """From now on nothing passes on that share of the lines, either way, and neither end is told."""
        for line in list(self._lines):
            if self._chance.random() < share:
                line.silent = True
                self.silenced += 1

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self.target, int):
                server_reader, server = await asyncio.open_connection("127.0.0.1", self.target)
            else:
                server_reader, server = await asyncio.open_unix_connection(self.target)
        except OSError:
            client.transport.abort()
            return
        line = Line(client, server)
        self._lines.add(line)
        for source, sink in ((reader, server), (server_reader, client)):
            carrier = asyncio.create_task(self._carry(line, source, sink))
            self._carriers.add(carrier)
            carrier.add_done_callback(self._carriers.discard)

    async def _carry(self, line: Line, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        back = sink is line.ends[0]
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(CHUNK):
                    if self.delay:
                        await asyncio.sleep(self._chance.uniform(0.0, self.delay))
                    if self.rate:
                        await self._pass(len(data), back)
                    if not line.silent:
                        self.answered += len(data) if back else 0
                        sink.write(data)
                        await sink.drain()
        finally:
            self._lines.discard(line)
            line.cut()

    async def _pass(self, size: int, back: bool) -> None:
        now = time.monotonic()
        self._free[back] = max(self._free[back], now) + size / self.rate
        await asyncio.sleep(self._free[back] - now)
