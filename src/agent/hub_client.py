"""What a running task may ask the hub: which tracks of the library a sound is."""

from __future__ import annotations

import asyncio

import httpx
from pydantic import ValidationError

from pipelines.music.live_set import Hearing

ANSWER = 330.0
"""Seconds for an answer: the hub gives its index 300, and says so itself."""


class HubAnswerError(Exception):
    """The hub answered something that is no answer: is it a hub, and of this version?"""


class HubClient:
    """One agent's questions. Each may raise httpx.HTTPError: the hub is away, busy, or refuses."""

    def __init__(self, hub_url: str, agent_id: str, token: str) -> None:
        self._url, self._agent, self._token = hub_url, agent_id, token
        self._client: httpx.AsyncClient | None = None

    async def hear(self, raw: str) -> Hearing:
        """Where the library's files occur in a fingerprint. Raises httpx.HTTPError, TimeoutError, HubAnswerError."""
        async with asyncio.timeout(ANSWER):
            answer = await self._open().post(f"/api/agents/{self._agent}/prints", json={"raw": raw})
        answer.raise_for_status()
        try:
            return Hearing.model_validate_json(answer.content)
        except ValidationError as error:
            raise HubAnswerError(f"{self._url} answers something else than a hub's index: {error}") from None

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"Authorization": f"Bearer {self._token}"}
            timeout = httpx.Timeout(ANSWER, connect=5.0)
            self._client = httpx.AsyncClient(base_url=self._url, headers=headers, timeout=timeout)
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
