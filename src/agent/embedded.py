"""Everything on one machine with one command: a queue server, a hub and a worker per lane, supervised.

The data folder holds all that outlives a run: the catalogue, the queue server's file, the agent's token, the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import httpx
from redis.exceptions import RedisError

from agent import budget, kept
from agent.display import plural
from agent.errors import ConfigError, StartError
from agent.lanes import CPU_LANES, lanes_for, queue_name, tasks_of
from agent.phoenix.boot import check_server
from agent.phoenix.bridge import release_entries
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from agent.redis_trouble import trouble
from agent.settings import WORKER_MARGIN, Settings
from agent.supervisor import Supervised
from agent.valkey import Valkey

HUB_START_TIMEOUT = 60.0
"""Seconds for the hub to answer; a cold disk may need many of them."""

SERVER_TIMEOUT = 10.0
"""Seconds for an outside queue server to answer at the start."""

HUB_GRACE = 10.0

HOPELESS = 5
"""Deaths in a row, each soon after its start, after which a program is not going to live."""


def default_slots(lane: str, settings: Settings) -> int:
    """The slots of a lane on this machine: what was set, else the default but never more CPU slots than cores."""
    knob = settings.lane_knob(lane)
    if lane not in CPU_LANES or f"lane_{lane}_concurrency" in settings.model_fields_set:
        return knob
    return min(knob, max(1, int(budget.cores())))


class Fleet:
    """The processes of one embedded run. `stop()` ends whatever `start()` has started, also where it did not finish.

    `lanes`: those that get a worker; the lanes for files, and what other packages add, unless said.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None], lanes: Sequence[str] | None = None) -> None:
        self.settings = settings
        self.data = settings.data_dir
        self.say = say
        self.valkey: Valkey | None = None
        self.hub: Supervised | None = None
        self.workers: list[Supervised] = []
        self.watcher: Supervised | None = None
        self.hub_url = ""
        self.token = ""
        self.knobs = {lane: default_slots(lane, settings) for lane in (lanes_for() if lanes is None else lanes)}
        self._lock: IO[bytes] | None = None

    @property
    def slots(self) -> dict[str, int]:
        """lane -> effective slots."""
        return {lane: min(knob, self.settings.worker_max_jobs) for lane, knob in self.knobs.items()}

    async def start(self) -> None:
        """Queue server, hub, workers, in this order. Raises StartError or ValkeyError."""
        self._open_data_folder()
        try:
            await self._start_all()
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise StartError(
                f"the data folder {self.data} cannot be used{where}: {error.strerror or error}; "
                "mend that, or set PHAZE_DATA_DIR to another folder"
            ) from None

    async def _start_all(self) -> None:
        redis_url = self.settings.redis_address
        if redis_url is not None:
            await _must_serve(redis_url)
        else:
            self.valkey = Valkey(self.data / "valkey", say=self.say)
            await self.valkey.start()
            redis_url = self.valkey.url
            kept.write_private(self.data / "redis.url", redis_url)
        await self._try_again_now(redis_url)
        self.token = self._own_token()
        env = {
            **os.environ,
            "PYTHONSAFEPATH": "1",  # a redis.py in somebody's music folder is not ours
            "PHAZE_REDIS_URL": redis_url,
            "PHAZE_HUB_PORT": str(self._hub_port()),
            "PHAZE_DATA_DIR": str(self.data),
            "PHAZE_AGENT_TOKEN": self.token,
            "PHAZE_LOG_FORMAT": "json",
        }
        # Each gets the secrets that are its own: the store's are the hub's, to push and to pay with the workers'.
        hubs = _without(env, "PHAZE_PUSH_KEY", "PHAZE_BILLING")
        self.hub = self._supervised("hub", ["hub"], {**hubs, **self._login()})
        (self.data / "hub.url").unlink(missing_ok=True)
        await self.hub.start()
        self.hub_url = await self._hub_answers()
        self.hub.env["PHAZE_HUB_PORT"] = self.hub_url.rsplit(":", 1)[-1]  # started again, it is found again
        for lane in self.knobs:
            own = {"PHAZE_HUB_URL": self.hub_url, "PHAZE_AGENT_LANE": lane}
            knob = {f"PHAZE_LANE_{lane.upper()}_CONCURRENCY": str(self.knobs[lane])}
            given = _without(env, "PHAZE_S3_", "PHAZE_HUB_PASSWORD")
            worker = self._supervised(f"worker-{lane}", ["worker"], {**given, **own, **knob})
            self.workers.append(worker)
            await worker.start()

    async def watch(self, folders: Sequence[Path]) -> None:
        """Have what changes in these folders scanned from now on. Raises OSError if it cannot be started at all."""
        env = {**_without(os.environ, "PHAZE_S3_", "PHAZE_HUB_PASSWORD", "PHAZE_PUSH_KEY"), "PYTHONSAFEPATH": "1"}
        env |= {"PHAZE_HUB_URL": self.hub_url, "PHAZE_AGENT_TOKEN": self.token, "PHAZE_LOG_FORMAT": "json"}
        self.watcher = self._supervised("watcher", ["watch", "--", *map(os.fspath, folders)], env)
        await self.watcher.start()

    async def _try_again_now(self, redis_url: str) -> None:
        """Somebody started us: what failed before and waits for its next attempt need not wait any longer."""
        client = connect(redis_url)
        try:
            queues = [LaneQueue(client, name=queue_name(self.settings.agent_id, lane)) for lane in self.knobs]
            if moved := sum([await queue.hurry() for queue in queues]):
                self.say(f"{plural(moved, 'job')} that failed before {'is' if moved == 1 else 'are'} tried again")
            if self.valkey is not None:  # whoever had taken entries from its streams ended with it
                for service in (task for lane in self.knobs for task in tasks_of(lane)):
                    await release_entries(client, service)
        finally:
            await client.aclose()

    async def stop(self) -> None:
        """Watcher and workers first (they deliver what they hold), then the hub, then the queue server."""
        if self.watcher is not None:
            await self.watcher.stop(HUB_GRACE)
        grace = self.settings.shutdown_grace + WORKER_MARGIN
        await asyncio.gather(*(worker.stop(grace) for worker in self.workers))
        if self.hub is not None:
            await self.hub.stop(HUB_GRACE)
        if self.valkey is not None:
            await self.valkey.stop()
            (self.data / "redis.url").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """End everything at once; nothing acknowledged is lost."""
        for process in self.programs():
            process.kill()

    def programs(self) -> list[Supervised]:
        """All of them, in the order of their start."""
        return [
            *([self.valkey.program] if self.valkey else []),
            *([self.hub] if self.hub else []),
            *self.workers,
            *([self.watcher] if self.watcher else []),
        ]

    def misconfigured(self) -> Supervised | None:
        """A program that cannot start as it is configured, if there is one; its log's last line says why."""
        return next((program for program in self.programs() if program.misconfigured), None)

    def hopeless(self) -> Supervised | None:
        """A program that dies again and again, if there is one."""
        return next((program for program in self.programs() if program.early_deaths >= HOPELESS), None)

    def _supervised(self, name: str, command: list[str], env: dict[str, str]) -> Supervised:
        argv = [sys.executable, "-P", "-m", "agent.cli", *command]
        return Supervised(name, argv, env, self.data / "logs" / f"{name}.log", self.say)

    def _open_data_folder(self) -> None:
        os.umask(0o077)  # the catalogue, the logs and the queue are this user's alone
        try:
            self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self.data / "lock").open("a+b", buffering=0)
        except OSError as error:
            raise StartError(
                f"the data folder {self.data} cannot be used ({error.strerror}); set PHAZE_DATA_DIR"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            other = self._lock.read(20).decode("ascii", "replace").strip()
            self._lock.close()
            self._lock = None
            raise StartError(
                f"another `phaze up` (process {other or 'unknown'}) uses the data folder {self.data}; end it, or set "
                "PHAZE_DATA_DIR to another folder"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk it says nothing, and is a lock all the same
            self._lock.truncate(0)
            self._lock.write(f"{os.getpid()}\n".encode())

    def _own_token(self) -> str:
        if self.settings.agent_token is not None:
            return self.settings.agent_token.get_secret_value()
        return kept.secret(self.data / kept.AGENT_TOKEN)[0]

    def _login(self) -> dict[str, str]:
        """The hub's password, made at the first start where its page may not be without one."""
        if self.settings.hub_password is not None or not kept.in_container():
            return {}
        password, new = kept.secret(self.data / kept.HUB_PASSWORD)
        if new:
            self.say(f"the page's user is {self.settings.hub_user}, its password {password} (said once; it is in "
                     f"{self.data / kept.HUB_PASSWORD})")  # fmt: skip
        return {"PHAZE_HUB_PASSWORD": password}

    def _hub_port(self) -> int:
        """The configured port; 0 (a free one) where nobody chose one and 8080 is taken."""
        wanted, host = self.settings.hub_port, self.settings.hub_host
        if wanted == 0 or _is_free(host, wanted):
            return wanted
        if "hub_port" in self.settings.model_fields_set:
            raise StartError(f"PHAZE_HUB_PORT={wanted} is in use on {host}; choose another port, or 0 for a free one")
        self.say(f"port {wanted} is in use; the page takes a free one (PHAZE_HUB_PORT sets it)")
        return 0

    async def _hub_answers(self) -> str:
        """Its URL, once it answers there."""
        assert self.hub is not None
        deadline = time.monotonic() + HUB_START_TIMEOUT
        async with httpx.AsyncClient(timeout=2.0) as client:
            while True:
                with contextlib.suppress(OSError, httpx.HTTPError, httpx.InvalidURL):
                    url = (self.data / "hub.url").read_text("utf-8").strip()
                    if (await client.get(f"{url}/health")).status_code == httpx.codes.OK:
                        return url
                if self.hub.misconfigured:
                    raise ConfigError(said_last(self.hub))
                if self.hub.gave_up or time.monotonic() > deadline:
                    raise StartError(f"the hub did not start: {said_last(self.hub)}")
                await asyncio.sleep(0.05)


def said_last(program: Supervised) -> str:
    """Why it ended, in its own words."""
    return program.log_tail(1).removeprefix("phaze: ") or f"see {program.log}"


def _without(env: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(prefixes)}


async def _must_serve(redis_url: str) -> None:
    """Raises StartError for a server that is not there (nothing would ever happen), ConfigError for an unfit one."""
    client = connect(redis_url)
    try:
        async with asyncio.timeout(SERVER_TIMEOUT):
            await check_server(client)
    except (RedisError, OSError, TimeoutError) as error:
        raise StartError(
            f"the server of PHAZE_REDIS_URL does not answer ({trouble(error)}); start it, or unset PHAZE_REDIS_URL to "
            "use an embedded one"
        ) from None
    finally:
        await client.aclose()


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE  # what else is wrong with it, the hub will say
    return True
