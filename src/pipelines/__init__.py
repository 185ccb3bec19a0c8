"""Pure work: no Redis, no queue, no HTTP to the control plane.

Nothing here imports from `agent`. A task is `async def task(ctx: TaskContext, payload: Model) -> Model`;
what it may ask of its surroundings stands in `context`, what may go wrong in `errors`.
"""
