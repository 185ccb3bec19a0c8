"""Pages as a MinerU server reads them (`mineru-api`, V1): tables as tables, and scans with its better tiers.

`POST /v1/file_parse` takes the PDF's bytes and answers with `structured_content`: for each page its blocks, each with a
box in shares of the page, and tables as Markdown. Within a block positions are not said: lines are spread evenly.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from pipelines.documents.page import Cell, Line, Page
from pipelines.errors import InputRejected, NotGranted, TryLater
from pipelines.retry_after import retry_after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Tier = Literal["flash", "basic", "standard", "advanced"]
Size = tuple[float, float]
"""Width and height of a page, points."""

CONNECT = 10.0
"""Seconds to connect."""

MOST_WAIT = 3600
"""Seconds: the most that the server lets one wait for a document."""

MOST_ANSWER = 256 << 20
"""Bytes of an answer; pictures of its tables are in it, and are not kept."""

CHARACTER = 5.0
"""Points a character of 10-point type is wide, about: where only the text of a block is known."""

_RULE = re.compile(r"^\|?(\s*:?-{2,}:?\s*\|)+\s*:?-*:?\s*$")
_TAG = re.compile(r"</?[a-zA-Z][^>]{0,200}>")
_ROW, _CELL = re.compile(r"(?is)<tr\b.*?</tr>"), re.compile(r"(?is)<t[dh]\b[^>]*>(.*?)</t[dh]>")


class _Block(BaseModel):
    type: str
    bbox: tuple[float, float, float, float]
    content: Any = ""


class _PageContent(BaseModel):
    page_idx: int = Field(ge=0)
    blocks: list[_Block] = []


class _Content(BaseModel):
    pages: list[_PageContent]


class MinerU:
    """A server at `url`. `tier`: how thoroughly it reads; None: as it likes. `key`: a bearer key, if it wants one."""

    def __init__(self, url: str, *, tier: Tier | None = None, key: str | None = None, seconds: float = 600.0) -> None:
        self._url, self._tier, self._key = url.rstrip("/"), tier, key
        self._seconds = seconds
        self.host = urlsplit(url).netloc.rpartition("@")[2]

    async def read(self, path: Path, sizes: Mapping[int, Size]) -> list[Page]:
        """The pages of a PDF, whose `sizes` (number from 1 -> points) are known.

        Raises InputRejected (`unreadable`: the server cannot read this document), NotGranted (it wants a key) and
        TryLater (it is away, busy or broken, or speaks another protocol).
        """
        import httpx

        try:
            async with asyncio.timeout(self._seconds + CONNECT):
                answer = await self._ask(path)
        except TimeoutError:
            raise TryLater(f"MinerU at {self.host} has not read the document within {self._seconds:.0f} s") from None
        except httpx.HTTPError as error:
            raise TryLater(f"MinerU at {self.host}: {type(error).__name__} {error}".rstrip()) from None
        return self._pages(answer, sizes)

    async def _ask(self, path: Path) -> Any:
        import httpx
        import orjson

        wait = max(1, min(int(self._seconds), MOST_WAIT))
        asked = {"output_formats": "structured_content", "filename": "document.pdf", "wait_timeout": str(wait)}
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(await asyncio.to_thread(_size, path)),
        }
        if self._tier is not None:
            asked["tier"] = self._tier
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        timeout = httpx.Timeout(self._seconds, connect=CONNECT)
        async with (
            httpx.AsyncClient(timeout=timeout, trust_env=False) as client,
            client.stream(
                "POST", f"{self._url}/v1/file_parse", params=asked, headers=headers, content=_bytes_of(path)
            ) as answer,
        ):
            body = bytearray()
            async for block in answer.aiter_bytes(1 << 16):
                body += block
                if len(body) > MOST_ANSWER:
                    raise InputRejected("unreadable", f"MinerU's answer is over {MOST_ANSWER >> 20} MiB")
        status = answer.status_code
        if status in (401, 403):
            raise NotGranted(
                f"MinerU at {self.host} answered {status}: it wants a key; let it take none from this agent"
            )
        if status in (408, 425, 429) or status >= 500 or status == 202:
            said = "is still reading" if status == 202 else f"answered {status}"
            headers_said = {name.lower(): value for name, value in answer.headers.items()}
            raise TryLater(f"MinerU at {self.host} {said}", retry_after(headers_said))
        if status == 404:
            raise TryLater(f"{self.host} answered 404; is PHAZE_MINERU_URL the address of a mineru-api (4.0 or later)?")
        if status != 200:
            raise InputRejected("unreadable", f"MinerU answered {status}: {bytes(body[:200]).decode(errors='replace')}")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise TryLater(f"MinerU at {self.host} did not answer with JSON") from None

    def _pages(self, answer: Any, sizes: Mapping[int, Size]) -> list[Page]:
        try:
            file = answer["files"][0]
            if file["status"] != "completed":
                raise InputRejected("unreadable", f"MinerU says {file['status']}: {str(file.get('error'))[:200]}")
            content = _Content.model_validate(file["content"]["structured_content"])
        except (KeyError, IndexError, TypeError, ValidationError):
            raise TryLater(f"MinerU at {self.host} speaks another protocol; 4.0 or later is needed") from None
        found = {page.page_idx + 1: page.blocks for page in content.pages}
        return [
            Page(number=number, width=width, height=height, source="mineru", lines=_lines(found[number], width, height))
            for number, (width, height) in sorted(sizes.items())
            if number in found
        ]


def _lines(blocks: list[_Block], width: float, height: float) -> list[Line]:
    lines = [line for block in blocks for line in _block_lines(block, width, height)]
    return sorted(lines, key=lambda line: line.top)


def _block_lines(block: _Block, width: float, height: float) -> Iterator[Line]:
    """The block's lines, each an even share of its height; a table's cells each an even share of its width."""
    left, top, right, bottom = (share * side for share, side in zip(block.bbox, (width, height) * 2, strict=True))
    rows = _rows(block.content)
    step = (bottom - top) / max(len(rows), 1)
    columns = max((len(row) for row in rows), default=1)
    across = (right - left) / columns
    for number, row in enumerate(rows):
        cells = [
            Cell(text=text, left=left + at * across, right=min(left + at * across + len(text) * CHARACTER, right))
            for at, text in enumerate(row)
            if text
        ]
        if cells:
            yield Line(cells=cells, top=top + number * step, bottom=top + (number + 1) * step)


def _rows(content: Any) -> list[list[str]]:
    """Rows of cells: of a Markdown or HTML table, else one cell a line. Empty cells stay, so that columns do."""
    if not isinstance(content, str):
        return []
    if "<tr" in content.lower():
        return [[_plain(cell) for cell in _CELL.findall(row)] for row in _ROW.findall(content)]
    rows = []
    for line in content.splitlines():
        if line.startswith("|"):
            if not _RULE.match(line):
                rows.append([_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
        elif text := _plain(line):
            rows.append([text])
    return rows


def _plain(text: str) -> str:
    """Without Markdown's marks and HTML's tags."""
    text = _TAG.sub(" ", text.replace("\\|", "|"))
    text = re.sub(r"\*\*(.+?)\*\*", r"\1", re.sub(r"^#{1,6}\s+", "", text.strip()))
    text = re.sub(r"\\([*_\\<>~#$\[\]()])", r"\1", text)
    return " ".join(html.unescape(text).split())


def _size(path: Path) -> int:
    return path.stat().st_size


async def _bytes_of(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while block := await asyncio.to_thread(file.read, 1 << 20):
            yield block
