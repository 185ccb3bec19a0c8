"""The service that makes API keys for users, over HTTP. LiteLLM's proxy is one: its `/key/generate`.

    POST <url><path>   Authorization: Bearer <token>   {"user_id": ..., and what PHAZE_BILLING_FIELDS adds}
    -> 200 {"key": "sk-..."}

LiteLLM: https://docs.litellm.ai/docs/proxy/virtual_keys
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
from pydantic import SecretStr

from agent.redaction import hide, redact_text
from agent.settings import Settings
from pipelines.errors import KeyRefused, NotAnswered

TIMEOUT = 10.0
"""Seconds for a key to be made."""

KEY = re.compile(r"[\x21-\x7e]{1,4096}")
"""What an HTTP header can carry."""

PASSING = frozenset({401, 408, 425, 429})
"""4xx that say nothing of the user: our own token, or no time for us now."""


class BillingAway(NotAnswered):
    """The billing service does not answer, or not as it should. Its own circuit counts this."""


class BillingService:
    """`await service.generate(user)`; `close` at the end."""

    def __init__(self, url: str, settings: Settings) -> None:
        token = settings.billing_token
        headers = {"Content-Type": "application/json"}
        if token is not None:
            hide(token.get_secret_value())
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        self._path = settings.billing_path
        self._user_field = settings.billing_user_field
        self._key_fields = [name.strip() for name in settings.billing_key_field.split(",") if name.strip()]
        self._more = settings.billing_fields
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT)

    async def generate(self, user: str) -> SecretStr:
        """A new key. Raises BillingAway and KeyRefused."""
        body = json.dumps({**self._more, self._user_field: user}).encode()  # in ASCII: an id may hold anything
        try:
            async with asyncio.timeout(TIMEOUT):
                response = await self._client.post(self._path, content=body)
        except (httpx.HTTPError, TimeoutError) as error:
            kind = type(error).__name__
            raise BillingAway(f"the billing service does not answer ({kind}); see PHAZE_BILLING_URL") from None
        if not response.is_success:
            raise self._refusal(response)
        key = self._key_of(response)
        hide(key)
        return SecretStr(key)

    def _refusal(self, response: httpx.Response) -> BillingAway | KeyRefused:
        said = f"the billing service answered {response.status_code} to {self._path}"
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return BillingAway(f"{said}; it does not know PHAZE_BILLING_TOKEN")
        if response.is_redirect or response.is_server_error or response.status_code in PASSING:
            return BillingAway(f"{said}; see PHAZE_BILLING_URL and its log")
        why = redact_text(" ".join(response.text[:10_000].split()))[:200]
        return KeyRefused(f"{said}: {why}; see PHAZE_BILLING_PATH, and whether the service knows the user")

    def _key_of(self, response: httpx.Response) -> str:
        """The first of the fields that holds one. A dot leads into an object: `data.key`."""
        try:
            answer: Any = response.json()
        except ValueError:
            raise BillingAway(f"the billing service answers {self._path} with no JSON; see PHAZE_BILLING_URL") from None
        for name in self._key_fields:
            found = answer
            for step in name.split("."):
                found = found.get(step) if isinstance(found, dict) else None
            if isinstance(found, str) and KEY.fullmatch(found):
                return found
        fields = ", ".join(self._key_fields)
        raise BillingAway(f"the billing service's answer holds no key in {fields}; see PHAZE_BILLING_KEY_FIELD")

    async def close(self) -> None:
        """Close the HTTP client."""
        await self._client.aclose()
