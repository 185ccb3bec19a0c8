"""A lane's worker with all that surrounds a task, for tasks of a test's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agent.children import Children
from agent.phoenix.breaker import Breakers
from agent.phoenix.endings import Result
from agent.phoenix.execution import Execution
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker


async def nothing() -> None:
    """Nothing comes first."""


def surrounding_worker(
    queue: LaneQueue, functions: dict[str, Any], before: Callable[[], Awaitable[Any]] = nothing, **options: Any
) -> LaneWorker:
    """A worker for `functions`; `before` is what comes first in each run."""
    children, breakers = Children(1), Breakers(queue.scripts, queue.redis)

    def surrounded(function: Any) -> Callable[..., Awaitable[Result]]:
        async def run(context: Any, /, **arguments: Any) -> Result:
            await before()
            around = Execution(
                context["run"], function=function, queue=queue, children=children, breakers=breakers, worker="w"
            )
            return await around.run(arguments)

        return run

    named = [(name, surrounded(function)) for name, function in functions.items()]
    return LaneWorker(queue, named, concurrency=4, outbox=True, timeout_of=lambda job: 0.0, **options)
