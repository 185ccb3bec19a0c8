"""Libraries as strangers write them, with nothing of ours but the line that reports what was spent.

`ask` takes the key that is current; `ask_from_environment` reads OPENAI_API_KEY and OPENAI_BASE_URL, as OpenAI's client
does by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import urllib.request
from functools import cache
from typing import TYPE_CHECKING

from pipelines.payer import api_key, spent

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@cache
def client() -> AsyncOpenAI:
    """One for the process, as the library advises; each call brings its key."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="of-nobody", max_retries=0, timeout=30)


async def ask(record: str, user: str) -> str:
    """In the worker, with OpenAI's own client."""
    key = await api_key()
    mine = client().with_options(api_key=key.secret.get_secret_value(), base_url=key.base_url)
    answer = await mine.chat.completions.create(
        model="small", messages=[{"role": "user", "content": f"{user} {record}"}]
    )
    assert answer.usage is not None
    spent(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.model)
    return answer.choices[0].message.content or ""


def ask_from_environment(record: str, user: str, then: str = "") -> str:
    """In a child, with what every Python has."""
    body = {"model": "small", "messages": [{"role": "user", "content": f"{user} {record}"}]}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30) as answer:
        found = json.loads(answer.read())
    spent(found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"], found["model"])
    finish(then, os.environ["OPENAI_API_KEY"])
    return str(found["choices"][0]["message"]["content"])


async def client_from_environment(record: str, user: str) -> str:
    """In a child, with OpenAI's own client, which reads the environment; a coroutine function."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(max_retries=0, timeout=30) as mine:
        answer = await mine.chat.completions.create(
            model="small", messages=[{"role": "user", "content": f"{user} {record}"}]
        )
    assert answer.usage is not None
    spent(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.model)
    return answer.choices[0].message.content or ""


def finish(then: str, key: str) -> None:
    """Fail, die, or tell the key to everybody."""
    if then == "fail":
        raise ConnectionResetError("the answer was of no use")
    if then == "die":
        os.abort()
    if then == "tell":
        sys.stdout.write(f"my key is {key}\n")
        sys.stderr.write(key + "\n")
        raise ValueError(f"what is {key!r}?")


# What the tests of child processes run.


def environment() -> dict[str, str]:
    return dict(os.environ)


def environment_of_the_kernel() -> list[str]:
    """As it was when the process was started."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - as plain as can be
        return [row.decode() for row in file.read().split(b"\0") if row]


def spend_and(then: str) -> str:
    """Report three calls, then end in one way or another."""
    from tests.agent import child_functions as work

    for number in range(3):
        spent(100 + number, 10 + number, "small")
    match then:
        case "spin":
            work.spin()
        case "eat":
            work.eat_memory()
        case "exit":
            os._exit(7)
        case "crash":
            work.crash()
        case "raise":
            work.raise_odd()
        case "reject":
            work.reject()
        case "print":
            for number in range(3_000):
                sys.stdout.write(f"line {number} {os.environ['OPENAI_API_KEY']}\n")
            sys.stdout.write("x" * 1_000_000 + "\n")
        case "grandchild":
            if os.fork() == 0:
                time.sleep(600)
            return str(os.getpid())
    return then


async def whose_key() -> str:
    """The key as a library asks for it."""
    return (await api_key()).secret.get_secret_value()


def spend_a_lot(count: int) -> int:
    for _ in range(count):
        spent(1, 1, "small")
    return count


async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"
