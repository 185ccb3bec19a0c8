"""What calls to models came to, by who paid and for which record: one row a call, however often it is delivered."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from agent.hub.schema import usage
from agent.phoenix.outbox import MAX_NAME, Entry
from pipelines.payer import MOST_TOKENS


class UsageRefused(Exception):
    """This call cannot be counted; the message goes back to the agent as the reason."""


@dataclass(frozen=True)
class Usage:
    """Sums over some calls. `user`, `service`, `record_id` and `model`: what they have in common, if they are asked
    apart by it; times in Unix seconds of the workers' clocks."""

    user: str
    service: str
    record_id: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    calls: int
    runs: int
    records: int
    first: float
    last: float

    @property
    def total_tokens(self) -> int:
        """Both kinds."""
        return self.prompt_tokens + self.completion_tokens


def record(connection: sa.Connection, agent_id: str, entry: Entry) -> None:
    """Count one call, once. Raises UsageRefused."""
    spent = entry.usage
    assert spent is not None
    if entry.part is None or not 0 <= entry.part <= MOST_TOKENS:
        raise UsageRefused("part must say which call of its run it is")
    if not (0 <= spent.prompt_tokens <= MOST_TOKENS and 0 <= spent.completion_tokens <= MOST_TOKENS):
        raise UsageRefused("tokens must be whole numbers from 0 to 10^9")
    if len(spent.user) > MAX_NAME or len(spent.model) > MAX_NAME:
        raise UsageRefused(f"user and model must be {MAX_NAME} characters of text at most")
    row = {
        "agent_id": agent_id,
        "service": entry.service,
        "record_id": entry.record_id,
        "token": entry.token,
        "call": entry.part,
        "version": entry.version,
        "user": spent.user,
        "model": spent.model,
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.completion_tokens,
        "spent_at": entry.finished_at,
    }
    connection.execute(insert(usage).values(row).on_conflict_do_nothing())


def sums(
    connection: sa.Connection,
    *,
    by: tuple[str, ...],
    user: str | None = None,
    since: float = 0.0,
    limit: int = 1000,
    offset: int = 0,
) -> list[Usage]:
    """Sums by some of `user`, `service`, `record_id`, `model` (none: one row), the largest first; no calls, no row."""
    chosen = [usage.c[name] for name in by]
    tokens = sa.func.sum(usage.c.prompt_tokens), sa.func.sum(usage.c.completion_tokens)
    of_record = usage.c.service + sa.literal(":") + usage.c.record_id
    query = (
        sa.select(
            *chosen,
            tokens[0].label("prompt_tokens"),
            tokens[1].label("completion_tokens"),
            sa.func.count().label("calls"),
            sa.func.count(usage.c.token.distinct()).label("runs"),
            sa.func.count(of_record.distinct()).label("records"),
            sa.func.min(usage.c.spent_at).label("first"),
            sa.func.max(usage.c.spent_at).label("last"),
        )
        .where(usage.c.spent_at >= since)
        .group_by(*chosen)
        .having(sa.func.count() > 0)
        .order_by((tokens[0] + tokens[1]).desc(), *chosen)
        .limit(limit)
        .offset(offset)
    )
    if user is not None:
        query = query.where(usage.c.user == user)
    common = dict.fromkeys(("user", "service", "record_id", "model"), "")
    return [Usage(**{**common, **row._mapping}) for row in connection.execute(query)]
