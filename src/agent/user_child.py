"""The program of a user's child process: one call, read from standard input, and what it came to, into a pipe.

    python -Iu user_child.py PIPE PARENT MEMORY        started by user_children.py with the user's environment

In: two frames, the module search path (JSON) and the call (pickle). Out: frames, of which the result is the last.
A frame is one letter for its kind, its length (4 bytes, big endian) and its body:

    S  spent (JSON)     P  progress (JSON)     R  result (pickle)     T  a TaskError, or ChildError (pickle)

What was spent is in the pipe before the library goes on, so that no end of this process takes it back.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pipelines.payer import ApiKey, Spent

HEAD = struct.Struct(">cI")

OFTEN = 0.2
"""Seconds between two words about progress that are passed on."""


def read_frame(stream: BinaryIO) -> bytes:
    """The body of the next frame."""
    _, length = HEAD.unpack(stream.read(HEAD.size))
    return stream.read(length)


class Line:
    """The pipe to the worker, for all threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = threading.Lock()
        self._said = 0.0

    def send(self, kind: bytes, body: bytes) -> None:
        """One frame, whole."""
        frame = memoryview(HEAD.pack(kind, len(body)) + body)
        with self._turn:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]

    def progress(self, fraction: float, note: str) -> None:
        """Pass on how far the work is, now and then."""
        if time.monotonic() - self._said >= OFTEN:
            self._said = time.monotonic()
            self.send(b"P", json.dumps([fraction, note[:1000]]).encode())


class OwnEnvironment:
    """The payer of this process: the key is in its environment."""

    def __init__(self, line: Line, user: str, variable: str) -> None:
        self._line = line
        self._user = user
        self._variable = variable

    async def api_key(self) -> ApiKey:
        from pydantic import SecretStr

        from pipelines.payer import ApiKey

        return ApiKey(self._user, SecretStr(os.environ[self._variable]), os.environ.get("OPENAI_BASE_URL"))

    def spent(self, spent: Spent) -> None:
        self._line.send(b"S", json.dumps([spent.prompt_tokens, spent.completion_tokens, spent.model]).encode())


def main() -> None:
    """Do what standard input says."""
    descriptor, parent, memory = map(int, sys.argv[1:])
    os.set_inheritable(descriptor, False)
    sys.path[:] = json.loads(read_frame(sys.stdin.buffer))
    call = read_frame(sys.stdin.buffer)
    import pickle

    from agent.child import ChildError, guarded, settle_in
    from pipelines.errors import TaskError
    from pipelines.payer import set_payer
    from pipelines.saying import set_listener

    settle_in(parent, memory)
    line = Line(descriptor)
    set_listener(line.progress)

    def work() -> object:
        user, variable, function, args, kwargs = pickle.loads(call)  # noqa: S301 - from our own worker
        set_payer(OwnEnvironment(line, user, variable))
        return guarded(function, args, kwargs)

    try:
        result = guarded(work, (), {})
    except (TaskError, ChildError) as error:
        line.send(b"T", pickle.dumps(error))
    else:
        line.send(b"R", pickle.dumps(result))


if __name__ == "__main__":
    main()
