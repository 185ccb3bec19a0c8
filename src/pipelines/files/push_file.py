"""push_file: a file to another machine, rsync over ssh. The payload stands; the work is not built yet."""

from __future__ import annotations

from pydantic import Field

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import NotBuiltError
from pipelines.files.transfer import transfer_seconds
from pipelines.payload import FilePayload, TaskResult


class PushPayload(FilePayload):
    """One file to push to `user@host:destination`."""

    host: str = Field(pattern=r"^[A-Za-z0-9\[][A-Za-z0-9.:\]_-]*$")
    port: int = Field(default=22, ge=1, le=65_535)
    user: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9._-]*$")
    destination: str
    """Percent-encoded absolute path on the other machine."""
    host_key: str
    """The line of known_hosts that the host must show; another key is refused."""
    key_name: str
    """Which of the agent's own private keys to use. A key never travels in a payload."""


class Push(TaskResult):
    """`sha256` as computed where the file arrived; `bytes` sent."""

    sha256: str = ""
    bytes: int = 0


def endpoint(payload: PushPayload) -> str:
    """The dependency: `ssh:<host>:<port>`."""
    return f"ssh:{payload.host}:{payload.port}"


@task(Policy(timeout=transfer_seconds, outside_effects=True, dependency=endpoint))
async def push_file(ctx: TaskContext, payload: PushPayload) -> Push:
    """Raises NotBuiltError; nothing is sent."""
    raise NotBuiltError("push_file")
