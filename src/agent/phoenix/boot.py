"""Before a worker takes its first job: is this a server, and a queue, on which the promises hold?

What is wrong stops the start with one line that says what to change.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import structlog
from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError, ResponseError

from agent.errors import ConfigError
from agent.redis_client import reply

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from agent.phoenix.queue import LaneQueue

log = structlog.get_logger()

OLDEST = (7, 0)
"""Redis 7.0, and every Valkey: flags of scripts (`allow-oom`) came with it."""

WRITE = "redis.call('SET', KEYS[1], '1', 'PX', 1000) return redis.call('DEL', KEYS[1])"


async def check_server(redis: Redis) -> None:
    """Raises ConfigError for a server that is too old, a cluster or a replica, may evict, or may not be written to."""
    try:
        info: dict[str, Any] = await redis.info()
    except NoPermissionError:
        log.warning("server.unchecked", reason="the user of PHAZE_REDIS_URL may not read INFO; grant it +info")
        info = {}
    version = str(info.get("redis_version", ""))
    if version and tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ConfigError(f"PHAZE_REDIS_URL names a Redis {version}; use Redis 7 or newer, or Valkey")
    if info.get("cluster_enabled"):
        raise ConfigError(
            "PHAZE_REDIS_URL names a Redis Cluster; a job's keys must be on one server: use a single primary"
        )
    if info.get("role", "master") != "master":
        raise ConfigError("PHAZE_REDIS_URL names a replica; name its primary")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and int(info.get("maxmemory", 0)):
        raise ConfigError(
            f"the server of PHAZE_REDIS_URL may evict jobs (maxmemory-policy {policy}); set maxmemory-policy noeviction"
        )
    await _check_writing(redis)


async def _check_writing(redis: Redis) -> None:
    key = f"phoenix:boot:{uuid.uuid4().hex}"
    try:
        await reply(redis.eval(WRITE, 1, key))
    except (NoPermissionError, ReadOnlyError, ResponseError) as error:
        raise ConfigError(
            f"the server of PHAZE_REDIS_URL may not be written to ({error}); see README, Configuration"
        ) from None


async def take_over_queue(queue: LaneQueue) -> int:
    """Adopt what plain SAQ workers left on this queue; the number of jobs put back. Raises ConfigError if one runs."""
    kind = await reply(queue.redis.type(queue.keys[1]))
    if kind != b"list":
        return 0
    if plain := await plain_workers(queue):
        raise ConfigError(
            f"a plain SAQ worker runs on {queue.name} ({', '.join(plain)}); stop it first: it aborts our jobs"
        )
    moved = int(await queue.scripts("adopt", queue.keys, []))
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
    except (RedisError, ValueError):
        log.warning("queue.unchecked", queue=queue.name)
    return found
