"""The grouper's lane: what a document says, in; its results by analyte, in one unit each, out."""

from __future__ import annotations

from typing import Any

from agent.processors.base import BaseProcessor
from pipelines.context import Policy
from pipelines.documents.facts import Facts
from pipelines.documents.grouper import group_facts

SECONDS = 600.0
"""For one record; usual: a second for each thousand results."""


class Grouper(BaseProcessor):
    """`facts`: of one document, as the parser sends them; or a list of several documents' of one person."""

    policy = Policy(timeout=lambda record: SECONDS)

    async def process(self, record_id: str, user_id: str, data: dict[str, Any]) -> dict[str, Any] | None:
        said = data.get("facts")
        facts = self.understood(list[Facts], said if isinstance(said, list) else [said])
        grouped = await self.context.child(group_facts, facts)
        return grouped.model_dump(mode="json", exclude={"outcome", "reason"})
