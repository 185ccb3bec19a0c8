"""What a task may say went wrong. Anything else that it raises is retried for ever.

All of them survive pickling, because they are raised in child processes too.
"""

from __future__ import annotations


class TaskError(Exception):
    """Base of what tasks raise on purpose."""


class RecordNotFoundError(TaskError):
    """The record itself is gone while its root is there. A dead letter at once; a missing mount is not it."""


class InputRejected(TaskError):
    """The input is at fault and will be tomorrow: corrupt, encrypted, unsupported, too large. Never retried.

    `reason` is one of a small vocabulary that tables group by (`not-audio`, `too-short`, ...); `detail` is for
    the person who looks at the file.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class InputChanged(TaskError):
    """The file is no longer the one that was scanned; the next scan brings its new version."""


class LeaseLost(TaskError):
    """Another worker owns the record now; stop, and write nothing more."""


class ChildDied(TaskError):
    """The child process died under the job: a signal, a crash in native code, or its memory cap."""


class ToolMissing(TaskError):
    """A program or wheel that the task needs is not on this machine. Says which, and how to get it."""


class NotAnswered(TaskError):
    """Whoever runs the task could not be asked (`ctx.ask`): the control plane is away, or fails."""


class NotGranted(TaskError):
    """What the task asked for (`ctx.ask`) is not set up, or not for this record; the message names the remedy."""


class KeyRefused(NotGranted):
    """The billing service gives this user no key. The user's own circuit counts this."""


class TryLater(TaskError, ConnectionError):
    """The other side is away, fails, or wants to be left alone. Retried; it counts against its circuit.

    `after`: seconds that it asked for (Retry-After); None if it did not say.
    """

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message, after)
        self.message = message
        self.after = after

    def __str__(self) -> str:
        return self.message
