"""A context whose children are the engine's own processes, and functions that end or hang theirs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from agent.children import Children
from pipelines.context import InlineContext
from pipelines.documents.page import Page
from pipelines.documents.reading import Looked, look_at, look_at_all

P = ParamSpec("P")
T = TypeVar("T")


class InChildren(InlineContext):
    """`calls`: the names of the functions that were run in a child."""

    def __init__(self, children: Children) -> None:
        super().__init__()
        self._children = children
        self.calls: list[str] = []

    async def child(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.calls.append(function.__name__)
        return await self._children.run(300.0, function, *args, **kwargs)


@contextlib.asynccontextmanager
async def in_children() -> AsyncIterator[InChildren]:
    children = Children(1, memory_mb=2048)
    try:
        yield InChildren(children)
    finally:
        await children.close()


def dies_of_all(path: Path, most: int) -> tuple[int, list[Looked]]:
    """As a reader that page 2 crashes."""
    os.kill(os.getpid(), signal.SIGKILL)
    return look_at_all(path, most)


def dies_of_page_2(path: Path, number: int) -> Looked:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return look_at(path, number)


def hangs_at_all(path: Path, most: int) -> tuple[int, list[Looked]]:
    time.sleep(600)
    return look_at_all(path, most)


def hangs_at_page_2(path: Path, number: int) -> Looked:
    if number == 2:
        time.sleep(600)
    return look_at(path, number)


def dies_of_opening(path: Path) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def dies_of_recognising(path: Path, number: int) -> Page:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
