"""Run a program that ends when its parent does: `python lifeline.py PARENT_PID PROGRAM [ARG ...]`.

The kernel's parent-death signal (Linux, prctl(2)) survives execve, so a small start program can set it for any other,
a server binary included. Elsewhere the program simply runs. SIGKILL is right because everything here survives a crash.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; at once if `parent` is gone already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def command(*argv: str) -> list[str]:
    """`argv`, to be started so that it ends with the calling process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def script(*argv: str) -> str:
    """A shell script that runs `argv` and what is given to it, to end with whoever starts the script."""
    import shlex  # costs as much as all the rest, and starting a program does not want it

    start = shlex.join([sys.executable, "-I", "-S", __file__])
    return f'exec {start} "$PPID" {shlex.join(argv)} "$@"\n'


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell is the point
