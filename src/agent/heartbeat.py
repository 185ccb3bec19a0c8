"""The agent's sign of life: from one lane's worker, from a task of its own, never through a job slot."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

import httpx
import structlog
from redis.exceptions import RedisError

from agent.throttle import OncePer

if TYPE_CHECKING:
    from agent.phoenix.queue import LaneQueue
    from agent.settings import Settings

log = structlog.get_logger()

PERIOD = 30.0
"""Seconds between beats."""

PROBE_TIMEOUT = 3.0
"""Seconds for the queue server to tell the lane's depth; a hung server must not delay a beat."""

POST_TIMEOUT = 10.0
"""Seconds for the hub to take a beat, all in all; with the probe, less than the period."""

FAILED_PROBES = 3
"""After so many in a row no beat is sent: alive means that the agent can work."""


class Heartbeat:
    """POSTs {agent_version, worker_pid, lane, queue_depth, hostname, started_at} every `PERIOD` seconds."""

    def __init__(self, settings: Settings, queue: LaneQueue, token: str) -> None:
        self._queue = queue
        self._lane = settings.agent_lane
        self._path = f"/api/agents/{settings.agent_id}/heartbeat"
        self._client = httpx.AsyncClient(
            base_url=settings.hub_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(5.0),
        )
        self._started = time.time()
        self._failed_probes = 0
        self._complain = OncePer(60.0)

    async def run(self) -> None:
        """Beat until cancelled, on a schedule that does not slip by what a beat takes."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            try:
                await self.beat()
            except Exception:  # a fault of ours must not make the agent look dead
                log.exception("heartbeat.fault")
            due = max(due + PERIOD, clock())
            await asyncio.sleep(due - clock())

    async def beat(self) -> bool:
        """One beat; False if none was sent or the hub did not take it."""
        depth = await self._depth()
        if self._failed_probes >= FAILED_PROBES:
            if self._complain():
                log.warning("heartbeat.withheld", reason="the queue server does not answer")
            return False
        body = {
            "agent_version": version("phaze-agent"),
            "worker_pid": os.getpid(),
            "lane": self._lane,
            "queue_depth": depth,
            "hostname": socket.gethostname(),
            "started_at": self._started,
        }
        try:
            async with asyncio.timeout(POST_TIMEOUT):  # httpx bounds each step of it, not the whole
                answer = await self._client.post(self._path, json=body)
        except (httpx.HTTPError, TimeoutError) as error:
            if self._complain():
                log.warning("heartbeat.failed", error=str(error) or repr(error))
            return False
        if not answer.is_success and self._complain():  # it says why, with the remedy
            log.warning("heartbeat.failed", error=f"the hub answered {answer.status_code}: {answer.text[:200]}")
        return answer.is_success

    async def _depth(self) -> int | None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                depth = await self._queue.count("queued")
        except (RedisError, OSError, TimeoutError):
            self._failed_probes += 1
            return None
        self._failed_probes = 0
        return depth

    async def close(self) -> None:
        """Close the HTTP client."""
        await self._client.aclose()
