"""The pages of one document, each read by whoever can: its own text, MinerU, the recogniser; or why it was not.

What may crash, hang or eat memory runs in child processes. A page costs only itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from pydantic import BaseModel, Field

from pipelines.context import TaskContext
from pipelines.documents import recognise
from pipelines.documents.mineru import MinerU, Size
from pipelines.documents.page import Page
from pipelines.documents.reading import Looked, look_at, look_at_all, page_count
from pipelines.errors import ChildDied, InputRejected, TaskError
from pipelines.payload import TaskResult

ALL_PAGES, ONE_PAGE, ONE_SCAN = 300.0, 60.0, 240.0
"""Seconds in a child for the text of all pages, of one, and for recognising one (usual: 0.03 a page, 10 a scan)."""

ALL_SCANS = 3000.0
"""Seconds for recognising all scans of a document; those that are not reached are failed."""

GIVE_UP = 5
"""Pages in a row that failed before the others are not tried any more."""

SAYS_NOTHING = ("blank", "no-text")
"""Reasons to skip a page by which nothing is missing."""


ENDED = "it ended the process that read it: a crash, or too much memory"

P = ParamSpec("P")
T = TypeVar("T")


class _TooSlow(Exception):
    """A child was ended because it took too long."""


class Passed(BaseModel):
    """A page that is not among the pages, and why: `blank`, `no-text`, `too-many-pages`, `needs-ocr`, or a failure."""

    number: int
    reason: str
    last: int | None = None
    """The last of several in a row; None: it is one."""

    @property
    def count(self) -> int:
        """How many pages it stands for."""
        return (self.last or self.number) - self.number + 1


class ReadPages(TaskResult):
    """Every page of the document is in exactly one of `pages`, `skipped` and `failed`. The outcome is `partial` where
    one that may say something is not among `pages`."""

    pages: list[Page] = Field(default_factory=list)
    skipped: list[Passed] = Field(default_factory=list)
    failed: list[Passed] = Field(default_factory=list)


class Reading:
    """One document that is being read, page by page."""

    def __init__(self, context: TaskContext, path: Path, *, most: int = 500, mineru: MinerU | None = None) -> None:
        self._context, self._path, self._most, self._mineru = context, path, most, mineru
        self._result = ReadPages()
        self._scanning = 0.0

    async def run(self) -> ReadPages:
        """Read them. Raises InputRejected (`encrypted`, `corrupt`, `no-pages`, `unreadable`), NotGranted, TryLater."""
        count, looked = await self._look()
        read = {page.number: page for page in await self._read_elsewhere(looked)}
        for number, one in enumerate(looked, start=1):
            await self._context.check()
            if one.number in read:
                self._result.pages.append(read[one.number])
            else:
                await self._take(one)
            await self._context.progress(number / len(looked), f"page {number} of {count}")
        if len(looked) < count:
            self._result.skipped.append(Passed(number=len(looked) + 1, last=count, reason="too-many-pages"))
        return self._judged(count)

    async def _within(self, seconds: float, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """In a child that has `seconds`. Raises _TooSlow, ChildDied, TimeoutError (the whole run's own time is over)
        and what `function` raises."""
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._context.child(function, *args, **kwargs)
        except TimeoutError:
            if limit.expired():
                raise _TooSlow(f"not done within {seconds:.0f} s") from None
            raise

    async def _look(self) -> tuple[int, list[Looked]]:
        """All pages in one child; if that dies or hangs, each by itself, so that one costs only itself."""
        try:
            return await self._within(ALL_PAGES, look_at_all, self._path, self._most)
        except (ChildDied, _TooSlow):
            pass
        try:
            count = await self._within(ONE_PAGE, page_count, self._path)
        except (ChildDied, _TooSlow):
            raise InputRejected("unreadable", "opening it ends or hangs the process that tries") from None
        looked: list[Looked] = []
        for number in range(1, min(count, self._most) + 1):
            looked.append(await self._look_at(number, looked[-GIVE_UP:]))
        return count, looked

    async def _look_at(self, number: int, before: Sequence[Looked]) -> Looked:
        if len(before) == GIVE_UP and all(page.kind == "failed" for page in before):
            return Looked(number, None, "failed", f"given up after {GIVE_UP} pages in a row that failed")
        try:
            return await self._within(ONE_PAGE, look_at, self._path, number)
        except ChildDied:
            return Looked(number, None, "failed", ENDED)
        except _TooSlow as error:
            return Looked(number, None, "failed", str(error))

    async def _read_elsewhere(self, looked: Sequence[Looked]) -> list[Page]:
        """What a MinerU server reads, if one is set. A document that it cannot read is read here."""
        sizes: dict[int, Size] = {one.number: (one.page.width, one.page.height) for one in looked if one.page}
        if self._mineru is None or not sizes:
            return []
        try:
            pages = await self._mineru.read(self._path, sizes)
        except InputRejected:
            return []
        return [page for page in pages if page.lines]

    async def _take(self, one: Looked) -> None:
        result = self._result
        if one.kind == "failed" or one.page is None:
            result.failed.append(Passed(number=one.number, reason=one.reason))
        elif one.kind == "text":
            result.pages.append(one.page)
        elif one.kind == "blank":
            result.skipped.append(Passed(number=one.number, reason="blank"))
        elif not recognise.is_there():
            reason = "needs-ocr: it has almost no text of its own; pip install 'phaze-agent[ocr]'"
            result.skipped.append(Passed(number=one.number, reason=reason))
        else:
            await self._recognise(one.page)

    async def _recognise(self, page: Page) -> None:
        begun = time.monotonic()
        if self._scanning > ALL_SCANS:
            self._fail(page, f"not reached within the {ALL_SCANS:.0f} s that scans may take")
            return
        try:
            seen = await self._within(ONE_SCAN, recognise.recognise, self._path, page.number)
        except ChildDied:
            self._fail(page, ENDED)
        except _TooSlow as error:
            self._fail(page, str(error))
        except (TaskError, TimeoutError):
            raise
        except Exception as error:  # whatever its libraries say of an odd picture; foreign exceptions stay in the child
            self._fail(page, f"it cannot be recognised ({type(error).__name__})")
        else:
            if seen.lines or page.lines:
                self._result.pages.append(seen if seen.lines else page)
            else:
                reason = "no-text: there is something on it, and nothing that can be read"
                self._result.skipped.append(Passed(number=page.number, reason=reason))
        finally:
            self._scanning += time.monotonic() - begun

    def _fail(self, page: Page, reason: str) -> None:
        self._result.failed.append(Passed(number=page.number, reason=reason))

    def _judged(self, count: int) -> ReadPages:
        result = self._result
        missing = [page for page in result.skipped if page.reason.partition(":")[0] not in SAYS_NOTHING]
        if not result.pages and result.failed:
            raise InputRejected("unreadable", f"none of its {count} pages: {result.failed[0].reason}")
        if result.failed or missing:
            passed = [*result.failed, *missing]
            pages = sum(page.count for page in passed)
            result.outcome = "partial"
            result.reason = f"{pages} of {count} pages: {passed[0].reason}"
        return result
