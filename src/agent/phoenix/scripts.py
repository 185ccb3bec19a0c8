"""The Lua scripts: each its own file, put together with the prelude, loaded once, run by hash.

They carry `allow-oom`: a server out of memory must not stop what ends a run or extends a lease.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

from agent.metrics import timed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from agent.redis_client import Line

PARTS: dict[str, tuple[str, ...]] = {
    "step": ("facts", "entries", "claim", "aborted", "settle", "step"),
    "unheard": ("facts", "entries", "aborted", "unheard"),
    "renew": ("renew",),
    "alone": ("alone",),
    "upkeep": ("facts", "entries", "aborted", "upkeep"),
    "lost": ("facts", "lost"),
    "update": ("update",),
    "abort": ("facts", "entries", "aborted", "abort"),
    "unpark": ("parked", "unpark"),
    "release": ("facts", "parked", "release"),
    "breaker": ("breaker",),
    "replay": ("replay",),
    "adopt": ("adopt",),
    "hurry": ("hurry",),
    "bridge": ("entries", "bridge"),
    "bury": ("entries", "bury"),
    "consumers": ("consumers",),
    "resend": ("resend",),
    "hold_key": ("hold_key",),
    "keep_key": ("keep_key",),
    "drop_key": ("drop_key",),
    "report": ("report",),
    "relay": ("relay",),
    "supersede": ("supersede",),
}
"""script -> the files that it consists of, after the prelude."""

SHEBANG = "#!lua flags=allow-oom\n"


@cache
def part(name: str) -> str:
    """The text of one Lua file."""
    return (files("agent.phoenix") / "lua" / f"{name}.lua").read_text("utf-8")


@cache
def text(script: str, prelude: str | None = None) -> str:
    """One script as the server gets it. `prelude` replaces the usual one (tests move its clock)."""
    return SHEBANG + "\n".join([prelude or part("prelude"), *map(part, PARTS[script])])


@cache
def sha(script: str, prelude: str | None = None) -> str:
    """The hash by which the server knows a script."""
    return hashlib.sha1(text(script, prelude).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Runs the scripts on one client: EVALSHA, and EVAL where the server does not know them (yet, or any more)."""

    prelude: str | None = None
    """Another prelude, for tests that move the clock."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def __call__(self, script: str, keys: Sequence[str], args: Sequence[Any], *, over: Line | None = None) -> Any:
        """The script's reply; `over` a line of the caller's own, else any connection."""
        execute: Callable[..., Awaitable[Any]] = (over or self._redis).execute_command
        call = (str(len(keys)), *keys, *args)
        with timed(script):
            try:
                return await execute("EVALSHA", sha(script, self.prelude), *call)
            except NoScriptError:
                return await execute("EVAL", text(script, self.prelude), *call)
