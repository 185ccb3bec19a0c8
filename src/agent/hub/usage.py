"""What calls to models came to, by who paid and for which record: one row a call, however often it is delivered.

After KEPT_DAYS all calls of a day with one model, by one user, for one task of one agent are one row: of which records
they were is forgotten then, and no sum changes. So the table grows with what was asked lately, not for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from agent.hub.schema import usage, usage_days
from agent.phoenix.outbox import MAX_NAME, Entry
from pipelines.payer import MOST_TOKENS

DAY = 86_400
KEPT_DAYS = 90
"""Days, in UTC and by the workers' clocks, for which each call is kept by itself."""

KEPT = ("agent_id", "service", "user", "model")
ADDED = ("prompt_tokens", "completion_tokens", "calls", "runs", "records")


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


def roll_up(connection: sa.Connection, now: float) -> bool:
    """Put the oldest day of calls into rows for the day, if it is KEPT_DAYS past; whether there was one."""
    oldest = connection.scalar(sa.select(sa.func.min(usage.c.spent_at)))
    if oldest is None or (day := int(max(0.0, oldest) // DAY)) >= int(now // DAY) - KEPT_DAYS:
        return False
    past = usage.c.spent_at < (day + 1) * DAY
    days = sa.select(sa.literal(day), *(usage.c[name] for name in KEPT), *_numbers()).where(past)
    names = ["day", *KEPT, *ADDED, "first", "last"]
    statement = insert(usage_days).from_select(names, days.group_by(*(usage.c[name] for name in KEPT)))
    new, old = statement.excluded, usage_days.c
    more: dict[str, sa.ColumnElement[Any]] = {name: old[name] + new[name] for name in ADDED}
    more |= {"first": sa.func.min(old.first, new.first), "last": sa.func.max(old.last, new.last)}
    connection.execute(statement.on_conflict_do_update(index_elements=["day", *KEPT], set_=more))
    connection.execute(sa.delete(usage).where(past))
    return True


def _numbers() -> list[sa.ColumnElement[Any]]:
    """ADDED, first and last, of single calls."""
    of_record = usage.c.service + sa.literal(":") + usage.c.record_id
    return [
        sa.func.sum(usage.c.prompt_tokens).label("prompt_tokens"),
        sa.func.sum(usage.c.completion_tokens).label("completion_tokens"),
        sa.func.count().label("calls"),
        sa.func.count(usage.c.token.distinct()).label("runs"),
        sa.func.count(of_record.distinct()).label("records"),
        sa.func.min(usage.c.spent_at).label("first"),
        sa.func.max(usage.c.spent_at).label("last"),
    ]


def sums(
    connection: sa.Connection,
    *,
    by: tuple[str, ...],
    user: str | None = None,
    since: float = 0.0,
    limit: int = 1000,
    offset: int = 0,
) -> list[Usage]:
    """Sums by some of `user`, `service`, `record_id`, `model` (none: one row), the largest first; no calls, no row.

    Of days that were rolled up those count that begin at or after `since`; their `record_id` is empty, and a run or
    record of several such days counts on each.
    """
    lately = sa.select(*(usage.c[name] for name in by), *_numbers()).where(usage.c.spent_at >= since)
    days = sa.select(
        *(sa.literal("").label(name) if name == "record_id" else usage_days.c[name] for name in by),
        *(usage_days.c[name] for name in (*ADDED, "first", "last")),
    ).where(usage_days.c.day * DAY >= since)
    if user is not None:
        lately, days = lately.where(usage.c.user == user), days.where(usage_days.c.user == user)
    found = sa.union_all(lately.group_by(*(usage.c[name] for name in by)).having(sa.func.count() > 0), days).subquery()
    chosen = [found.c[name] for name in by]
    added = {name: sa.func.sum(found.c[name]) for name in ADDED}
    query = (
        sa.select(
            *chosen,
            *(total.label(name) for name, total in added.items()),
            sa.func.min(found.c.first).label("first"),
            sa.func.max(found.c.last).label("last"),
        )
        .group_by(*chosen)
        .having(sa.func.count() > 0)
        .order_by((added["prompt_tokens"] + added["completion_tokens"]).desc(), *chosen)
        .limit(limit)
        .offset(offset)
    )
    common = dict.fromkeys(("user", "service", "record_id", "model"), "")
    return [Usage(**{**common, **row._mapping}) for row in connection.execute(query)]
