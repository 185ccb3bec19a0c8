"""What the server's user must be allowed: the least ACL rule, and the script that asks the server for what is missing.

The rule is for everything that speaks to the queue server: workers and their relay, producers (plain SAQ's too), the
hub, and the operator's commands.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.redis_client import reply

if TYPE_CHECKING:
    from redis.asyncio import Redis

KEYS = ("saq:*", "lock:*", "processed:*", "phoenix:*", "api_key:*")
STREAM_KEYS = ("pages:*",)

CHANNELS = "*"
"""Jobs' changes are published on channels that begin with `saq:`. Whoever waits for a job's end subscribes to the
pattern `saq:job:<queue>:*`, which a server allows only to a user whose rule has that very pattern, or all."""

NAMES = """
ping info select time type eval evalsha script|load multi exec psubscribe punsubscribe publish
get mget mset set setex expire pexpire del exists blmove llen lpos lpop lpush lrange lrem rpush
hdel hget hincrby hmget hset sadd sismember smismember smembers srem
zadd zcard zcount zrange zrangebyscore zrem zremrangebyscore zscore zmscore
xadd xdel xlen xrange xread
"""
COMMANDS = tuple(NAMES.split())

STREAM_NAMES = """
subscribe unsubscribe xack xautoclaim xgroup|create xgroup|delconsumer xinfo|consumers xinfo|groups xpending xreadgroup
"""
STREAM_COMMANDS = tuple(STREAM_NAMES.split())
"""What services that are fed by streams want besides."""

PROBE = """#!lua flags=allow-oom
-- What the user of this connection may not do. ARGV  how many commands, the commands, a key of each family
-- -> JSON, a list of what a rule must add. Where nothing is missing, every family of keys was written to.
local denied, commands = {}, tonumber(ARGV[1])
local function look(adds, ...)
    if not redis.acl_check_cmd(...) then denied[#denied + 1] = adds end
end
local key = ARGV[commands + 2]
for at = 2, commands + 1 do
    local command, sub = string.match(ARGV[at], '^(.-)|(.+)$')
    if ARGV[at] == 'publish' then
        look('+publish', 'publish', key, '')
    else
        look('+' .. ARGV[at], command or ARGV[at], sub or key, key, key, key)
    end
end
for at = commands + 2, #ARGV do look('~' .. string.match(ARGV[at], '^.-:') .. '*', 'set', ARGV[at], '') end
for at = commands + 2, #denied > 0 and 0 or #ARGV do
    redis.call('SET', ARGV[at], '', 'PX', 1000)
    redis.call('DEL', ARGV[at])
end
return #denied > 0 and cjson.encode(denied) or '[]'
"""

OPTIONAL = frozenset({"info", "psubscribe", "punsubscribe", "subscribe", "unsubscribe", "xinfo|groups"})
"""A worker does without: a start without INFO warns, only who waits for a job's end or hears of its progress
subscribes, and only the operator's commands ask for groups."""


def rule() -> str:
    """The least rule, as an operator types it on the server; `phaze` and `PASSWORD` are theirs to choose."""
    keys = " ".join(f"~{pattern}" for pattern in KEYS)
    return f"ACL SETUSER phaze on >PASSWORD {keys} &{CHANNELS} +{' +'.join(COMMANDS)}"


def streams_rule() -> str:
    """What that rule lacks for services that are fed by streams."""
    return f"ACL SETUSER phaze ~{' ~'.join(STREAM_KEYS)} +{' +'.join(STREAM_COMMANDS)}"


async def denied(redis: Redis, *, streams: bool = False) -> list[str]:
    """What the user must be granted yet, as in a rule (`+blmove`, `~lock:*`). Raises what the server answers."""
    samples = [pattern.replace("*", "boot") for pattern in (*KEYS, *(STREAM_KEYS if streams else ()))]
    needed = [name for name in (*COMMANDS, *(STREAM_COMMANDS if streams else ())) if name not in OPTIONAL]
    found: list[str] = json.loads(await reply(redis.eval(PROBE, 0, str(len(needed)), *needed, *samples)))
    return found
