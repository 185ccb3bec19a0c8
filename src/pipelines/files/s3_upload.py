"""s3_upload: a file to an object store by presigned URLs. The payload stands; the work is not built yet."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import NotBuiltError
from pipelines.files.transfer import transfer_seconds
from pipelines.payload import FilePayload, TaskResult


class S3UploadPayload(FilePayload):
    """One file to upload in parts. The control plane owns the credentials; the URLs are secrets: never log them."""

    part_urls: list[str] = Field(min_length=1, max_length=10_000, repr=False)
    """A presigned PUT for each part, in order."""
    part_size: int = Field(ge=5 << 20)
    """Bytes of every part but the last; S3 takes no less than 5 MiB."""
    complete_url: str = Field(repr=False)
    abort_url: str = Field(repr=False)


class Upload(TaskResult):
    """`sha256` of the bytes that were sent; `etag` as the store answered; `bytes` sent."""

    sha256: str = ""
    etag: str = ""
    bytes: int = 0


def endpoint(payload: S3UploadPayload) -> str:
    """The dependency: `s3:<host>`, so that one store's outage holds up no other."""
    return f"s3:{urlsplit(payload.complete_url).netloc.rpartition('@')[2]}"


@task(Policy(timeout=transfer_seconds, outside_effects=True, dependency=endpoint))
async def s3_upload(ctx: TaskContext, payload: S3UploadPayload) -> Upload:
    """Raises NotBuiltError; nothing is sent."""
    raise NotBuiltError("s3_upload")
