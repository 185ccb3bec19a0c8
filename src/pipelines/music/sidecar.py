"""A fingerprint engine in a container beside the worker (audfprint, Panako), spoken to over HTTP.

    GET  /health                                  -> 200 {"engine": "audfprint", "items": 123}
    POST /ingest  {"item", "path"}                -> 200 {"hashes": 4567}
    POST /query   {"path", "start", "seconds"}    -> 200 {"matches": [{"item", "score", "offset"}, ...]}
    either one, where the file is at fault        -> 422 {"error": "too short"}

`path` is percent-encoded; worker and engine see the same files under the same paths. `seconds` null: to the end. Every
other answer, a time-out and a refused connection are the engine's own: EngineDown.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from pipelines.errors import InputRejected
from pipelines.music.engines import EngineDown, EngineMatch
from pipelines.payload import encode_path

AT_FAULT = 422
"""The one status by which an engine says that the file is at fault."""

HEALTH = 10.0
"""Seconds for an engine to say how it is."""


class SidecarEngine:
    """See `engines.FingerprintEngine`. `timeout`: seconds that one ingest or query may take in all."""

    def __init__(self, url: str, *, timeout: float = 300.0) -> None:
        self.name = urlsplit(url).netloc.rpartition("@")[2]
        self._timeout = timeout
        self._client = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(timeout, connect=5.0))

    async def health(self) -> int:
        said = await self._ask("GET", "/health", None, HEALTH)
        return self._number(said, "items")

    async def ingest(self, item: str, path: Path) -> int:
        said = await self._ask("POST", "/ingest", {"item": item, "path": encode_path(path)}, self._timeout)
        return self._number(said, "hashes")

    async def query(self, path: Path, start: float = 0.0, seconds: float | None = None) -> list[EngineMatch]:
        asked = {"path": encode_path(path), "start": start, "seconds": seconds}
        said = await self._ask("POST", "/query", asked, self._timeout)
        try:
            found = [EngineMatch(str(row["item"]), float(row["score"]), row.get("offset")) for row in said["matches"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise EngineDown(f"{self.name} answered a query with something else than matches") from None
        return sorted(found, key=lambda match: -match.score)

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout):
                answer = await self._client.request(method, path, json=body)
        except (httpx.HTTPError, TimeoutError) as error:
            raise EngineDown(f"{self.name} does not answer {path}: {error or type(error).__name__!r}") from error
        try:
            said = answer.json()
        except ValueError:
            said = None
        if answer.status_code == AT_FAULT and body is not None:
            reason = said.get("error") if isinstance(said, dict) else None
            raise InputRejected("engine-rejected", f"{self.name}: {str(reason or 'no reason given')[:200]}")
        if answer.status_code != httpx.codes.OK or not isinstance(said, dict):
            raise EngineDown(f"{self.name} answers {path} with {answer.status_code}; is it a fingerprint engine?")
        return said

    def _number(self, said: dict[str, Any], name: str) -> int:
        value = said.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise EngineDown(f"{self.name} does not say how many {name}")
        return value
