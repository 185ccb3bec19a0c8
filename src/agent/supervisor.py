"""Child programs that are kept running: started again when they die, ended together, none left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agent.cancelling import end
from agent.errors import ConfigError
from pipelines import lifeline

FIRST_BACKOFF = 1.0
MAX_BACKOFF = 30.0
STABLE_AFTER = 60.0
"""Seconds of running after which a program's next death counts as its first again."""

LOG_LIMIT = 10 * 2**20
"""Bytes after which a log is set aside; one older one is kept."""

LOG_LOOK = 60.0
"""Seconds between looks at the log's size."""

Say = Callable[[str], None]


class Supervised:
    """One program, restarted with backoff until `stop()`. Its output goes to `log`."""

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, say: Say, *, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.env = dict(env)
        self.restarts = 0
        self.early_deaths = 0
        """Deaths in a row, each within `STABLE_AFTER` of its start."""
        self.gave_up = False
        """Whether its last end was its own: an exit, not a signal from somebody."""
        self.misconfigured = False
        """Whether its first start ended with the exit code of bad configuration, as others would: there are none,
        and its log says why in its last line."""
        self._argv = list(argv)
        self._cwd = cwd
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start it, and keep it running from now on. Raises OSError if it cannot be started at all."""
        self._stopping, self.gave_up, self.early_deaths = False, False, 0
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep-{self.name}")

    async def _launch(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._trim_log()
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *lifeline.command(*self._argv),
                env=self.env,
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for the supervisor alone
            )

    async def _keep(self) -> None:
        """Wait for its deaths and start it again; a start that fails is a death as well."""
        backoff = FIRST_BACKOFF
        started = time.monotonic()
        while not self._stopping:
            said = await self._death()
            if self._stopping or self.misconfigured:
                return
            if time.monotonic() - started > STABLE_AFTER:
                backoff, self.early_deaths = FIRST_BACKOFF, 0
            self.early_deaths += 1
            self._say(f"{self.name} {said}; starting it again in {backoff:.0f} s (log: {self.log})")
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF)
            started = time.monotonic()
            try:
                await self._launch()
            except OSError as error:
                self._process = None
                self._say(f"{self.name} could not be started: {error}")
                continue
            self.restarts += 1

    async def _death(self) -> str:
        process = self._process
        if process is None:
            return "does not run"
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOG_LOOK):
                    code = await process.wait()
                    self.gave_up = code >= 0
                    self.misconfigured |= code == ConfigError.exit_code and self.restarts == 0
                    return describe_exit(code)
            self._trim_log()

    def _trim_log(self) -> None:
        """Set a large log aside; the program writes on into the same, emptied file (it was opened for appending)."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_LIMIT:
                shutil.copyfile(self.log, self.log.with_suffix(".1.log"))
                os.truncate(self.log, 0)

    async def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds. Returns when it is gone."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace):
                    await process.wait()
            except TimeoutError:
                self._say(f"{self.name} did not end within {grace:.0f} s; killing it")
                self.kill()
                await process.wait()
        if self._keeper is not None:
            await end([self._keeper])

    def kill(self) -> None:
        """SIGKILL, for good; a stop in progress then ends at once."""
        self._stopping = True
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def log_tail(self, lines: int = 5) -> str:
        """The last lines of its log, for an error message."""
        with contextlib.suppress(OSError):
            return " | ".join(self.log.read_bytes()[-4000:].decode("utf-8", "replace").strip().splitlines()[-lines:])
        return ""


def describe_exit(code: int) -> str:
    """`ended with exit code 3`, or `was ended by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
