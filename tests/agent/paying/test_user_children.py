"""A library that reads its key from the environment sees its user's, and nothing of the worker's."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from agent.child import ChildError, ChildTimeout
from agent.redaction import hide
from agent.user_children import KEPT, MOST_LINES, UserChildren
from pipelines.errors import ChildDied, InputRejected
from pipelines.payer import ApiKey, Spent
from tests.agent import child_functions as work
from tests.agent.paying import library
from tests.agent.test_children import gone

KEY = ApiKey("ann", SecretStr("the-key-of-ann"), "http://127.0.0.1:1/v1")
THREE = [Spent(100, 10, "small"), Spent(101, 11, "small"), Spent(102, 12, "small")]


class Heard:
    """Runs functions for `ann`, and hears what they report."""

    def __init__(self, children: UserChildren) -> None:
        self.children = children
        self.spent: list[Spent] = []
        self.said: list[tuple[float, str]] = []

    async def run(self, function: object, *args: object, seconds: float = 60, key: ApiKey = KEY) -> object:
        return await self.children.run(
            key, self.spent.append, lambda *said: self.said.append(said), seconds, function, *args
        )  # type: ignore[arg-type]


@pytest.fixture
def heard() -> Heard:
    hide(KEY.secret.get_secret_value())
    return Heard(UserChildren(2, memory_mb=512, more=("PLAIN",)))


async def test_its_environment_is_the_users_key_and_what_every_program_needs(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PHAZE_REDIS_URL", "PHAZE_AGENT_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_ORG_ID", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret-of-the-worker")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-worker")
    monkeypatch.setenv("PLAIN", "asked for")
    seen = await heard.run(library.environment)
    assert isinstance(seen, dict)
    own = {"OPENAI_API_KEY": "the-key-of-ann", "OPENAI_BASE_URL": KEY.base_url, "PLAIN": "asked for"}
    assert {name: seen[name] for name in own} == own
    assert seen.keys() <= KEPT | own.keys() | {"LC_CTYPE"}
    assert "of-the-worker" not in str(await heard.run(library.environment_of_the_kernel))
    assert os.environ["OPENAI_API_KEY"] == "key-of-the-worker", "the worker's own is left alone"


async def test_every_call_has_a_process_of_its_own_also_one_after_the_other(heard: Heard) -> None:
    pids = [await heard.run(work.pid) for _ in range(3)]
    assert len(set(pids)) == 3
    assert all([await gone(int(str(pid))) for pid in pids])


async def test_two_users_at_once_see_each_their_own_key(heard: Heard) -> None:
    bob = ApiKey("bob", SecretStr("the-key-of-bob"))
    ann, other = await asyncio.gather(heard.run(library.whose_key), heard.run(library.whose_key, key=bob))
    assert (ann, other) == ("the-key-of-ann", "the-key-of-bob")


@pytest.mark.parametrize(
    ("then", "error", "said"),
    [
        ("exit", ChildDied, "exit code 7"),
        ("crash", ChildDied, "SIGSEGV"),
        ("eat", ChildDied, "PHAZE_CHILD_MEMORY_MB"),
        ("raise", ChildError, "Odd: 1"),
        ("reject", InputRejected, "too-short"),
        ("spin", ChildTimeout, "killed after 4 s"),
    ],
)
async def test_however_it_ends_what_it_had_reported_is_heard(
    heard: Heard, then: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await heard.run(library.spend_and, then, seconds=4 if then == "spin" else 60)
    assert heard.spent == THREE
    assert await heard.run(work.add, 1, 2) == 3


async def test_a_cancel_kills_it_and_what_it_had_reported_is_heard(heard: Heard) -> None:
    running = asyncio.create_task(heard.run(library.spend_and, "spin"))
    async with asyncio.timeout(30):
        while len(heard.spent) < 3:
            await asyncio.sleep(0.02)
    (child,) = [one for one in psutil.Process().children() if "user_child" in " ".join(one.cmdline())]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await gone(child.pid)
    assert heard.spent == THREE


async def test_what_it_starts_is_ended_with_it(heard: Heard) -> None:
    pid = int(str(await heard.run(library.spend_and, "grandchild")))
    async with asyncio.timeout(10):
        while [one for one in psutil.process_iter() if one.status() != psutil.STATUS_ZOMBIE and _group(one.pid) == pid]:
            await asyncio.sleep(0.05)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


async def test_it_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from pydantic import SecretStr
from agent.user_children import UserChildren
from pipelines.payer import ApiKey
from tests.agent import child_functions as work

async def main():
    children = UserChildren(1)
    said = lambda fraction, note: print(note, flush=True)
    await children.run(ApiKey("ann", SecretStr("k")), print, said, 600, work.say_steps, 10_000, 0.3)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(library.sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert b"step" in await process.stdout.readline()
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    assert await gone(child.pid)
    await process.communicate()


async def test_what_it_prints_is_logged_as_far_as_bearable_and_without_the_key(heard: Heard) -> None:
    with capture_logs() as logs:
        await heard.run(library.spend_and, "print")
    lines = [row["line"] for row in logs if row["event"] == "child.said"]
    assert lines[0] == "line 0 [redacted]"
    assert len(lines) == MOST_LINES
    assert [row["lines"] for row in logs if row["event"] == "child.said_more"] == [3_001 - MOST_LINES]
    assert "the-key-of-ann" not in str(logs)


async def test_a_thousand_reports_arrive_in_order_and_progress_is_heard(heard: Heard) -> None:
    assert await heard.run(library.spend_a_lot, 5_000) == 5_000
    assert len(heard.spent) == 5_000
    await heard.run(work.say_steps, 5, 0.25)
    assert len(heard.said) >= 3
    assert heard.said == sorted(heard.said)


async def test_no_more_than_slots_run_at_once(heard: Heard) -> None:
    started = time.monotonic()
    await asyncio.gather(*(heard.run(library.nap, 0.5) for _ in range(4)))
    assert time.monotonic() - started >= 1.0


async def test_nothing_is_left_open(heard: Heard) -> None:
    await heard.run(work.pid)
    before = psutil.Process().num_fds()
    for _ in range(3):
        await heard.run(work.pid)
        with pytest.raises(ChildDied):
            await heard.run(work.exit_at_once, 3)
    assert psutil.Process().num_fds() <= before + 2
