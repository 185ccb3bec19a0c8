"""Who pays for calls to a model, and what they came to: for libraries that have no context in hand.

    key = await api_key()                      # of the user that this run is for
    client = AsyncOpenAI(api_key=key.secret.get_secret_value(), base_url=key.base_url)
    ...
    spent(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.model)

Whoever runs a function sets the payer: `paid_by` for coroutines and the threads that are given their context
(`asyncio.to_thread`), `set_payer` for a whole process. Ask anew for each call: a key is changed when it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pipelines.errors import NotGranted

if TYPE_CHECKING:
    from pydantic import SecretStr

MOST_TOKENS = 10**9
"""Of one call; more is a mistake, and would not add up in the catalogue."""

LONGEST_MODEL = 200
"""Characters of a model's name that are kept."""


@dataclass(frozen=True)
class ApiKey:
    """A user's key. `base_url`: where it is good, with its `/v1`; None: the client library's own default."""

    user: str
    secret: SecretStr
    base_url: str | None = None


@dataclass(frozen=True)
class Spent:
    """The tokens of one call, as the provider's answer tells them. ValueError for what is no count."""

    prompt_tokens: int
    completion_tokens: int
    model: str = ""

    def __post_init__(self) -> None:
        for count in (self.prompt_tokens, self.completion_tokens):
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_TOKENS:
                raise ValueError(f"{count!r} is no number of tokens; give whole numbers from 0, as `usage` has them")


class Payer(Protocol):
    """Who stands behind `api_key` and `spent`."""

    async def api_key(self) -> ApiKey:
        """See `api_key` below."""

    def spent(self, spent: Spent) -> None:
        """Called from whichever thread reports."""


_here: ContextVar[Payer | None] = ContextVar("payer", default=None)
_process: Payer | None = None


async def api_key() -> ApiKey:
    """The key with which to pay now. Never log, return or keep it.

    Raises NotGranted where nobody pays, or no key is to be had for the user, and NotAnswered (ask again later).
    """
    payer = _here.get() or _process
    if payer is None:
        raise NotGranted("nobody pays here; run it as a task whose policy names a user, or inside `paid_by`")
    return await payer.api_key()


def spent(prompt_tokens: int, completion_tokens: int, model: str = "") -> None:
    """Report what a call came to, as soon as it is known, also where its answer is of no use.

    Raises ValueError for what is no count. Costs nothing where nobody pays.
    """
    payer = _here.get() or _process
    call = Spent(prompt_tokens, completion_tokens, model[:LONGEST_MODEL])
    if payer is not None:
        payer.spent(call)


@contextmanager
def paid_by(payer: Payer) -> Iterator[None]:
    """Let `payer` pay for what is called inside."""
    token = _here.set(payer)
    try:
        yield
    finally:
        _here.reset(token)


def set_payer(payer: Payer | None) -> None:
    """Let `payer` pay for this process, in every thread."""
    global _process
    _process = payer
