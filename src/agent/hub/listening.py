"""Listening to a file of the catalogue in a browser: by its number, with ranges, and nothing else on this machine.

No path comes from a request. From the scan's root down, each folder is opened inside the one before and no link is
followed, so that a file which somebody has replaced by a link since the scan plays nothing.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import stat
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from agent.hub.copies import Location
from agent.hub.derived import file_id_of
from agent.hub.services import Services
from pipelines.payload import decode_path

OPEN_TIMEOUT = 20.0
"""Seconds for a disk to wake up, or a network mount to answer."""

KINDS = {".flac": "audio/flac", ".opus": "audio/ogg", ".ogg": "audio/ogg", ".oga": "audio/ogg", ".m4a": "audio/mp4",
         ".mka": "audio/x-matroska", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".aac": "audio/aac",
         ".webm": "audio/webm"}  # fmt: skip
"""What a browser wants to hear, where the system's own table differs."""


class _OpenFile(FileResponse):
    """Starlette's answer with ranges, for a file that is open; closed when the answer ends, however it ends."""

    def __init__(self, descriptor: int, media_type: str) -> None:
        super().__init__(f"/dev/fd/{descriptor}", media_type=media_type, stat_result=os.fstat(descriptor))
        self._descriptor = descriptor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)


async def audio(request: Request) -> Response:
    """GET /files/{file_id}/audio: the file's bytes, whole or in ranges. 404: not in the catalogue, or not here."""
    services: Services = request.app.state.services
    file_id = file_id_of(request.path_params["file_id"])
    found = None if file_id is None else await asyncio.to_thread(services.catalogue.location, file_id)
    if found is None:
        raise HTTPException(404, "the catalogue has no such file")
    try:
        async with asyncio.timeout(OPEN_TIMEOUT):
            descriptor = await asyncio.to_thread(open_below, found)
    except OSError as error:  # a time-out is one as well
        raise HTTPException(404, f"the file cannot be read on this machine ({error.strerror or 'no answer'})") from None
    return _OpenFile(descriptor, media_type(decode_path(found.path).name))


def media_type(name: str) -> str:
    """By the suffix; only ever a kind of sound, or bytes."""
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - a name, not a path
    guessed = KINDS.get(suffix) or mimetypes.types_map.get(suffix, "")
    return guessed if guessed.startswith("audio/") else "application/octet-stream"


def open_below(where: Location) -> int:
    """A descriptor of the regular file below its root, links followed nowhere below it. Raises OSError."""
    root, path = os.fspath(decode_path(where.root)), os.fspath(decode_path(where.path))
    if path == root:
        root, steps = os.path.dirname(path), [os.path.basename(path)]  # noqa: PTH119, PTH120 - bytes as they are
    else:
        below = root if root.endswith("/") else f"{root}/"
        steps = path.removeprefix(below).split("/") if path.startswith(below) else []
    if not steps or any(step in ("", ".", "..") for step in steps):
        raise FileNotFoundError(2, "not below its root")
    return _descend(root, steps)


def _descend(root: str, steps: Sequence[str]) -> int:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps[:-1]:
            inner = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        file = os.open(steps[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(22, "not a regular file")
    return file
