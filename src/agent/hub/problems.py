"""What is wrong with a document that somebody sent, in one line."""

from __future__ import annotations

from pydantic import ValidationError


def first_problem(error: ValidationError) -> str:
    """`files.0.size: Field required`: the first thing that is wrong, by the field's name; no value is repeated."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, problem["loc"]))
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
