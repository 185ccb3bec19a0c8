"""The operator's commands, as an operator runs them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Phaze = Callable[..., Any]


@pytest.fixture
def phaze(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Phaze:
    monkeypatch.setenv("PHAZE_REDIS_URL", valkey_url)

    async def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "agent.cli", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return run
