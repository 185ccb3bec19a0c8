"""A processor as a task: what the engine runs, and what it records of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import Field

from agent.phoenix.endings import Quarantined
from agent.phoenix.execution import as_json
from agent.phoenix.runs import Onward
from agent.phoenix.streams import version_of
from agent.processors.base import RUNNING, BaseProcessor, Record, Stage
from pipelines.context import TaskContext, task
from pipelines.errors import InputRejected
from pipelines.payload import Outcome, TaskResult

if TYPE_CHECKING:
    from agent.lanes import Task


class Processed(TaskResult):
    """What a processor came to."""

    data: dict[str, Any] | None = None
    """What `process` returned; the next stage's entry holds the same."""
    onward: Onward | None = Field(None, exclude=True)


def task_of(processor: BaseProcessor) -> Task:
    """The processor's task: `(ctx, payload: Record) -> Processed`, with the processor's policy."""

    @task(processor.policy)
    async def process(ctx: TaskContext, payload: Record) -> Processed:
        stage = Stage(ctx, payload.user_id)
        running = RUNNING.set(stage)
        outcome: Outcome = "done"
        reason = data = None
        try:
            data = await processor.process(ctx.record_id, payload.user_id, payload.data)
            if stage.missing is not None:
                outcome, reason = "partial", stage.missing
        except InputRejected as error:
            outcome, reason = "rejected", str(error)
        finally:
            RUNNING.reset(running)
        if data is not None and not isinstance(data, dict):
            raise Quarantined(f"its processor returned a {type(data).__name__}, not a dict or None; mend the processor")
        result = Processed(outcome=outcome, reason=reason, data=data)
        return result.model_copy(update={"onward": _onward(processor, stage, result)})

    return process


def _onward(processor: BaseProcessor, stage: Stage, result: Processed) -> Onward:
    pages = "-" if processor.last_to_read_pages else stage.pages or ""
    if result.data is None or not processor.next_service:
        return Onward(pages=pages)
    # No NaN nor infinity, which JSON has not: null, as in what is recorded.
    data = json.loads(json.dumps(as_json(result)["data"]), parse_constant=lambda name: None)
    return Onward(
        service=processor.next_service,
        user_id=stage.user_id,
        data=json.dumps(data),
        version=version_of(stage.user_id, data, stage.pages or ""),
        pages=pages,
    )
