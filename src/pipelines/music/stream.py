"""One running ffmpeg: its output in blocks, its log bounded, its end certain.

ffmpeg ends by itself when nobody reads any more (the write fails with EPIPE), so a reader killed with -9 leaves
nothing behind; a reader that merely stops calls `close`, which kills and reaps.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO

from pipelines import lifeline
from pipelines.errors import InputRejected

SIDE = "{side}"
"""Stands in an argument for the side channel, `pipe:<fd>`."""

MEMORY = 1 << 30
"""Bytes of data that one ffmpeg may hold; decoding and resampling needs a twentieth of it."""

SIDE_LIMIT = 64 << 20
"""Bytes kept from the side channel; a raw fingerprint is 116 kB an hour."""

CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}
)
"""What a program does to itself; any other signal comes from outside."""

_NO_LAYOUT = re.compile(r"Rematrix is needed between (\d+) channels and \S+ but there is not enough information")
"""What swresample says of channels that it cannot mix, for nothing says where each of them stands (9, 11, 20 ...)."""

_SIGNAL = re.compile(r"Exiting normally, received signal (\d+)")


@dataclass(frozen=True)
class Budget:
    """What one ffmpeg may use: `wall` and `cpu` in seconds, `output` in bytes."""

    wall: float
    cpu: float
    output: int


@dataclass
class Log:
    """ffmpeg's stderr: its first and last lines, and how many lines were errors."""

    head: list[str] = field(default_factory=list)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    errors: int = 0

    def read(self, pipe: IO[bytes]) -> None:
        for raw in iter(lambda: pipe.readline(2000), b""):
            line = raw.decode("utf-8", "replace").rstrip()
            self.errors += "[error]" in line
            if len(self.head) < 200:
                self.head.append(line)
            else:
                self.tail.append(line)

    def lines(self) -> list[str]:
        return [*self.head, *self.tail]

    def last_error(self) -> str:
        """The last line that names an error, without its prefix; empty if there is none."""
        for line in reversed(self.lines()):
            for level in ("[fatal] ", "[error] "):
                if level in line:
                    return line.rpartition(level)[2][:300]
        return ""


def nothing_decoded(log: Log) -> InputRejected:
    """Why a file that was recognised gave no sound at all, for whoever asks to raise."""
    for line in log.lines():
        if found := _NO_LAYOUT.search(line):
            return InputRejected("unsupported", f"{found[1]} channels, and nothing says where each of them stands")
    return InputRejected("corrupt", log.last_error() or "nothing could be decoded")


class FfmpegStream:
    """Use as a context manager; iterate `blocks`, then look at `log`, `side` and `code`."""

    def __init__(self, arguments: list[str], budget: Budget) -> None:
        self.log = Log()
        self.side = bytearray()
        self.code: int | None = None
        self._budget = budget
        self._deadline = time.monotonic() + budget.wall
        reader, writer = os.pipe()
        argv = [argument.replace(SIDE, f"pipe:{writer}") for argument in arguments]
        argv[1:1] = ["-timelimit", str(max(1, int(budget.cpu)))]
        try:
            self._process = subprocess.Popen(
                lifeline.command(*argv),  # a stopped or hung one would not notice that its reader is gone
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(writer,),
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        with contextlib.suppress(OSError, AttributeError):  # gone already, or not Linux
            resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out = self._process.stdout
        self._threads = [
            threading.Thread(target=self._read_log, args=(self._process.stderr,), daemon=True),
            threading.Thread(target=self._read_side, args=(reader,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def blocks(self, size: int) -> Iterator[bytearray]:
        """stdout in blocks of `size` bytes, the last one shorter.

        Raises TimeoutError past the wall budget, InputRejected past the others or if ffmpeg crashed.
        """
        total = 0
        block = bytearray()
        while True:
            chunk = self._read(min(size - len(block), 1 << 20))
            if not chunk:
                break
            total += len(chunk)
            if total > self._budget.output:
                raise InputRejected("too-long", f"over {self._budget.output >> 20} MB once decoded")
            block += chunk
            if len(block) == size:
                yield block
                block = bytearray()
        self._finish()
        if block:
            yield block

    def close(self) -> None:
        """Kill if it still runs, reap, close the pipes."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self.code = self._process.wait()
        for thread in self._threads:
            thread.join()
        self._out.close()

    def __enter__(self) -> FfmpegStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, size: int) -> bytes:
        waiting = select.poll()
        waiting.register(self._out, select.POLLIN)
        left = self._deadline - time.monotonic()
        if left <= 0 or not waiting.poll(left * 1000):
            raise TimeoutError(f"ffmpeg was not done after {self._budget.wall:.0f} s")
        return os.read(self._out.fileno(), size)

    def _finish(self) -> None:
        try:
            self.code = self._process.wait(max(1.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"ffmpeg was not done after {self._budget.wall:.0f} s") from error
        for thread in self._threads:
            thread.join()
        received = _SIGNAL.search("\n".join(self.log.lines()))  # ffmpeg catches what it can and exits with 255
        number = -self.code if self.code < 0 else int(received.group(1)) if received else 0
        if number == signal.SIGXCPU:
            raise InputRejected("too-slow", f"over {self._budget.cpu:.0f} s of CPU to decode")
        if number and number not in CRASHES:  # memory ended, a terminal closed, somebody: not the file
            raise OSError(f"ffmpeg was ended from outside by {signal.Signals(number).name}")
        if number:
            raise InputRejected("decoder-crash", f"ffmpeg died of {signal.Signals(number).name}")

    def _read_log(self, pipe: IO[bytes]) -> None:
        with pipe:
            self.log.read(pipe)

    def _read_side(self, reader: int) -> None:
        with open(reader, "rb") as pipe:
            while chunk := pipe.read(1 << 16):
                if len(self.side) < SIDE_LIMIT:
                    self.side += chunk
