"""How our queue's work grows with the number of queued jobs, and what a finished job leaves in the server's memory.

    python benchmarks/scale.py [--sizes 1000,100000,1000000] [--write]

Each figure is the median time of one call on a queue of that size: `claim` takes ten jobs, `settle` ends ten and takes
none, `upkeep` looks for what is due and for orphans, `count` and `info` are what the dashboard asks for.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from results import write_section
from saq.job import Job, Status
from saq.utils import now
from server import Server, running

from agent.phoenix.endings import Endings, Result
from agent.phoenix.queue import LaneQueue
from agent.phoenix.runs import Ending, Run
from agent.redis_client import connect

ROUNDS = 100
AT_ONCE = 10
FINISHED = 10_000
TTL = 600
"""Seconds that finished jobs are kept here; SAQ's own default."""

Time = dict[str, float]


async def fill(queue: LaneQueue, first: int, count: int, **options: Any) -> None:
    """Queue jobs, as SAQ's enqueue would one by one."""
    job = Job("noop", key="noop:#", kwargs={"i": "#"}, queue=queue, queued=now(), status=Status.QUEUED, **options)
    text = str(queue.serialize(job))
    for start in range(first, first + count, 5_000):
        pipe = queue.redis.pipeline(transaction=False)
        ids = {queue.job_id(f"noop:{i}"): 0 for i in range(start, min(start + 5_000, first + count))}
        pipe.mset({job_id: text.replace("#", job_id.rpartition(":")[2]) for job_id in ids})
        pipe.zadd(queue.namespace("incomplete"), ids)
        pipe.rpush(queue.namespace("queued"), *ids)
        await pipe.execute()


def end(queue: LaneQueue, runs: Sequence[Run]) -> list[Ending]:
    """The endings of runs that went well."""
    endings = Endings(queue, "bench", outbox=False)
    for run in runs:
        run.job = queue.deserialize(run.text)
        run.attempts = 1
    return [endings.done(run, Result(None)) for run in runs]


async def measure(queue: LaneQueue) -> Time:
    """Milliseconds of each call, medians."""
    spent: dict[str, list[float]] = {}

    async def timed(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        before = time.perf_counter()
        answer = await call()
        spent.setdefault(name, []).append((time.perf_counter() - before) * 1000)
        return answer

    for _ in range(ROUNDS):
        _, runs, _ = await timed("claim", lambda: queue.step("bench", "bench", AT_ONCE))
        endings = end(queue, runs)
        await timed("settle", lambda endings=endings: queue.step("bench", "bench", 0, endings))
        await timed("upkeep", lambda: queue.upkeep(orphans=True, aborts=True))
        await timed("count", lambda: queue.count("queued"))
        await timed("info", lambda: queue.info(jobs=True))
    return {name: statistics.median(times) for name, times in spent.items()}


async def footprint(redis: Redis, queue: LaneQueue) -> tuple[float, float]:
    """Bytes of server memory per finished job: within its time to live, and after it."""

    async def used() -> int:
        return int((await redis.info("memory"))["used_memory"])

    await queue.step("bench", "bench", 0)
    empty = await used()
    await fill(queue, 0, FINISHED, ttl=TTL)
    done = 0
    while done < FINISHED:
        _, runs, _ = await queue.step("bench", "bench", 200)
        await queue.step("bench", "bench", 0, end(queue, runs))
        done += len(runs)
    within = await used()
    ids = [queue.job_id(f"noop:{i}") for i in range(FINISHED)]
    for start in range(0, FINISHED, 1_000):  # what their time to live does, without the wait
        await redis.delete(*ids[start : start + 1_000])
    return (within - empty) / FINISHED, (await used() - empty) / FINISHED


async def run(url: str, sizes: Sequence[int]) -> list[str]:
    """The tables as Markdown."""
    server = Server(url)
    redis = connect(url)
    queue = LaneQueue(redis, name="bench")
    await queue.connect()
    columns: list[Time] = []
    for size in sizes:
        server.wipe()
        await fill(queue, 0, size)
        columns.append(await measure(queue))
    server.wipe()
    within, after = await footprint(redis, queue)
    await redis.aclose()
    lines = ["| ms | " + " | ".join(f"{size:,} queued" for size in sizes) + " |", "|---" + "|---:" * len(sizes) + "|"]
    lines += [f"| {name} | " + " | ".join(f"{column[name]:.2f}" for column in columns) + " |" for name in columns[0]]
    said = f"A finished job takes {within:,.0f} bytes of the server's memory within its TTL, {after:,.0f} after it"
    return [f"{server.version}; claim and settle: {AT_ONCE} jobs at once.", "", *lines, "", f"{said} (its marker)."]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print; with --write also into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,100000,1000000", help="comma separated")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md beside this file")
    args = parser.parse_args(argv)
    with running() as url:
        lines = asyncio.run(run(url, [int(size) for size in args.sizes.split(",")]))
    sys.stdout.write("\n".join(lines) + "\n")
    if args.write:
        write_section("Scale", lines)


if __name__ == "__main__":
    main()
