"""The Lua scripts: each its own file, put together with the prelude, loaded once, run by hash.

Scripts that end runs or extend leases carry `allow-oom`: a server out of memory must not stop what frees it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

PARTS: dict[str, tuple[str, ...]] = {
    "step": ("claim", "settle", "step"),
    "renew": ("renew",),
    "upkeep": ("claim", "upkeep"),
    "abort": ("claim", "abort"),
    "unpark": ("unpark",),
    "breaker": ("breaker",),
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


class Scripts:
    """Runs the scripts on one client: EVALSHA, and EVAL once where the server does not know them (yet, or any more)."""

    def __init__(self, redis: Redis, prelude: str | None = None) -> None:
        self._redis = redis
        self._texts = {name: text(name, prelude) for name in PARTS}
        self._shas = {name: hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest() for name, body in self._texts.items()}

    async def __call__(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The script's reply."""
        call = (str(len(keys)), *keys, *args)
        try:
            return await self._redis.execute_command("EVALSHA", self._shas[script], *call)
        except NoScriptError:
            return await self._redis.execute_command("EVAL", self._texts[script], *call)
