"""route_document: where a document is, in; its pages, read and sorted by what they are about, out.

The work is `run`, which knows nothing of queues; `route_document` is the task around it. Nothing heavy is imported with
the module.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from pipelines.context import InlineContext, Policy, TaskContext, task
from pipelines.documents.categories import Classify, categorised, judge_all
from pipelines.documents.fetch import Fetcher
from pipelines.documents.pages import Reading, ReadPages
from pipelines.documents.router_settings import RouterSettings
from pipelines.documents.source import Held, downloaded, local
from pipelines.payload import Payload, decode_path

LONGEST = 3600.0
"""Seconds that one document may take, a scan of a hundred pages included."""


class RoutePayload(Payload):
    """One document: `url` or `path`. `version`: a hash of the request, or of the content where that is known."""

    record_id: str = ""
    user_id: str = ""
    url: str | None = Field(default=None, repr=False)
    """http(s). Its query may be a secret: it is never shown, and not in the result."""
    path: str | None = None
    """Percent-encoded absolute path (`encode_path`), below one of PHAZE_DOCUMENT_ROOTS."""

    @model_validator(mode="after")
    def _one_of_both(self) -> RoutePayload:
        if (self.url is None) == (self.path is None):
            raise ValueError("give either url or path")
        return self


class Routed(ReadPages):
    """A document's pages with their categories."""

    bytes: int = 0
    """Of the document."""


async def run(
    *,
    url: str | None = None,
    path: str | Path | None = None,
    settings: RouterSettings | None = None,
    context: TaskContext | None = None,
    model: Classify | None = None,
    fetcher: Fetcher | None = None,
) -> Routed:
    """Fetch or open a document, read its pages and say what each is about.

    `context` runs what may crash or hang in a child process; without one it runs in a thread of this process. `model`
    sorts the pages of which the rules are unsure. Raises RecordNotFoundError, InputRejected (the reasons are in
    `fetch`, `source` and `extract`), TryLater, NotGranted, OSError, TimeoutError.
    """
    settings = settings or RouterSettings()
    context = context or InlineContext()
    source: AbstractAsyncContextManager[Held]
    if url is not None:
        source = downloaded(url, fetcher or Fetcher(settings.networks, settings.limits))
    elif path is not None:
        source = local(Path(path), settings.roots, settings.limits.bytes)
    else:
        raise ValueError("give either url or path")
    async with source as held:
        read = await Reading(context, held.path, most=settings.most_pages, mineru=settings.mineru).run()
    found = await context.child(judge_all, read.pages)
    pages = [await categorised(page, one, model) for page, one in zip(read.pages, found, strict=True)]
    return Routed(**{**dict(read), "pages": pages}, bytes=held.size)


def route_seconds(payload: RoutePayload) -> float:
    return LONGEST


def host_of(url: object) -> str:
    """The dependency: `documents:<host>` (`documents:local` for a path), so that one host's outage holds up nothing
    but its own documents."""
    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        host = None
    return f"documents:{host or 'local'}"


@task(Policy(timeout=route_seconds, dependency=lambda payload: host_of(payload.url)))
async def route_document(ctx: TaskContext, payload: RoutePayload) -> Routed:
    """The pages of one document; raises what `run` raises."""
    path = None if payload.path is None else decode_path(payload.path)
    return await run(url=payload.url, path=path, settings=RouterSettings.of(os.environ), context=ctx)
