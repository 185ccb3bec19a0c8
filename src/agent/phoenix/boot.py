"""Before a worker takes its first job: is this a server, and a queue, on which the promises hold?

What is wrong stops the start with one line that says what to change.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import structlog
from redis.exceptions import NoPermissionError, RedisError

from agent.errors import ConfigError
from agent.phoenix import keys
from agent.phoenix.permissions import denied
from agent.redis_client import reply
from agent.redis_trouble import trouble
from agent.throttle import OncePer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio import Redis

    from agent.phoenix.queue import LaneQueue

log = structlog.get_logger()

OLDEST = (7, 0)
"""Redis 7.0, and every Valkey: flags of scripts (`allow-oom`) came with it."""

MAX_BACKOFF = 10.0
"""Seconds between two looks for a server that is not there yet."""


async def wait_for_server(queue: LaneQueue, *, streams: bool = False, tasks: Iterable[str] = ()) -> int:
    """Wait for the server, check it, adopt what plain SAQ left on the queue: the number of jobs put back.

    `tasks`: the worker's, so that their dead letters and quarantine are looked for by all, whoever has them installed.
    One that is away, loads its data or is full of clients is waited for, with a line a minute. Raises ConfigError for
    what only a change of its settings or of PHAZE_REDIS_URL can mend.
    """
    complain = OncePer(60.0)
    failures = 0
    while True:
        try:
            info = await check_server(queue.redis, streams=streams)
            moved = await take_over_queue(queue, tasks)
        except (RedisError, OSError, TimeoutError) as error:
            found = trouble(error)
            if found.lasting:
                raise ConfigError(f"the server of PHAZE_REDIS_URL cannot be used: {found}") from None
            failures += 1
            if complain():
                log.warning("server.waiting", error=found.said, remedy=found.remedy, failures=failures)
        else:
            _warn(info)
            return moved
        await asyncio.sleep(min(0.1 * 2 ** min(failures, 10), MAX_BACKOFF))


def _warn(info: dict[str, Any]) -> None:
    """Of a server that is taken, what its owner should know. A managed one may keep its data in some other way."""
    if info.get("aof_enabled") == 0:
        log.warning("server.forgets", reason="it keeps no append-only file: its crash loses jobs and results",
                    remedy="set appendonly yes and appendfsync always")  # fmt: skip


async def check_server(redis: Redis, *, streams: bool = False) -> dict[str, Any]:
    """What the server tells of itself (INFO), {} where it may not be asked.

    Raises ConfigError for a server that cannot be used; RedisError, OSError where none answers.
    `streams`: whether streams are read as well.
    """
    info: dict[str, Any] = {}
    try:
        info = await redis.info()
    except NoPermissionError:
        log.warning("server.unchecked", reason="the user of PHAZE_REDIS_URL may not read INFO", remedy="grant it +info")
    else:
        _check_info(info)
    await _check_permissions(redis, streams)
    return info


def _check_info(info: dict[str, Any]) -> None:
    version = str(info.get("redis_version", ""))
    if (found := re.match(r"(\d+)\.(\d+)", version)) and tuple(map(int, found.groups())) < OLDEST:
        raise ConfigError(f"PHAZE_REDIS_URL names a Redis {version}; use Redis 7 or newer, or Valkey")
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):
        raise ConfigError("PHAZE_REDIS_URL names a Sentinel; name the primary that it watches")
    if info.get("cluster_enabled"):
        raise ConfigError(
            "PHAZE_REDIS_URL names a Redis Cluster; a job's keys must be on one server: use a single primary"
        )
    if info.get("role", "master") != "master":
        raise ConfigError("PHAZE_REDIS_URL names a replica; name its primary")
    policy = info.get("maxmemory_policy")
    if policy is None:
        log.warning("server.unchecked", reason="the server does not tell its maxmemory-policy",
                    remedy="see that it is noeviction")  # fmt: skip
    elif policy != "noeviction" and int(info.get("maxmemory", 0)):
        raise ConfigError(
            f"the server of PHAZE_REDIS_URL may evict jobs (maxmemory-policy {policy}); set maxmemory-policy noeviction"
        )


async def _check_permissions(redis: Redis, streams: bool) -> None:
    try:
        missing = await denied(redis, streams=streams)
    except NoPermissionError:
        missing = ["+eval"]
    if missing:
        raise ConfigError(
            f"the user of PHAZE_REDIS_URL may not do what is needed; grant {' '.join(missing)} "
            "(README, Configuration has the least rule)"
        )


async def take_over_queue(queue: LaneQueue, tasks: Iterable[str] = ()) -> int:
    """Make the queue ours: plain SAQ workers get nothing from it any more, what they left is put back; how many jobs.

    Raises ConfigError if one runs on it.
    """
    is_theirs = await reply(queue.redis.type(queue.keys[1])) == b"list"
    if is_theirs and (plain := await plain_workers(queue)):
        raise ConfigError(
            f"a plain SAQ worker runs on {queue.name} ({', '.join(plain)}); stop it first: it aborts our jobs"
        )
    moved = int(await queue.scripts("adopt", [*queue.keys, keys.TASKS], list(tasks)))
    if is_theirs:
        log.info("queue.adopted", queue=queue.name, jobs=moved)
    return moved


async def plain_workers(queue: LaneQueue) -> list[str]:
    """The ids of SAQ workers that registered on the queue and are not ours."""
    found = []
    try:
        for key in await queue.redis.zrange(queue.namespace("stats"), 0, -1):
            text = await queue.redis.get(key)
            if text and not (json.loads(text).get("metadata") or {}).get("phoenix"):
                found.append(key.decode().rsplit(":", 1)[-1])
    except (ValueError, TypeError, AttributeError):
        log.warning("queue.unchecked", queue=queue.name)
    return found
