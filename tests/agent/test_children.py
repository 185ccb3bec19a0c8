"""One job is lost to a crash, a hang or a memory blow-up; never the worker, never its neighbours."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.children import NICER, ChildError, Children, ChildTimeout
from pipelines.errors import ChildDied, InputRejected, NotGranted, RecordNotFoundError
from pipelines.music.analyze import analyze
from pipelines.music.samples import write_samples
from pipelines.payer import spent
from tests.agent import child_functions as work


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    pool = Children(2, memory_mb=512, max_jobs=3)
    yield pool
    await pool.close()


async def gone(pid: int, within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


async def test_a_result_comes_back(children: Children) -> None:
    assert await children.run(30, work.add, 1, right=2) == 3


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (work.crash, ChildDied, "SIGSEGV"),
        (functools.partial(work.exit_at_once, 0), ChildDied, "exit code 0"),
        (functools.partial(work.exit_at_once, 3), ChildDied, "exit code 3"),
        (work.eat_memory, ChildDied, "PHAZE_CHILD_MEMORY_MB"),
        *(
            (functools.partial(work.hear_that_memory_ended, how), ChildDied, "PHAZE_CHILD_MEMORY_MB")
            for how in ("c++", "system", "loader", "hidden")
        ),
        (work.raise_odd, ChildError, "Odd: 1"),
        (work.unpicklable, ChildError, "pickle"),
        (work.reject, InputRejected, "too-short: 0.2 s"),
        (work.lose, RecordNotFoundError, "gone.mp3"),
    ],
)
async def test_a_failing_child_costs_its_own_job_and_says_why(
    children: Children, function: Callable[[], Any], error: type[Exception], said: str
) -> None:
    neighbour = asyncio.create_task(children.run(60, work.nap, 1.0))
    with pytest.raises(error, match=said):
        await children.run(60, function)
    assert await neighbour == "rested"
    assert await children.run(60, work.add, 2, 2) == 4


@pytest.mark.parametrize("megabytes", [128, 140, 160])
async def test_an_analysis_that_meets_the_cap_dies_of_it_however_essentia_says_so(
    tmp_path: Path, megabytes: int
) -> None:
    """By the kernel, an assertion of FFTW's, or as `ValueError: std::bad_alloc`: none may be tried again for ever."""
    song = write_samples(tmp_path)[0].path
    children = Children(1, memory_mb=megabytes)
    try:
        with pytest.raises(ChildDied):
            await children.run(60, analyze, song)
    finally:
        await children.close()


async def test_an_exit_code_is_told(children: Children) -> None:
    with pytest.raises(ChildDied, match="exit code 7"):
        await children.run(30, work.exit_at_once, 7)


async def test_a_timeout_really_kills_and_the_event_loop_never_waits(children: Children) -> None:
    pid = await children.run(30, work.pid)
    longest_gap = 0.0

    async def tick() -> None:
        nonlocal longest_gap
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            longest_gap, last = max(longest_gap, time.monotonic() - last), time.monotonic()

    ticker = asyncio.create_task(tick())
    with pytest.raises(ChildTimeout):
        await children.run(1.0, work.spin)
    ticker.cancel()
    assert await gone(pid)
    assert longest_gap < 1.0
    assert await children.run(30, work.add, 1, 1) == 2


async def test_a_child_that_holds_the_interpreter_is_killed_too(children: Children) -> None:
    pid = await children.run(30, work.pid)
    with pytest.raises(ChildTimeout):
        await children.run(0.5, work.spin_in_c, 60.0)
    assert await gone(pid, within=20.0)


async def test_a_cancel_kills_the_child(children: Children) -> None:
    pid = await children.run(30, work.pid)
    running = asyncio.create_task(children.run(60, work.spin))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await gone(pid)
    assert await children.run(30, work.add, 1, 1) == 2


async def test_a_child_killed_while_idle_is_replaced(children: Children) -> None:
    pid = await children.run(30, work.pid)
    os.kill(pid, signal.SIGKILL)
    assert await gone(pid)
    await asyncio.sleep(0.3)
    assert await children.run(30, work.pid) != pid


async def test_a_child_is_replaced_after_its_share_of_jobs(children: Children) -> None:
    pids = [await children.run(30, work.pid) for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


async def test_no_more_children_than_slots_run_at_once(children: Children) -> None:
    started = time.monotonic()
    await asyncio.gather(*(children.run(60, work.nap, 0.5) for _ in range(4)))
    assert time.monotonic() - started >= 1.0


async def test_children_are_the_kernels_first_choice_when_memory_ends(children: Children) -> None:
    assert await children.run(30, work.oom_score_adj) == 1000


async def test_children_yield_the_processor_to_those_who_wait_a_moment(children: Children) -> None:
    assert await children.run(30, work.niceness) == min(19, os.nice(0) + NICER)


async def test_children_inherit_the_thread_pins(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.worker import THREAD_PINS, pin_threads

    for name in THREAD_PINS:
        monkeypatch.delenv(name, raising=False)
    pin_threads("io")
    assert not THREAD_PINS.keys() & os.environ.keys()
    for name in THREAD_PINS:
        monkeypatch.setenv(name, "8")
    pin_threads("analyze")
    seen = await children.run(30, work.environment)
    assert {name: seen[name] for name in THREAD_PINS} == THREAD_PINS


async def test_close_leaves_nothing_running() -> None:
    pool = Children(2)
    pids = await asyncio.gather(pool.run(30, work.pid), pool.run(30, work.pid))
    await pool.close()
    assert all([await gone(pid) for pid in pids])


async def test_what_a_child_says_is_heard_while_it_works(children: Children) -> None:
    heard: list[tuple[float, str]] = []
    running = asyncio.create_task(
        children.run_heard(lambda fraction, note: heard.append((fraction, note)), 60, work.say_steps, 40, 0.05)
    )
    async with asyncio.timeout(30):
        while not heard:
            await asyncio.sleep(0.02)
    assert not running.done()
    assert await running == "said"
    assert heard == sorted(heard)
    assert len(heard) > 3


async def test_a_child_that_says_more_than_anybody_reads_is_not_held_up(children: Children) -> None:
    async with asyncio.timeout(60):
        assert await children.run(60, work.say_a_lot) == "said"


async def test_nothing_said_by_an_earlier_job_is_heard_in_the_next(children: Children) -> None:
    heard: list[tuple[float, str]] = []
    with pytest.raises(ChildDied):
        await children.run(60, work.say_and_crash)
    await children.run(60, work.say_steps, 3, 0.0)
    for _ in range(3):
        await children.run_heard(lambda fraction, note: heard.append((fraction, note)), 60, work.nap, 0.1)
    assert heard == []


async def test_a_call_to_a_model_that_nobody_would_count_is_refused(children: Children) -> None:
    with pytest.raises(NotGranted, match="child_as_user"):
        await children.run(30, spent, 1, 2, "small")


async def test_pipes_are_closed_with_their_children() -> None:
    before = psutil.Process().num_fds()
    for _ in range(3):
        pool = Children(2)
        await asyncio.gather(pool.run(30, work.pid), pool.run(30, work.pid))
        await pool.close()
    assert psutil.Process().num_fds() <= before + 2
