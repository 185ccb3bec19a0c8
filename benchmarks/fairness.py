"""How long small jobs wait while 5,000 CPU jobs of two seconds are queued: on lanes, and on one pool of 8 as before.

    python benchmarks/fairness.py [--seconds 60] [--write]

A small job does nothing; one of meta and one of io are enqueued every 50 ms. The wait is from then to its body's start.
Idle: the same without CPU jobs. Each worker is a process of its own, as in production; CPU jobs run in child processes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from results import write_section
from scale import fill
from server import Server, running

from agent import logs
from agent.children import Children
from agent.lanes import CPU_LANES
from agent.phoenix.queue import LaneQueue
from agent.phoenix.worker import LaneWorker
from agent.redis_client import connect
from agent.settings import Settings

QUEUED = 5_000
CPU_SECONDS = 2.0
EVERY = 0.05
WAITS, ENDED = "bench:waits", "bench:ended"
SMALL = ("meta", "io")
POOL = "pool"
POOL_SLOTS = 8
BAR = 2.0
"""A small job's p95 wait beside the backlog, as a multiple of its idle one."""


def burn(seconds: float) -> None:
    """Use so much of a processor."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def slots(name: str) -> int:
    """As `phaze up` has them on this machine."""
    if name == POOL:
        return POOL_SLOTS
    knob = int(Settings.model_fields[f"lane_{name}_concurrency"].default)
    return min(knob, os.cpu_count() or 1) if name in CPU_LANES else knob


async def work(url: str, name: str) -> None:
    """One worker, on the queue of its name, until SIGTERM."""
    logs.configure("error")
    redis = connect(url)
    children = Children(slots(name))

    async def noop(_context: Any, *, i: str) -> None:
        await children.run(120.0, burn, CPU_SECONDS)
        await redis.incr(ENDED)

    async def small(_context: Any, *, lane: str, at: float) -> None:
        await redis.rpush(f"{WAITS}:{lane}", time.time() - at)

    queue = LaneQueue(redis, name=name)
    worker = LaneWorker(queue, [("noop", noop), ("small", small)], lane=name, concurrency=slots(name), grace=0.0)
    await worker.start()
    await children.close()


@dataclass(frozen=True)
class Waits:
    """Of one lane's small jobs, in seconds; `unstarted` had not begun at the end."""

    started: list[float]
    unstarted: int

    @property
    def p95(self) -> float:
        """Infinite where more than a twentieth did not start."""
        waits = sorted([*self.started, *([float("inf")] * self.unstarted)])
        return waits[int(len(waits) * 0.95)]


async def measure(url: str, seconds: float, *, pool: bool, backlog: bool) -> tuple[dict[str, Waits], int]:
    """Waits by lane, and CPU jobs that ended meanwhile."""
    redis = connect(url)
    await redis.flushall()
    cpu = POOL if pool else "analyze"
    names = {POOL} if pool else {"analyze", *SMALL}
    if backlog:
        await fill(LaneQueue(redis, name=cpu), 0, QUEUED, timeout=0)
    commands = [[sys.executable, __file__, "--worker", name, "--url", url] for name in names]
    workers = [await asyncio.create_subprocess_exec(*command) for command in commands]
    queues = {lane: LaneQueue(redis, name=POOL if pool else lane) for lane in SMALL}
    try:
        await asyncio.sleep(5.0)  # they start, and the CPU jobs take every slot
        await redis.set(ENDED, 0)
        end, asked = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for lane, queue in queues.items():
                await queue.enqueue("small", key=f"small:{lane}-{asked}", lane=lane, at=time.time())
            asked += 1
            await asyncio.sleep(EVERY)
        await asyncio.sleep(1.0)
        done = int(await redis.get(ENDED))
        waits = {lane: [float(wait) for wait in await redis.lrange(f"{WAITS}:{lane}", 0, -1)] for lane in SMALL}
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            await worker.wait()
        await redis.aclose()
    return {lane: Waits(found, asked - len(found)) for lane, found in waits.items()}, done


def row(name: str, waits: dict[str, Waits], cpu_jobs: str) -> str:
    """A line of the table."""
    cells = []
    for found in waits.values():
        median = f"{statistics.median(found.started) * 1000:.1f}" if found.started else "-"
        p95 = f"{found.p95 * 1000:.1f}" if found.p95 != float("inf") else f"none of {found.unstarted} started"
        cells += [median, p95]
    return f"| {name} | {' | '.join(cells)} | {cpu_jobs} |"


async def run(url: str, seconds: float) -> list[str]:
    """The section as Markdown."""
    idle, _ = await measure(url, seconds / 2, pool=False, backlog=False)
    busy, done = await measure(url, seconds, pool=False, backlog=True)
    pool, pool_done = await measure(url, seconds, pool=True, backlog=True)
    said = [
        f"{Server(url).version}, {os.cpu_count()} cores; {QUEUED:,} CPU jobs of {CPU_SECONDS:g} s queued; a job of "
        f"meta and one of io every {EVERY * 1000:.0f} ms for {seconds:.0f} s ({seconds / 2:.0f} s idle).",
        "",
        "| wait in ms | meta p50 | meta p95 | io p50 | io p95 | CPU jobs a minute |",
        "|---|---:|---:|---:|---:|---:|",
        row("lanes, idle", idle, "-"),
        row(f"lanes, analyze ({slots('analyze')} slots) has the backlog", busy, f"{done / seconds * 60:.0f}"),
        row(f"one pool of {POOL_SLOTS} has it", pool, f"{pool_done / seconds * 60:.0f}"),
        "",
    ]
    for lane in SMALL:
        ratio = busy[lane].p95 / idle[lane].p95
        verdict = "met" if ratio <= BAR else "missed"
        said.append(f"- {lane}: p95 beside the backlog is {ratio:.2f} times the idle one; bar {BAR:g}: {verdict}.")
    if pool_done:
        hours = QUEUED / (pool_done / seconds) / 3600
        said.append(f"- In the one pool a small job waits until the backlog is done: {hours:.1f} hours at this rate.")
    return said


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print; with --write also into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--write", action="store_true", help="write RESULTS.md beside this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        asyncio.run(work(args.url, args.worker))
        return
    with running() as url:
        lines = asyncio.run(run(url, args.seconds))
    sys.stdout.write("\n".join(lines) + "\n")
    if args.write:
        write_section("Fairness", lines)


if __name__ == "__main__":
    main()
