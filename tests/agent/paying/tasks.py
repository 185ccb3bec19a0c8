"""A task around those libraries, and a worker for it: `python -m tests.agent.paying.tasks`."""

from __future__ import annotations

import os
from typing import Any, Literal

from agent import lanes
from pipelines.context import Policy, TaskContext, task
from pipelines.payload import Payload, TaskResult
from tests.agent.paying import library

LANE = "io"


class Page(Payload):
    """A page of a user's record."""

    user_id: str
    form: Literal["call", "child", "client-in-child"] = "call"
    then: str = ""
    """What happens after the call: `fail`, `die`, `tell` (the key, everywhere), or nothing."""


class Answer(TaskResult):
    """What the model said."""

    text: str = ""


@task(Policy(timeout=lambda payload: 60.0, dependency=lambda payload: "openai", user=lambda payload: payload.user_id))
async def read_page(ctx: TaskContext, payload: Page) -> Answer:
    """One call to the model, paid by the user."""
    if payload.form == "call":
        text = await library.ask(ctx.record_id, payload.user_id)
        if payload.then == "tell":
            key = (await ctx.api_key()).secret.get_secret_value()
            await ctx.progress(0.5, f"with {key}")
            if "second" in payload.version:
                return Answer(text=f"paid with {key}", reason=key, outcome="partial")
            library.finish(payload.then, key)
        library.finish(payload.then, "")
        return Answer(text=text)
    function: Any = (
        library.client_from_environment if payload.form == "client-in-child" else library.ask_from_environment
    )
    more = (payload.then,) if payload.then else ()
    return Answer(text=await ctx.child_as_user(function, ctx.record_id, payload.user_id, *more))


if __name__ == "__main__":
    from agent.worker import worker
    from tests.chaos.tasks import hurry

    lanes.LANE_TASKS[LANE].clear()
    lanes.LANE_TASKS[LANE]["read_page"] = "tests.agent.paying.tasks:read_page"
    if times := os.environ.get("CHAOS_TIMES"):
        hurry(*map(float, times.split()))
    worker()
