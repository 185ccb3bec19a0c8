"""The router's lane: where a document is, in; its pages for the stages that follow, and what became of each."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from agent.processors.base import BaseProcessor, Record
from pipelines.context import Policy
from pipelines.documents import router
from pipelines.documents.categories import classified_by
from pipelines.documents.llm import Client
from pipelines.documents.llm_errors import AnswerCut, BadAnswer, ModelBusy, ModelRefused
from pipelines.documents.parser import ModelChoice, reported
from pipelines.documents.router_settings import RouterSettings
from pipelines.payload import decode_path, display_path


def payer_of(record: Record) -> str:
    """Whose key pays for the model; nobody where there is none."""
    return record.user_id if ModelChoice.of(os.environ) else ""


def host_in(url: str | None) -> str:
    """All of an address that may be shown: what else is in it may be a secret."""
    return urlsplit(url or "").hostname or ""


class Router(BaseProcessor):
    """Fetches or opens a document (`url`, or `path`: percent-encoded) and reads its pages. They are left for the next
    stage; the result says what each is about, and which were skipped or failed."""

    policy = Policy(
        timeout=lambda record: router.LONGEST,
        dependency=lambda record: router.host_of(record.data.get("url")),
        user=payer_of,
    )
    next_service = "parser"

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        asked = self.understood(router.RoutePayload, {**data, "version": "-"})
        path = None if asked.path is None else decode_path(asked.path)
        settings, choice = RouterSettings.of(os.environ), ModelChoice.of(os.environ)
        if choice is None:
            routed = await router.run(url=asked.url, path=path, settings=settings, context=self.context)
        else:
            async with Client(choice.as_model(), reported) as client:
                # What a page is about is a hint: a model that is away holds no document up.
                model = classified_by(client, self._key, (ModelRefused, AnswerCut, BadAnswer), (ModelBusy,))
                routed = await router.run(
                    url=asked.url, path=path, settings=settings, context=self.context, model=model
                )
        self.keep_pages(routed.pages)
        if routed.outcome == "partial":
            self.partial(routed.reason or "")
        return {
            "document": host_in(asked.url) if asked.path is None else display_path(asked.path),
            "user": user_id,
            "pages": len(routed.pages),
            "categories": Counter(category for page in routed.pages for category in page.categories),
            "sources": Counter(page.source for page in routed.pages),
            **routed.model_dump(mode="json", include={"skipped", "failed", "bytes"}),
        }

    async def _key(self) -> SecretStr:
        return (await self.context.api_key()).secret
