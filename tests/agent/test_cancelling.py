"""A cancel that is lost is said again."""

from __future__ import annotations

import asyncio
import contextlib

from agent.cancelling import end


async def test_a_task_that_swallows_its_first_cancels_ends_all_the_same() -> None:
    swallowed = 0

    async def deaf() -> None:
        nonlocal swallowed
        while swallowed < 2:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            swallowed += 1
        await asyncio.sleep(60)

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    assert await end([task])
    assert task.cancelled()
    assert swallowed == 2


async def test_a_task_that_never_ends_is_given_up_in_time() -> None:
    done = asyncio.Event()

    async def never() -> None:
        while not done.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await done.wait()

    task = asyncio.create_task(never())
    await asyncio.sleep(0)
    assert not await end([task], within=0.5)
    done.set()
    await task


async def test_a_failed_task_does_not_stop_the_others_from_ending() -> None:
    async def fail() -> None:
        raise ValueError("boom")

    other = asyncio.create_task(asyncio.sleep(60))
    failed = asyncio.create_task(fail())
    await asyncio.sleep(0)
    assert await end([failed, other])
