"""Child processes for libraries that find a user's key in their environment: one process, one call, then it ends.

The environment is made of the names in KEPT and of the key; nothing else of the worker's is in it. The working
directory is `/`, because the worker's may hold its `.env`. What a library prints goes into the worker's log, without
secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import structlog

from agent import user_child
from agent.child import ChildTimeout, describe
from agent.metrics import CHILDREN_ENDED
from agent.redaction import redact_text
from agent.user_child import HEAD
from pipelines.errors import ChildDied
from pipelines.payer import ApiKey, Spent
from pipelines.saying import Listener

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

KEPT = frozenset({
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
})  # fmt: skip
"""What a child gets of the worker's environment: where programs and certificates are, how to speak to the network."""

BASE_URL = "OPENAI_BASE_URL"

END = 5.0
"""Seconds for a killed child to be gone, and for what it had reported to be read."""

LINE = 2_000
"""Characters of a printed line that are logged."""

MOST_LINES = 1_000
"""Lines of one call that are logged; what more it prints is only counted."""

TAIL = 5
"""Lines, the last ones, that stand in the error of a process that died."""


class UserChildren:
    """At most `slots` of them at once.

    Args:
        memory_mb: cap of one process.
        variables: what the key is called in its environment.
        more: further variables that are taken over from the worker's.
    """

    def __init__(
        self,
        slots: int,
        *,
        memory_mb: int = 4096,
        variables: Iterable[str] = ("OPENAI_API_KEY",),
        more: Iterable[str] = (),
    ) -> None:
        self._free = asyncio.Semaphore(slots)
        self._memory = memory_mb * 2**20
        self._variables = tuple(variables)
        self._kept = KEPT | set(more)

    def environment(self, key: ApiKey, worker: Mapping[str, str]) -> dict[str, str]:
        """All that a child of this user sees."""
        found = {name: value for name, value in worker.items() if name in self._kept}
        found |= dict.fromkeys(self._variables, key.secret.get_secret_value())
        return found if key.base_url is None else {**found, BASE_URL: key.base_url}

    async def run(
        self,
        key: ApiKey,
        spent: Callable[[Spent], None],
        listener: Listener,
        timeout: float,
        function: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call `function` (a module's; a coroutine function too) in a process of that user.

        `spent` and `listener` hear on the event loop what it reports. Raises ChildTimeout, ChildDied, ChildError, or
        the TaskError that it raised. However it ends, what it had reported as spent has been heard by then.
        """
        call = pickle.dumps((key.user, self._variables[0], function, args, kwargs))
        async with self._free:
            child = _Child(spent, listener)
            try:
                await child.start(self.environment(key, os.environ), self._memory)
                async with asyncio.timeout(timeout):
                    answer = await child.ask(call)
            except TimeoutError:
                CHILDREN_ENDED.labels("timeout").inc()
                raise ChildTimeout(f"killed after {timeout:.0f} s") from None
            finally:
                await child.end()
            if answer is None:
                CHILDREN_ENDED.labels("died").inc()
                raise ChildDied(child.died())
            kind, body = answer
            result: Any = pickle.loads(body)  # noqa: S301 - written by our own code, with our own user's rights
            if kind != b"T":
                return result  # type: ignore[no-any-return]  # what `function` returned
            if isinstance(result, ChildDied):  # it said so itself before its end
                CHILDREN_ENDED.labels("memory").inc()
            raise result


def _search_path() -> bytes:
    """Where this process finds its modules, as another does that is elsewhere."""
    return json.dumps([str(Path(path).absolute()) for path in sys.path if path]).encode()


class _Child:
    """One process, its pipes, and the two readers of them."""

    def __init__(self, spent: Callable[[Spent], None], listener: Listener) -> None:
        self._spent = spent
        self._listener = listener
        self._process: asyncio.subprocess.Process | None = None
        self._frames: asyncio.Task[tuple[bytes, bytes] | None] | None = None
        self._printed: asyncio.Task[None] | None = None
        self._last: list[str] = []

    async def start(self, environment: dict[str, str], memory: int) -> None:
        """In a session of its own, so that what it starts itself is ended with it."""
        hear, say = os.pipe()
        try:
            program = [sys.executable, "-Iu", str(Path(user_child.__file__)), str(say), str(os.getpid()), str(memory)]
            self._process = await asyncio.create_subprocess_exec(
                *program, env=environment, cwd="/", pass_fds=(say,), start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except BaseException:
            os.close(hear)
            raise
        finally:
            os.close(say)
        assert self._process.stdout is not None
        self._printed = asyncio.create_task(self._log(self._process.stdout))
        self._frames = asyncio.create_task(self._read(hear))

    async def ask(self, call: bytes) -> tuple[bytes, bytes] | None:
        """Hand over the call; kind and body of its last frame, None for a process that ended without one."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._frames is not None
        with contextlib.suppress(ConnectionError):  # it died before it had read all; its end says how
            for body in (_search_path(), call):
                self._process.stdin.write(HEAD.pack(b"C", len(body)) + body)
            await self._process.stdin.drain()
            self._process.stdin.close()
        return await asyncio.shield(self._frames)

    async def end(self) -> None:
        """Kill it and all that it started; hear what it had said by then."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        readers = [task for task in (self._frames, self._printed) if task is not None]
        try:
            await asyncio.wait(readers, timeout=END)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END):
                    await self._process.wait()
        finally:
            for task in readers:
                task.cancel()

    def died(self) -> str:
        """How it ended, and what it printed last."""
        assert self._process is not None
        said = f"its child process {self._process.pid} {describe(self._process.returncode)}"
        return redact_text("; it said: ".join([said, *([" / ".join(self._last)] if self._last else [])]))

    async def _read(self, descriptor: int) -> tuple[bytes, bytes] | None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(descriptor, "rb", 0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while True:
                kind, length = HEAD.unpack(await reader.readexactly(HEAD.size))
                body = await reader.readexactly(length)
                if kind == b"S":
                    self._spent(Spent(*json.loads(body)))
                elif kind == b"P":
                    self._listener(*json.loads(body))
                else:
                    return kind, body
        except asyncio.IncompleteReadError:
            return None
        finally:
            transport.close()

    async def _log(self, printed: asyncio.StreamReader) -> None:
        """Line by line, as far as it is bearable."""
        seen, rest = 0, b""
        while chunk := await printed.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[: LINE * 4]  # of a line without end, the beginning
            for line in lines:
                seen += 1
                self._note(line, seen)
        if rest:
            seen += 1
            self._note(rest, seen)
        if seen > MOST_LINES:
            log.info("child.said_more", lines=seen - MOST_LINES)

    def _note(self, line: bytes, number: int) -> None:
        text = redact_text(line[: LINE * 4].decode("utf-8", "replace").rstrip())[:LINE]  # half a key is not known
        self._last = [*self._last, text][-TAIL:]
        if text and number <= MOST_LINES:
            log.info("child.said", line=text)
