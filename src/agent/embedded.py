"""Everything on one machine with one command: a queue server, a hub and a worker per lane, supervised.

The data folder holds all that outlives a run: the catalogue, the queue server's file, the agent's token, the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import httpx
import psutil

from agent.errors import StartError
from agent.lanes import CPU_LANES, LANES
from agent.settings import Settings
from agent.supervisor import Supervised
from agent.valkey import Valkey

HUB_START_TIMEOUT = 60.0
"""Seconds for the hub to answer; a cold disk may need many of them."""

HUB_GRACE = 10.0
WORKER_MARGIN = 20.0
"""Seconds on top of the workers' own grace: to kill children and deliver what is left in the outbox."""


def default_slots(lane: str, settings: Settings) -> int:
    """The slots of a lane on this machine: what was set, else the default but never more CPU slots than cores."""
    knob = settings.lane_knob(lane)
    if lane not in CPU_LANES or f"lane_{lane}_concurrency" in settings.model_fields_set:
        return knob
    return min(knob, psutil.cpu_count() or 1)


class Fleet:
    """The processes of one embedded run. Use as an async context manager: what was started is ended."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.data = settings.data_dir
        self.say = say
        self.valkey: Valkey | None = None
        self.hub: Supervised | None = None
        self.workers: list[Supervised] = []
        self.hub_url = ""
        self.token = ""
        self.slots = {lane: min(default_slots(lane, settings), settings.worker_max_jobs) for lane in LANES}
        self._lock: IO[str] | None = None
        self._valkey_keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Fleet:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Queue server, hub, workers, in this order. Raises StartError or ValkeyError."""
        self._open_data_folder()
        redis_url = self.settings.redis_url
        if redis_url is None:
            self.valkey = Valkey(self.data / "valkey")
            await self.valkey.start()
            self._valkey_keeper = asyncio.create_task(self._keep_valkey(self.valkey), name="keep-valkey")
            redis_url = self.valkey.url
        _write_private(self.data / "redis.url", redis_url)
        self.token = self._own_token()
        port = self._hub_port()
        self.hub_url = f"http://{self.settings.hub_host}:{port}"
        env = {
            **os.environ,
            "PHAZE_REDIS_URL": redis_url,
            "PHAZE_HUB_URL": self.hub_url,
            "PHAZE_HUB_PORT": str(port),
            "PHAZE_DATA_DIR": str(self.data),
            "PHAZE_AGENT_TOKEN": self.token,
            "PHAZE_LOG_FORMAT": "json",
        }
        self.hub = self._supervised("hub", ["hub"], env)
        await self.hub.start()
        await self._hub_answers()
        for lane in LANES:
            slots = {f"PHAZE_LANE_{lane.upper()}_CONCURRENCY": str(self.slots[lane])}
            worker = self._supervised(f"worker-{lane}", ["worker"], {**env, **slots, "PHAZE_AGENT_LANE": lane})
            self.workers.append(worker)
            await worker.start()

    async def stop(self) -> None:
        """Workers first (they deliver what they hold), then the hub, then the queue server."""
        grace = self.settings.shutdown_grace + WORKER_MARGIN
        await asyncio.gather(*(worker.stop(grace) for worker in self.workers))
        if self.hub is not None:
            await self.hub.stop(HUB_GRACE)
        if self._valkey_keeper is not None:
            self._valkey_keeper.cancel()
            await asyncio.gather(self._valkey_keeper, return_exceptions=True)
        if self.valkey is not None:
            await self.valkey.stop()
            (self.data / "redis.url").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """End everything at once; nothing acknowledged is lost."""
        for process in (*self.workers, *([self.hub] if self.hub else [])):
            process.kill()

    def _supervised(self, name: str, command: list[str], env: dict[str, str]) -> Supervised:
        argv = [sys.executable, "-m", "agent.cli", *command]
        return Supervised(name, argv, env, self.data / "logs" / f"{name}.log", self.say)

    def _open_data_folder(self) -> None:
        try:
            self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self.data / "lock").open("w")
        except OSError as error:
            raise StartError(
                f"the data folder {self.data} cannot be used ({error.strerror}); set PHAZE_DATA_DIR"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise StartError(
                f"another `phaze up` uses the data folder {self.data}; end it, or set PHAZE_DATA_DIR to another folder"
            ) from None

    def _own_token(self) -> str:
        if self.settings.agent_token is not None:
            return self.settings.agent_token.get_secret_value()
        path = self.data / "agent.token"
        with contextlib.suppress(FileNotFoundError):
            if token := path.read_text("utf-8").strip():
                return token
        token = secrets.token_urlsafe(32)
        _write_private(path, token)
        return token

    def _hub_port(self) -> int:
        """The configured port; where nobody chose one and 8080 is taken, a free one."""
        wanted, host = self.settings.hub_port, self.settings.hub_host
        if wanted and _is_free(host, wanted):
            return wanted
        if wanted and "hub_port" in self.settings.model_fields_set:
            raise StartError(f"PHAZE_HUB_PORT={wanted} is in use on {host}; choose another port, or 0 for a free one")
        with _bound(host, 0) as free:
            port = int(free.getsockname()[1])
        if wanted:
            self.say(f"port {wanted} is in use; the page is on port {port} (PHAZE_HUB_PORT sets it)")
        return port

    async def _hub_answers(self) -> None:
        assert self.hub is not None
        deadline = time.monotonic() + HUB_START_TIMEOUT
        async with httpx.AsyncClient(base_url=self.hub_url, timeout=2.0) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/health")).status_code == httpx.codes.OK:
                        return
                if self.hub.restarts or self.hub.pid is None or time.monotonic() > deadline:
                    raise StartError("the hub did not start: " + (self.hub.log_tail(1) or f"see {self.hub.log}"))
                await asyncio.sleep(0.05)

    async def _keep_valkey(self, server: Valkey) -> None:
        while True:
            await asyncio.sleep(1.0)
            if server.pid is None:
                self.say(f"the queue server ended; starting it again (log: {server.folder / 'valkey.log'})")
                try:
                    await server.start()
                except Exception as error:
                    self.say(str(error))
                    await asyncio.sleep(10.0)


def _write_private(path: Path, text: str) -> None:
    """A file that only this user can read, from its first moment."""
    path.touch(mode=0o600)
    path.write_text(text, "utf-8")


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _is_free(host: str, port: int) -> bool:
    try:
        _bound(host, port).close()
    except OSError:
        return False
    return True
