"""A model of the queue: several owners, a clock that moves, and after each step every job is in exactly one place."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from saq.job import Job, Status
from saq.queue.redis import RedisQueue

from agent.phoenix import keys
from agent.phoenix.endings import Endings, Result
from agent.phoenix.outbox import outbox_key
from agent.phoenix.queue import LaneQueue
from agent.phoenix.runs import Run
from agent.phoenix.scripts import part
from agent.redis_client import connect
from agent.valkey import Valkey

NAME = "phaze-agent-model-meta"
LEASE_MS = 15_000
OWNERS = ("w1", "w2", "w3")
RECORDS = ("a", "b", "c")

MOVED_CLOCK = part("prelude").replace(
    """    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]""",
    """    return tonumber(redis.call('GET', 'test:clock'))""",
)


class Loop:
    """An event loop in a thread, for a state machine whose rules are plain functions."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def __call__(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Machine(RuleBasedStateMachine):
    """`held`: every run that an owner believes it has, stale ones included."""

    url = ""
    call: Loop

    @initialize()
    def begin(self) -> None:
        self.redis = connect(self.url)
        self.queue = LaneQueue(self.redis, name=NAME)
        self.queue.scripts.prelude = MOVED_CLOCK
        self.producer = RedisQueue(self.redis, name=NAME)
        self.now = 1_800_000_000_000  # ms
        self.held: list[tuple[str, Run]] = []
        self.unheard_of: list[tuple[str, Run]] = []  # claimed, and the answer was lost
        self.given_up: set[str] = set()  # tokens of runs that ended without a marker
        self.owner_of: dict[str, Run] = {}  # record -> the run whose token counts, as the model sees it
        self.lease: dict[str, int] = {}  # record -> ms
        self.place: dict[str, str] = {}
        self.asked: set[str] = set()  # records of running jobs that somebody wants to end
        self.recorded: dict[str, list[str]] = {}  # record/version -> tokens in the outbox
        self.version: dict[str, int] = dict.fromkeys(RECORDS, 0)
        self.takeovers = Counter[str]()
        self.call(self.redis.flushall())
        self.set_clock()

    def set_clock(self) -> None:
        self.call(self.redis.set("test:clock", self.now * 1000))

    @rule(record=st.sampled_from(RECORDS), new_version=st.booleans(), seconds=st.sampled_from([0, 0, 30]))
    def enqueue(self, record: str, new_version: bool, seconds: int) -> None:
        if record not in self.place:
            self.version[record] += new_version
        when = self.now // 1000 + seconds if seconds else 0
        version = str(self.version[record])
        job = self.call(self.producer.enqueue("task", key=f"task:{record}", version=version, scheduled=when))
        assert (job is None) == (record in self.place)
        if job is not None:
            self.place[record] = "planned" if seconds else "queued"

    @rule(owner=st.sampled_from(OWNERS), n=st.integers(1, 3), heard=st.sampled_from([True, True, True, False]))
    def claim(self, owner: str, n: int, heard: bool) -> None:
        _, runs, _ = self.call(self.queue.step(owner, "meta", n))
        for run in runs:
            assert self.place[run.record] == "queued"
            before = self.owner_of.get(run.record)
            assert before is None or int(before.token) < int(run.token), "tokens only grow"
            self.place[run.record] = "running"
            self.owner_of[run.record] = run
            self.lease[run.record] = self.now + LEASE_MS
            (self.held if heard else self.unheard_of).append((owner, run))
            run.job = self.queue.deserialize(run.text)
        for record, place in self.place.items():
            if place == "queued" and self.due(record):
                assert self.takeovers[record] >= 4, "it waits for its turn"
                self.place[record] = "planned"

    def gone(self, record: str) -> None:
        del self.place[record]
        del self.takeovers[record]

    def due(self, record: str) -> float | None:
        score: float | None = self.call(
            self.redis.zscore(keys.incomplete_key(NAME), f"{self.queue.prefix}task:{record}")
        )
        return score

    def owns(self, run: Run) -> bool:
        return self.place.get(run.record) == "running" and self.owner_of[run.record] is run

    def end(self, index: int) -> tuple[str, Run]:
        return self.held[index % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50), again=st.booleans())
    def settle(self, index: int, again: bool) -> None:
        owner, run = self.end(index)
        mine = self.owns(run)
        ending = Endings(self.queue, owner, outbox=True).done(run, Result("well"))
        resent = run.token in [token for tokens in self.recorded.values() for token in tokens[-1:]]
        ((answer,), *_) = self.call(self.queue.step(owner, "meta", 0, [ending]))
        if mine:
            assert answer == "settled"
            self.gone(run.record)
            self.asked.discard(run.record)
            assert run.job is not None
            assert run.job.kwargs is not None
            self.recorded.setdefault(f"{run.record}/{run.job.kwargs['version']}", []).append(run.token)
            if again:  # the reply was lost: the client sends it once more
                ((repeated,), *_) = self.call(self.queue.step(owner, "meta", 0, [ending]))
                assert repeated == "settled"
        elif not resent:
            assert answer == "stale"

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50), kind=st.sampled_from(["retry", "release", "park"]))
    def give_back(self, index: int, kind: str) -> None:
        owner, run = self.end(index)
        mine = self.owns(run)
        endings = Endings(self.queue, owner, outbox=True)
        run.attempts = 1
        ending = {
            "retry": lambda: endings.retried(run, ValueError("x")),
            "release": lambda: endings.released(run),
            "park": lambda: endings.parked(run, "store"),
        }[kind]()
        ((answer,), *_) = self.call(self.queue.step(owner, "meta", 0, [ending]))
        assert answer == ("settled" if mine or run.token in self.given_up else "stale")
        self.given_up |= {run.token} if mine else set()
        if mine and run.record in self.asked:
            self.asked.remove(run.record)
            self.gone(run.record)
        elif mine:
            self.place[run.record] = {"retry": "scheduled", "release": "queued", "park": "parked"}[kind]

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50))
    def renew(self, index: int) -> None:
        _, run = self.end(index)
        arguments = [LEASE_MS, run.id, run.service, run.record, run.token]
        lost = self.call(self.queue.scripts("renew", self.queue.keys, arguments))
        assert (lost == []) == self.owns(run), "an unchanged token restores a lease, however late; no other does"
        if self.owns(run):
            self.lease[run.record] = self.now + LEASE_MS

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50))
    def run_alone(self, index: int) -> None:
        _, run = self.end(index)
        assert self.call(self.queue.alone(run)) == self.owns(run)

    @rule(owner=st.sampled_from(OWNERS))
    def unheard(self, owner: str) -> None:
        known = [run.token for of, run in self.held if of == owner]
        found = {run.record for of, run in self.unheard_of if of == owner and self.owns(run)}
        assert self.call(self.queue.unheard(owner, known)) == len(found - self.asked)
        for record in found & self.asked:
            self.asked.remove(record)
            self.gone(record)
        for record in found & self.place.keys():
            self.place[record] = "queued"

    @rule()
    def hurry(self) -> None:
        failed = {
            record
            for record, place in self.place.items()
            if place == "scheduled" or (place == "planned" and self.call(self.queue.job(f"task:{record}")).attempts)
        }
        assert self.call(self.queue.hurry()) == len(failed)
        for record in failed:
            self.place[record] = "queued"

    @rule(ms=st.integers(1, 40_000))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.set_clock()

    @rule()
    def sweep(self) -> None:
        scheduled = {record for record, place in self.place.items() if place in ("scheduled", "planned")}
        _, taken, _ = self.call(self.queue.upkeep(orphans=True, aborts=False))
        expected = {r for r, place in self.place.items() if place == "running" and self.lease[r] <= self.now}
        assert {job_id.rsplit(":", 1)[1] for job_id in taken} == expected - self.asked
        for record in expected & self.asked:
            self.asked.remove(record)
            self.gone(record)
        expected &= self.place.keys()
        for record in expected:
            self.place[record] = "queued"
            self.takeovers[record] += 1
        for record in scheduled:
            if self.due(record) == 0:
                self.place[record] = "queued"

    @rule()
    def unpark(self) -> None:
        self.call(self.queue.unpark("store", 10))
        for record, place in self.place.items():
            if place == "parked":
                self.place[record] = "queued"

    @rule(record=st.sampled_from(RECORDS))
    def abort(self, record: str) -> None:
        job = Job("task", key=f"task:{record}", queue=self.queue)
        self.call(self.queue.abort(job, "enough"))
        place = self.place.get(record)
        lives = place == "running" and self.lease[record] > self.now
        assert job.status == (Status.ABORTING if lives else Status.NEW if place is None else Status.ABORTED)
        if lives:
            self.asked.add(record)
        elif place is not None:
            self.asked.discard(record)
            self.gone(record)

    @invariant()
    def every_job_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "place"):
            return
        queued = [i.decode() for i in self.call(self.redis.lrange(keys.queued_key(NAME), 0, -1))]
        parked = [i.decode() for i in self.call(self.redis.lrange(keys.parked_key("store"), 0, -1))]
        active = {i.decode() for i in self.call(self.redis.zrange(keys.active_key(NAME), 0, -1))}
        incomplete = {
            i.decode(): score
            for i, score in self.call(self.redis.zrange(keys.incomplete_key(NAME), 0, -1, withscores=True))
        }
        assert {i.rsplit(":", 1)[1] for i in incomplete} == self.place.keys()
        for job_id, due in incomplete.items():
            record = job_id.rsplit(":", 1)[1]
            place = self.place[record]
            lock = self.call(self.redis.get(keys.lock_key("task", record)))
            assert (job_id in active) == (place == "running") == (lock is not None)
            if place == "running":
                assert json.loads(lock)["token"] == self.owner_of[record].token
            else:
                # An aborted job may leave its id in a list; it is skipped there.
                assert (due == 0 and job_id in queued) == (place == "queued")
                assert (due >= keys.FAR_FUTURE and job_id in parked) == (place == "parked")
                assert (0 < due < keys.FAR_FUTURE) == (place in ("scheduled", "planned"))

    @invariant()
    def only_the_owners_results_were_recorded_and_each_once(self) -> None:
        if not hasattr(self, "recorded"):
            return
        rows = [json.loads(f[b"entry"]) for _, f in self.call(self.redis.xrange(outbox_key(NAME)))]
        told: dict[str, list[str]] = {}
        for row in rows:
            told.setdefault(f"{row['record_id']}/{row['version']}", []).append(row["token"])
        assert told == self.recorded

    def teardown(self) -> None:
        if hasattr(self, "redis"):
            self.call(self.redis.aclose())


@pytest.mark.timeout(300)
def test_every_job_is_in_exactly_one_place_and_recorded_once_whatever_happens(valkey_server: Valkey) -> None:
    Machine.url = valkey_server.url
    Machine.call = Loop()
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    finally:
        Machine.call.close()


def test_the_moved_clock_is_the_only_difference() -> None:
    assert part("prelude") != MOVED_CLOCK
    assert math.isclose(len(MOVED_CLOCK), len(part("prelude")), rel_tol=0.1)
