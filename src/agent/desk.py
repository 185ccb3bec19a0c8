"""What a running task may ask for (`ctx.ask`), and who answers: the hub signs for the object store and knows which
tracks of the library a sound is, the agent's own settings hold the key with which it pushes. Answers may be secrets:
nothing here logs or keeps them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from agent.settings import Settings
from pipelines.errors import NotAnswered, NotGranted

TIMEOUT = 30.0
"""Seconds for an answer of the hub."""

INDEX_TIMEOUT = 330.0
"""Seconds for an answer of the hub's index: the hub gives it 300, and says so itself."""


class Desk:
    """`ask` about one record at a time; `close` at the end."""

    def __init__(self, settings: Settings, token: str) -> None:
        self._key = settings.push_key
        self._path = f"/api/agents/{settings.agent_id}"
        self._client = httpx.AsyncClient(base_url=settings.hub_url, headers={"Authorization": f"Bearer {token}"})

    async def ask(self, record_id: str, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a task that runs for `record_id`. Raises NotAnswered and NotGranted."""
        if subject == "s3":
            return await self._hub("signatures", {"record_id": record_id, "wanted": dict(question)}, TIMEOUT)
        if subject == "known-files":
            return await self._hub("known-files", dict(question), TIMEOUT)
        if subject == "prints":
            return await self._hub("prints", dict(question), INDEX_TIMEOUT)
        if subject == "ssh-key":
            if self._key is None:
                raise NotGranted("the agent has no key to push with; set PHAZE_PUSH_KEY_FILE for its io worker")
            return {"key": self._key.get_secret_value()}
        raise NotGranted(f"nobody here answers {subject}; upgrade the agent")

    async def _hub(self, door: str, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                limits = httpx.Timeout(seconds, connect=5.0)
                response = await self._client.post(f"{self._path}/{door}", json=question, timeout=limits)
        except (httpx.HTTPError, TimeoutError) as error:
            raise NotAnswered(f"the hub does not answer ({type(error).__name__}); see PHAZE_HUB_URL") from None
        try:
            answer = response.json()
        except ValueError:
            answer = None
        said = answer.get("error") if isinstance(answer, dict) else None
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise NotAnswered(f"the hub answered {response.status_code}: {said or 'its log says why'}")
        if not isinstance(answer, dict):
            raise NotAnswered(f"the hub answered {response.status_code} and no JSON; is PHAZE_HUB_URL the hub's?")
        if response.status_code != httpx.codes.OK:
            raise NotGranted(f"the hub refuses {door}: {said or response.status_code}")
        return answer

    async def close(self) -> None:
        """Close the HTTP client."""
        await self._client.aclose()
