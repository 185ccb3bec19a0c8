"""Whatever is done to workers, server and network: every job is recorded once, by the body that owned it last.

The short form runs with all tests; `make chaos` gives each kind a minute and 2,000 jobs (CHAOS_SECONDS sets the time).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.phoenix.queue import LEASE
from agent.phoenix.worker import SWEEP
from tests.chaos.harness import Fleet, Times, fleet

SECONDS = float(os.environ.get("CHAOS_SECONDS", "2"))
LONG = SECONDS > 10
JOBS = 2_000 if LONG else 800
QUICK = Times()
PATIENCE = 180.0
"""Seconds for a fleet to come to rest: ten times what is usual."""

pytestmark = pytest.mark.timeout(SECONDS + 2 * PATIENCE)

Blow = Callable[[Fleet, int], Awaitable[None]]


async def kill(found: Fleet, tick: int) -> None:
    await found.kill_one()


async def freeze(found: Fleet, tick: int) -> None:
    if tick % 4 == 0:
        await found.freeze_one(QUICK.lease * found.chance.uniform(1.2, 1.8))


async def restart_valkey(found: Fleet, tick: int) -> None:
    if tick % 4 == 0:
        await found.restart_valkey(away=found.chance.uniform(0.0, 2.0 if LONG else 0.5))


async def disturb_the_network(found: Fleet, tick: int) -> None:
    found.proxy.delay = found.chance.choice([0.0, 0.02, 0.2])
    if tick % 8 == 4:
        found.proxy.silence(0.3)
    else:
        found.proxy.cut(found.chance.choice([0.3, 1.0]))
    found.blows["connections cut"], found.blows["silenced"] = found.proxy.cuts, found.proxy.silenced


KINDS: dict[str, Blow] = {
    "kill -9": kill,
    "freeze": freeze,
    "restart of Valkey": restart_valkey,
    "network": disturb_the_network,
}


ROUNDS = [[kind] for kind in KINDS] if LONG else [list(KINDS)]
"""The long form gives each kind a fleet of its own; the short form lets one fleet suffer them one after another."""


async def blow_upon_blow(found: Fleet, blow: Blow, jobs: int) -> None:
    """A burst of jobs each second, and a blow while they run."""
    began, fed, tick = time.monotonic(), 0, 0
    while fed < jobs:
        started = time.monotonic()
        share = min(1.0, (started - began + 1.0) / SECONDS)
        feeding = asyncio.create_task(found.feed(int(jobs * share) - fed))
        fed = int(jobs * share)
        await asyncio.sleep(found.chance.uniform(0.0, 0.3))
        await blow(found, tick)
        await feeding
        await asyncio.sleep(max(0.0, started + 1.0 - time.monotonic()))
        tick += 1
    found.proxy.delay = 0.0


@pytest.mark.parametrize("kinds", ROUNDS, ids="+".join)
async def test_every_job_is_recorded_once_by_its_last_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kinds: list[str]
) -> None:
    async with fleet(tmp_path, QUICK) as found:
        for kind in kinds:
            await blow_upon_blow(found, KINDS[kind], JOBS // len(kinds))
        drained = await found.settle_down(PATIENCE)
        figures = await found.account(", ".join(kinds), SECONDS * len(kinds), drained)
    say(capsys, str(figures))
    assert (figures.recorded, figures.lost) == (JOBS, 0)
    assert figures.lines < 100 + 20 * sum(figures.blows.values()) + 5 * figures.takeovers, "a flood of log lines"


async def test_a_killed_workers_job_runs_again_within_lease_and_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with fleet(tmp_path) as found:
        await found.feed(1, seconds=(6.0, 6.0))
        await found.until(lambda: len(found.starts()) == 1, within=30)
        await asyncio.sleep(found.chance.uniform(0.0, 5.0))
        killed = time.time()
        await found.at_work().end()
        await found.until(lambda: len(found.starts()) == 2, within=PATIENCE)
        took = found.starts()[1]["started"] - killed
        await found.settle_down(PATIENCE)
        await found.account("one kill", took, 0.0)
    say(capsys, f"recovery after kill -9: {took:.1f} s (lease {LEASE:.0f} s + sweep {SWEEP:.0f} s)")
    assert took < LEASE + SWEEP + 5.0


async def test_nobody_is_taken_over_for_one_lease_after_the_server_started(tmp_path: Path) -> None:
    times = Times(lease=4.0)
    async with fleet(tmp_path, times) as found:
        await found.feed(1, seconds=(1.0, 1.0))
        await found.until(lambda: len(found.starts()) == 1, within=30)
        await found.at_work().end()
        await asyncio.sleep(times.lease - 1.0)
        await found.restart_valkey(away=0.0)
        back = time.time()
        await found.until(lambda: len(found.starts()) == 2, within=PATIENCE)
        assert found.starts()[1]["started"] - back > times.lease - 1.5, "the server's uptime is whole seconds"
        await found.settle_down(PATIENCE)
        await found.account("restart", 0.0, 0.0)


async def test_a_server_that_hangs_costs_no_worker_its_life(tmp_path: Path) -> None:
    times = Times(wedged=2.0)
    async with fleet(tmp_path, times) as found:
        pids = [member.pid for member in found.members]
        await found.hang_valkey(3 * times.wedged)
        await found.feed(20)
        await found.settle_down(PATIENCE)
        await found.account("hang", 0.0, 0.0)
        assert [member.pid for member in found.members if member.running] == pids


def say(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """For the reader of the run, captured or not."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")
