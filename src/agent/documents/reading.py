"""Documents through Router and Parser in this process, as far as it goes without a queue: what came of each.

What may crash, hang or eat memory runs in child processes; a document costs only itself.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar
from urllib.parse import urlsplit

from agent.child import ChildError
from agent.children import Children
from agent.display import plural
from agent.errors import ConfigError
from pipelines.context import InlineContext
from pipelines.documents import router
from pipelines.documents.facts import Facts
from pipelines.documents.pages import SAYS_NOTHING, Passed
from pipelines.documents.parser import parse_by_rules
from pipelines.documents.persons import births, doubt
from pipelines.documents.router_settings import RouterSettings
from pipelines.errors import InputRejected, RecordNotFoundError, TaskError
from pipelines.saying import Listener

P = ParamSpec("P")
T = TypeVar("T")

ALL_PAGES = 3600.0
"""Seconds for one call in a child process; the Router's own bounds for pages are below it."""


@dataclass
class Document:
    """One document and what came of it."""

    source: str
    """The path or the address, as it was given; an address without its query, which may be a secret."""
    outcome: Literal["done", "partial", "rejected", "failed"] = "failed"
    reason: str = ""
    pages: int = 0
    """Those that were read."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """Why (`blank`, `no-text`) -> how many of its other pages have nothing to read on them."""
    facts: Facts = field(default_factory=Facts)
    births: frozenset[str] = frozenset()
    """The dates of birth that it prints, where it is read here (`pipelines.documents.persons`)."""
    user: str | None = None
    """For whom it was handed in; None where that is not known, as of what is rejected."""

    @property
    def name(self) -> str:
        return self.source.rstrip("/").rsplit("/", 1)[-1] or self.source

    @property
    def said(self) -> str:
        """What came of it, in words; never nothing."""
        if self.outcome in ("rejected", "failed"):
            return self.reason or self.outcome
        said = f"{plural(len(self.facts.biomarkers), 'result')} on {plural(self.pages, 'page')}"
        others = [
            f"{plural(count, 'other page' if self.pages else 'page')} {why}" for why, count in self.passed_over.items()
        ]
        return "; ".join([said, *others, *([self.reason] if self.reason else [])])


class Surroundings(InlineContext):
    """A task's context without a queue."""

    def __init__(self, children: Children, listener: Listener) -> None:
        super().__init__(on_progress=listener)
        self._children = children
        self._listener = listener

    async def child(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._children.run_heard(self._listener, ALL_PAGES, function, *args, **kwargs)


def is_address(source: str) -> bool:
    """Whether it is fetched, rather than opened."""
    return source.lower().startswith(("http://", "https://"))


def settings_for(sources: Sequence[str]) -> RouterSettings:
    """The operator's settings; the given files may be read wherever they lie. Raises ConfigError."""
    try:
        settings = RouterSettings.of(os.environ)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    folders = {Path(source).parent for source in sources if not is_address(source)}
    return replace(settings, roots=(*settings.roots, *folders))


async def read_all(
    sources: Sequence[str],
    *,
    at_once: int,
    memory_mb: int,
    begun: Callable[[Document], Listener],
    ended: Callable[[Document], None],
) -> list[Document]:
    """Every source's document, in order. `begun` gives who hears how far one is, on the event loop."""
    settings = settings_for(sources)
    children = Children(at_once, memory_mb=memory_mb)
    free = asyncio.Semaphore(at_once)

    async def take(source: str) -> Document:
        document = Document(urlsplit(source)._replace(query="", fragment="").geturl() if is_address(source) else source)
        async with free:
            await _read(document, source, settings, Surroundings(children, begun(document)))
        ended(document)
        return document

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(take(source)) for source in sources]
        return [task.result() for task in tasks]
    finally:
        await children.close()


async def _read(document: Document, source: str, settings: RouterSettings, context: Surroundings) -> None:
    try:
        if is_address(source):
            routed = await router.run(url=source, settings=settings, context=context)
        else:
            routed = await router.run(path=source, settings=settings, context=context)
        document.pages = len(routed.pages)
        document.passed_over = _nothing_on(routed.skipped)
        document.facts = await context.child(parse_by_rules, routed.pages)
        found = await context.child(births, routed.pages)
        document.births = frozenset(found)
        document.reason = "; ".join(why for why in (routed.reason, doubt(found)) if why)
        document.outcome = "partial" if document.reason else "done"
    except InputRejected as error:
        document.outcome, document.reason = "rejected", str(error)
    except RecordNotFoundError as error:
        document.reason = f"not found: {error}"
    except (TaskError, ChildError, OSError, TimeoutError) as error:
        document.reason = str(error).partition("\n")[0] or type(error).__name__


def _nothing_on(skipped: Sequence[Passed]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for page in skipped:
        why = page.reason.partition(":")[0]
        if why in SAYS_NOTHING:
            found[why] += page.count
    return dict(found)


def pdfs_below(folder: Path) -> tuple[list[str], list[str]]:
    """The PDFs of a folder and of those in it, by suffix, and what could not be looked into. Links are not followed."""
    found: list[str] = []
    unread: list[str] = []
    for where, folders, names in os.walk(folder, onerror=lambda error: unread.append(str(error.filename))):
        folders.sort()
        paths = [Path(where, name) for name in sorted(names) if name.lower().endswith(".pdf")]
        found += [str(path) for path in paths if not path.is_symlink()]
    return found, unread
