"""The hub that the operator's commands speak to: that of a running `phaze up`, or the one of PHAZE_HUB_URL."""

from __future__ import annotations

from typing import Any

import httpx

from agent.errors import UserError, WrongUse
from agent.redaction import redact_text
from agent.settings import Settings

ANSWER = 60.0
"""Seconds for one answer."""


class HubRefused(WrongUse):
    """The hub takes no such request; `status` is HTTP's."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.status = status


class Hub:
    """`Hub(settings).post("/api/batches", {...})`."""

    def __init__(self, settings: Settings, answer: float = ANSWER) -> None:
        """Raises UserError where no token is to be had."""
        self._agent = settings.agent_id
        url, token = settings.hub_url, settings.agent_token
        found = "" if token is None else token.get_secret_value()
        try:
            if "hub_url" not in settings.model_fields_set:
                url = (settings.data_dir / "hub.url").read_text("utf-8").strip() or url
            found = found or (settings.data_dir / "agent.token").read_text("ascii").strip()
        except (OSError, ValueError):
            if not found:
                raise UserError(
                    f"no `phaze up` runs on {settings.data_dir}, and PHAZE_AGENT_TOKEN is not set; "
                    "start one (`phaze up`), or give PHAZE_HUB_URL and PHAZE_AGENT_TOKEN"
                ) from None
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {found}"}, timeout=answer)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request about our agent. Raises UserError, HubRefused for what the hub refuses."""
        return self._said(lambda: self._client.post(path, json={"agent_id": self._agent, **body}))

    def get(self, path: str) -> dict[str, Any]:
        """The answer. Raises UserError."""
        return self._said(lambda: self._client.get(path))

    def _said(self, ask: Any) -> dict[str, Any]:
        try:
            response: httpx.Response = ask()
            document = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UserError(f"the hub does not answer: {redact_text(str(error) or repr(error))}") from None
        if response.is_success and isinstance(document, dict):
            return document
        said = document.get("error") if isinstance(document, dict) else None
        said = str(said or f"the hub said {response.status_code}")
        raise HubRefused(said, response.status_code) if response.is_client_error else UserError(said)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
