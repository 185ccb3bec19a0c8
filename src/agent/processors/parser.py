"""The parser's lane: the pages that the router left, in; what they say, out."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field

from agent.processors.base import BaseProcessor, Record
from agent.processors.router import payer_of
from pipelines.context import Policy
from pipelines.documents import parser
from pipelines.documents.page import MOST_PAGES, Page
from pipelines.documents.parser import ModelChoice

Pages = Annotated[list[Page], Field(max_length=MOST_PAGES)]


def seconds_of(record: Record) -> float:
    """By the number of pages that the router named."""
    pages = record.data.get("pages")
    return parser.parse_seconds(pages if isinstance(pages, int) else MOST_PAGES, ModelChoice.of(os.environ))


class Parser(BaseProcessor):
    """Reads biomarkers, diagnoses, procedures and genetic variants off a record's pages: by rules, and by a model
    besides where one is set."""

    policy = Policy(
        timeout=seconds_of, dependency=lambda record: parser.llm_of(ModelChoice.of(os.environ)), user=payer_of
    )
    next_service = "grouper"
    last_to_read_pages = True

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        pages = self.understood(Pages, await self.pages(record_id))
        model = ModelChoice.of(os.environ)
        key = None if model is None else (await self.context.api_key()).secret
        parsed = await parser.parse_pages(pages, model, key, on_usage=parser.reported, context=self.context)
        if parsed.outcome == "partial":
            self.partial(parsed.reason or "")
        return parsed.model_dump(mode="json", exclude={"outcome", "reason"})
