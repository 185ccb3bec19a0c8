"""A pipeline of three stages whose workers, bridges among them, are killed all the time: every record goes through all
stages, is recorded once in each, and is sent on once, by the run that was recorded.

The short form runs with all tests; `make chaos` feeds 4,000 entries within a minute (CHAOS_SECONDS) and kills every two
seconds of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.lanes import queue_name
from agent.phoenix import keys
from agent.phoenix.outbox import outbox_key
from agent.redis_client import connect
from agent.valkey import Valkey
from tests.chaos.harness import Member
from tests.chaos.stages import STAGES
from tests.chaos.test_chaos import LONG, SECONDS, say
from tests.conftest import REPO

RECORDS = 4_000 if LONG else 200
EVERY = 2.0 if LONG else 0.5
"""Seconds between two kills."""

KILLS = int(SECONDS / EVERY) if LONG else 4
"""At most: on a busy machine a process takes longer to start than it is left alone."""

WORKERS = 2
"""Of each stage; each with a bridge of its own."""

PATIENCE = 900.0 if LONG else 180.0

pytestmark = pytest.mark.timeout(PATIENCE + 60)


class Pipeline:
    """The workers of all stages, and what they left on the server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.redis: Redis = connect(url)
        self.trail = folder / "trail"
        self.members: list[Member] = []
        self.kills = 0
        for stage, lane in STAGES.items():
            environment = {
                **os.environ,
                "PHAZE_REDIS_URL": url,
                "PHAZE_HUB_URL": "http://127.0.0.1:9",  # nobody: what is recorded stays in the outbox, to be counted
                "PHAZE_AGENT_ID": "chaos",
                "PHAZE_AGENT_TOKEN": "t0ken",
                "PHAZE_AGENT_LANE": lane,
                f"PHAZE_LANE_{lane.upper()}_CONCURRENCY": "8",
                "PHAZE_LOG_FORMAT": "json",
                "PYTHONPATH": str(REPO),
                "CHAOS_TRAIL": str(self.trail),
            }
            logs = [folder / f"{stage}-{number}.log" for number in range(WORKERS)]
            self.members += [Member(log, environment, "tests.chaos.stages") for log in logs]

    async def feed(self) -> None:
        """Whatever a producer of another language would send, over the time of the kills."""
        for start in range(0, RECORDS, 50):
            async with self.redis.pipeline(transaction=False) as pipe:
                for number in range(start, start + 50):
                    said: Any = {"record_id": f"r{number}", "user_id": f"u{number % 30}", "n": str(number)}
                    pipe.xadd(keys.stream_key("one"), said)
                await pipe.execute()
            await asyncio.sleep(SECONDS * 50 / RECORDS)

    async def kill(self, chance: random.Random) -> None:
        """kill -9 of one that works, every so often, and another one in its place."""
        while self.kills < KILLS:
            await asyncio.sleep(EVERY)
            if working := [member for member in self.members if member.at_work]:
                member = chance.choice(working)
                await member.end()
                await member.start()
                self.kills += 1

    async def left(self) -> dict[str, int]:
        """What is not over."""
        found = {stage: int(await self.redis.xlen(keys.stream_key(stage))) for stage in STAGES}
        waiting = [await self.redis.zcard(keys.incomplete_key(queue_name("chaos", STAGES[stage]))) for stage in STAGES]
        return {**found, "jobs": sum(waiting), "records": RECORDS - await self._recorded("three")}

    async def _recorded(self, stage: str) -> int:
        return int(await self.redis.xlen(outbox_key(queue_name("chaos", STAGES[stage]))))

    async def settle_down(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while any((left := await self.left()).values()):
            said = "\n".join(member.log.read_text("utf-8", "replace")[-1000:] for member in self.members)
            assert time.monotonic() < deadline, f"{left}\n{said}"
            await asyncio.sleep(0.1)

    async def account(self) -> tuple[int, int]:
        """Compare what was recorded, what was sent on and what is left: (bodies started, takeovers)."""
        recorded: dict[str, dict[str, list[dict[str, Any]]]] = {stage: defaultdict(list) for stage in STAGES}
        for stage in STAGES:
            for _, fields in await self.redis.xrange(outbox_key(queue_name("chaos", STAGES[stage]))):
                entry = json.loads(fields[b"entry"])
                assert entry["service"] == stage
                recorded[stage][entry["record_id"]].append(entry)
        records = {f"r{number}" for number in range(RECORDS)}
        for stage in STAGES:
            assert recorded[stage].keys() == records, f"lost at {stage}"
            twice = [record for record, entries in recorded[stage].items() if len(entries) != 1]
            assert not twice, f"recorded twice at {stage}: {twice[:5]}"
            (added,) = [(await self.redis.xinfo_stream(keys.stream_key(stage)))["entries-added"]]
            assert added == RECORDS, f"{added} entries were sent to {stage}"
            assert await self.redis.xpending(keys.stream_key(stage), keys.group_name(stage)) == {
                "pending": 0, "min": None, "max": None, "consumers": [],
            }  # fmt: skip
            assert await self.redis.hlen(keys.entries_key(stage)) == 0
            assert await self.redis.llen(keys.dead_letters_key(stage)) == 0
            assert await self.redis.llen(keys.quarantine_key(stage)) == 0
        for record in records:
            tokens = [[stage, recorded[stage][record][0]["token"]] for stage in STAGES]
            (last,) = recorded["three"][record]
            assert last["result"]["data"]["hops"] == tokens, f"{record} went through runs that were not recorded"
            marker = json.loads(await self.redis.get(keys.marker_key("three", record)) or b"{}")
            assert marker["token"] == last["token"]
        assert [key async for key in self.redis.scan_iter("pages:*")] == [], "pages that nobody deleted"
        assert [key async for key in self.redis.scan_iter("lock:*")] == [], "locks are left"
        bodies = [json.loads(line) for line in self.trail.read_text("utf-8").splitlines()]
        counters = [await self.redis.hgetall(keys.counters_key(queue_name("chaos", STAGES[stage]))) for stage in STAGES]
        return len(bodies), sum(int(found.get(b"takeovers", 0)) for found in counters)

    def faults(self) -> list[dict[str, Any]]:
        """What the workers logged as errors."""
        events = [event for member in self.members for event in member.events()]
        return [event for event in events if event.get("level") in ("error", "critical") or event["event"] == "?"]

    async def stop(self) -> None:
        """End everything."""
        for member in self.members:
            if member.running:
                await member.end(signal.SIGKILL)
        await self.redis.aclose()


async def test_every_record_goes_through_all_stages_and_is_recorded_once_in_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valkey = Valkey(tmp_path / "valkey", fsync="always")
    await valkey.start()
    found = Pipeline(tmp_path, valkey.url)
    try:
        started = time.monotonic()
        await asyncio.gather(*(member.start() for member in found.members))
        killing = asyncio.create_task(found.kill(random.Random(7)))
        try:
            await found.feed()
            await found.settle_down()
        finally:
            killing.cancel()
            await asyncio.wait([killing])
        assert killing.cancelled() or killing.exception() is None
        seconds = time.monotonic() - started
        bodies, takeovers = await found.account()
        assert found.faults() == []
    finally:
        await found.stop()
        await valkey.stop()
    say(
        capsys,
        f"chaos of streams ({seconds:.0f} s): {RECORDS} records through {len(STAGES)} stages, {found.kills} kills, "
        f"{takeovers} takeovers, {bodies - RECORDS * len(STAGES)} bodies begun twice, 0 lost, 0 recorded or sent twice",
    )
    assert found.kills >= 2
