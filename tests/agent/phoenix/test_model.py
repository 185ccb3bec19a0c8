"""A model of the queue: several owners, a clock that moves, and after each step every job is in exactly one place."""

from __future__ import annotations

import asyncio
import contextlib
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
from redis.exceptions import ResponseError
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

NAMES = ("phaze-agent-model", "phaze-agent-model-meta")
LEASE_MS = 15_000
QUEUES = range(len(NAMES))
RECORDS = ("a", "b")
Key = tuple[int, str]
Held = tuple[str, int, Run]
QUEUE = st.sampled_from(QUEUES)
KEYS = st.tuples(QUEUE, st.sampled_from("aaab"))  # they meet at one record more often than not
OWNERS = st.sampled_from(("w1", "w2", "w3"))

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
    """Two queues of one agent, as while a base queue is drained: their jobs of one record share its lock.

    `held`: every run that an owner believes it has, stale ones included. A job is known by its queue's number and its
    record. A plain abort sets the key of a job that runs free: then `after` has where the next one with its key is.
    """

    url = ""
    call: Loop

    @initialize()
    def begin(self) -> None:
        self.redis = connect(self.url)
        self.queues = [LaneQueue(self.redis, name=name) for name in NAMES]
        for queue in self.queues:
            queue.scripts.prelude = MOVED_CLOCK
        self.producers = [RedisQueue(self.redis, name=name) for name in NAMES]
        self.now = 1_800_000_000_000  # ms
        self.held: list[Held] = []
        self.unheard_of: list[Held] = []  # claimed, and the answer was lost
        self.given_up: set[str] = set()  # tokens of runs that ended without a marker
        self.running: dict[Key, Run] = {}  # the run of each job that is in the place of those that run
        self.holder: dict[str, Key] = {}  # record -> the job whose run has the lock
        self.lease: dict[Key, int] = {}  # ms
        self.place: dict[Key, str] = {}
        self.after: dict[Key, str] = {}
        self.struck: set[Key] = set()  # of what runs, what a plain abort has struck off
        self.asked: set[Key] = set()  # running jobs that somebody wants to end
        self.recorded: dict[str, list[str]] = {}  # queue/record/version -> tokens in the outbox
        self.version: dict[Key, int] = dict.fromkeys(((q, r) for q in QUEUES for r in RECORDS), 0)
        self.takeovers = Counter[Key]()
        self.call(self.redis.flushall())
        self.set_clock()
        for queue in self.queues:
            self.call(queue.sweep())  # as a worker does first

    def set_clock(self) -> None:
        self.call(self.redis.set("test:clock", self.now * 1000))

    def is_free(self, key: Key) -> bool:
        return key not in self.place or (key in self.struck and key not in self.after)

    @rule(key=KEYS, new_version=st.booleans(), seconds=st.sampled_from([0, 0, 30]))
    def enqueue(self, key: Key, new_version: bool, seconds: int) -> None:
        free = self.is_free(key)
        if free:
            self.version[key] += new_version
        when = self.now // 1000 + seconds if seconds else 0
        version = str(self.version[key])
        producer, record = self.producers[key[0]], key[1]
        job = self.call(producer.enqueue("task", key=f"task:{record}", version=version, scheduled=when))
        assert (job is not None) == free
        if free:
            places = self.after if key in self.place else self.place
            places[key] = "planned" if seconds else "queued"
            self.struck.discard(key)

    @rule(owner=OWNERS, q=QUEUE, n=st.integers(1, 3), heard=st.sampled_from([True, True, True, False]))
    def claim(self, owner: str, q: int, n: int, heard: bool) -> None:
        _, runs, _ = self.call(self.queues[q].step(f"{owner}-{q}", "meta", n))  # a worker has one queue
        for run in runs:
            key = q, run.record
            assert self.place[key] == "queued"
            assert not self.lives(run.record), "its record runs elsewhere"
            before = self.running.get(key)
            assert before is None or int(before.token) < int(run.token), "tokens only grow"
            self.place[key] = "running"
            self.running[key], self.holder[run.record], self.lease[key] = run, key, self.now + LEASE_MS
            (self.held if heard else self.unheard_of).append((owner, q, run))
            run.job = self.queues[q].deserialize(run.text)
        for places in (self.place, self.after):
            for key, place in places.items():
                if key[0] == q and place == "queued" and self.due(key):
                    assert places is self.after or self.takeovers[key] >= 4 or self.lives(key[1]), "why does it wait?"
                    places[key] = "planned"

    def lives(self, record: str) -> bool:
        """Whether a run of the record has a lease."""
        return record in self.holder and self.lease[self.holder[record]] > self.now

    def gone(self, key: Key) -> None:
        """A job is over; what waited for the end of its run takes its place."""
        del self.place[key]
        del self.takeovers[key]
        self.asked.discard(key)
        self.struck.discard(key)
        if key in self.after:
            self.place[key] = self.after.pop(key)

    def unlock(self, key: Key) -> None:
        """Of the record's lock, if a run of this job has it."""
        if self.holder.get(key[1]) == key:
            del self.holder[key[1]]

    def due(self, key: Key) -> float | None:
        q, record = key
        job_id = f"{self.queues[q].prefix}task:{record}"
        score: float | None = self.call(self.redis.zscore(keys.incomplete_key(NAMES[q]), job_id))
        return score

    def owns(self, q: int, run: Run) -> bool:
        key = q, run.record
        return self.place.get(key) == "running" and self.running[key] is run and self.holder.get(run.record) == key

    def end(self, index: int) -> Held:
        return self.held[-1 - index % len(self.held)]  # the latest ones more often

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50), again=st.booleans())
    def settle(self, index: int, again: bool) -> None:
        owner, q, run = self.end(index)
        queue, key = self.queues[q], (q, run.record)
        mine = self.owns(q, run)
        ending = Endings(queue, owner, outbox=True).done(run, Result("well"))
        resent = run.token in [token for tokens in self.recorded.values() for token in tokens[-1:]]
        ((answer,), *_) = self.call(queue.step(owner, "meta", 0, [ending]))
        if mine:
            assert answer == "settled"
            self.unlock(key)
            self.gone(key)
            assert run.job is not None
            assert run.job.kwargs is not None
            self.recorded.setdefault(f"{q}/{run.record}/{run.job.kwargs['version']}", []).append(run.token)
            if again:  # the reply was lost: the client sends it once more
                ((repeated,), *_) = self.call(queue.step(owner, "meta", 0, [ending]))
                assert repeated == "settled"
        elif not resent:
            assert answer == "stale"

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50), kind=st.sampled_from(["retry", "release", "park"]))
    def give_back(self, index: int, kind: str) -> None:
        owner, q, run = self.end(index)
        key, mine = (q, run.record), self.owns(q, run)
        endings = Endings(self.queues[q], owner, outbox=True)
        run.attempts = 1
        ending = {
            "retry": lambda: endings.retried(run, ValueError("x")),
            "release": lambda: endings.released(run),
            "park": lambda: endings.parked(run, f"store-{q}"),
        }[kind]()
        ((answer,), *_) = self.call(self.queues[q].step(owner, "meta", 0, [ending]))
        assert answer == ("settled" if mine or run.token in self.given_up else "stale")
        if not mine:
            return
        self.given_up.add(run.token)
        self.unlock(key)
        if key in self.asked or key in self.after:
            self.gone(key)
        else:
            self.struck.discard(key)
            self.place[key] = {"retry": "scheduled", "release": "queued", "park": "parked"}[kind]

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50))
    def renew(self, index: int) -> None:
        _, q, run = self.end(index)
        queue, key = self.queues[q], (q, run.record)
        lost = self.call(queue.scripts("renew", queue.keys, [LEASE_MS, *run.names, run.token]))
        assert (lost == []) == self.owns(q, run), "an unchanged token restores a lease, however late; no other does"
        if self.owns(q, run):
            self.lease[key] = self.now + LEASE_MS
            self.struck.discard(key)

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50))
    def touch(self, index: int) -> None:
        _, q, run = self.end(index)
        mine = self.owns(q, run) and (q, run.record) not in self.after
        assert self.call(self.queues[q].touch(run, progress=0.5)) == mine

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50))
    def run_alone(self, index: int) -> None:
        _, q, run = self.end(index)
        assert self.call(self.queues[q].alone(run)) == self.owns(q, run)

    @rule(owner=OWNERS, q=QUEUE)
    def unheard(self, owner: str, q: int) -> None:
        known = [run.token for of, at, run in self.held if (of, at) == (owner, q)]
        lost = [run for of, at, run in self.unheard_of if (of, at) == (owner, q)]
        found = {(q, run.record) for run in lost if self.owns(q, run)}
        given = found - self.asked - self.after.keys()
        assert self.call(self.queues[q].unheard(f"{owner}-{q}", known)) == len(given)
        for key in found:
            self.unlock(key)
            if key in given:
                self.struck.discard(key)
                self.place[key] = "queued"
            else:
                self.gone(key)

    @rule(q=QUEUE)
    def hurry(self, q: int) -> None:
        def failed(key: Key, place: str) -> bool:
            if place == "planned":
                return bool(self.call(self.queues[q].job(f"task:{key[1]}")).attempts)
            return place == "scheduled"

        found = [key for key, place in self.place.items() if key[0] == q and failed(key, place)]
        assert self.call(self.queues[q].hurry()) == len(found)
        for key in found:
            self.place[key] = "queued"

    @rule(ms=st.sampled_from([1, 2_000, 3_000, LEASE_MS + 1, 40_000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.set_clock()

    @rule(q=QUEUE, owner=OWNERS)
    def sweep(self, q: int, owner: str) -> None:
        """`owner` looks for orphans, and knows its own runs: those it never takes over, however late they are."""
        mine = [run for of, at, run in self.held if (of, at) == (owner, q)]
        _, taken, _ = self.call(self.queues[q].upkeep(orphans=True, aborts=False, known=[run.token for run in mine]))
        kept = {(q, run.record) for run in mine if self.owns(q, run)}
        late = {key for key, place in self.place.items() if place == "running" and self.lease[key] <= self.now}
        expected = {key for key in late if key[0] == q} - kept
        orphans = expected - self.asked - self.after.keys()
        assert {job_id.rsplit(":", 1)[1] for job_id in taken} == {record for _, record in orphans}
        for key in expected:
            holder = self.holder.get(key[1])
            if holder is not None and self.lease[holder] <= self.now:
                del self.holder[key[1]]
                self.takeovers[key] += 1
            if key in orphans:
                self.struck.discard(key)
                self.place[key] = "queued"
            else:
                self.gone(key)
        for places in (self.place, self.after):
            for key, place in places.items():
                if key[0] == q and place in ("scheduled", "planned") and self.due(key) == 0:
                    places[key] = "queued"

    @rule(q=QUEUE)
    def unpark(self, q: int) -> None:
        self.call(self.queues[q].unpark(f"store-{q}", 10))
        for key, place in self.place.items():
            if key[0] == q and place == "parked":
                self.place[key] = "queued"

    @rule(key=KEYS, owner=OWNERS, dies=st.booleans())
    def run(self, key: Key, owner: str, dies: bool) -> None:
        """A worker gets a job at once; and may never be heard again, for so long that its lease ends."""
        if self.is_free(key):
            self.enqueue(key, False, 0)
        self.claim("dead" if dies else owner, key[0], 3, True)
        if dies:
            self.time_passes(LEASE_MS + 1)

    @precondition(lambda self: len(self.place) > 1)  # else there would be hardly any jobs
    @rule(index=st.integers(0, 50))
    def abort_one(self, index: int) -> None:
        self.abort(list(self.place)[index % len(self.place)])

    @precondition(lambda self: len(self.place) > 1)
    @rule(key=KEYS)
    def abort(self, key: Key) -> None:
        job = Job("task", key=f"task:{key[1]}", queue=self.queues[key[0]])
        self.call(self.queues[key[0]].abort(job, "enough"))
        lives = self.place.get(key) == "running" and self.lease[key] > self.now
        free = self.is_free(key)
        assert job.status == (Status.NEW if free else Status.ABORTING if lives else Status.ABORTED)
        if free:
            return
        self.after.pop(key, None)  # whoever wants it to be over wants that of both
        if lives:
            self.asked.add(key)
        else:
            if self.place[key] == "running" and key[1] in self.holder and not self.lives(key[1]):
                del self.holder[key[1]]
            self.gone(key)

    @precondition(lambda self: len(self.place) > 1)
    @rule(index=st.integers(0, 50))
    def plain_abort(self, index: int) -> None:
        """SAQ's own: it knows no job that runs here, and its key that keeps others out is over at once."""
        key = list(self.place)[index % len(self.place)]
        job = self.call(self.producers[key[0]].job(f"task:{key[1]}"))
        with contextlib.suppress(ResponseError):
            self.call(job.abort("enough"))
        self.call(self.redis.delete(job.abort_id))
        if self.place[key] == "running":
            self.after.pop(key, None)
            self.struck.add(key)
        else:
            self.gone(key)

    @invariant()
    def every_job_is_in_exactly_one_place(self) -> None:
        for q in QUEUES if hasattr(self, "place") else ():
            self.look_at_places(q)

    def look_at_places(self, q: int) -> None:
        queued, parked, active, incomplete = self.call(self.places(q))
        places = {key: place for key, place in self.place.items() if key[0] == q}
        unsettled = {record for _, record in places} - {record for at, record in self.struck if at == q}
        assert {i.rsplit(":", 1)[1] for i in incomplete} == unsettled
        for key, place in places.items():
            record = key[1]
            job_id = f"{self.queues[q].prefix}task:{record}"
            assert (job_id in active) == (place == "running")
            if place == "running":
                place = self.after.get(key, "")
            if place:
                due = incomplete[job_id]
                # An aborted job may leave its id in a list; it is skipped there.
                assert (due == 0 and job_id in queued) == (place == "queued")
                assert (due >= keys.FAR_FUTURE and job_id in parked) == (place == "parked")
                assert (0 < due < keys.FAR_FUTURE) == (place in ("scheduled", "planned"))

    async def places(self, q: int) -> tuple[list[str], list[str], set[str], dict[str, float]]:
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.lrange(keys.queued_key(NAMES[q]), 0, -1)
            pipe.lrange(keys.parked_key(f"store-{q}"), 0, -1)
            pipe.zrange(keys.active_key(NAMES[q]), 0, -1)
            pipe.zrange(keys.incomplete_key(NAMES[q]), 0, -1, withscores=True)
            queued, parked, active, incomplete = await pipe.execute()
        unsettled = {job_id.decode(): float(due) for job_id, due in incomplete}
        return [i.decode() for i in queued], [i.decode() for i in parked], {i.decode() for i in active}, unsettled

    @invariant()
    def a_lock_is_that_of_the_last_run_whose_job_is_not_over(self) -> None:
        if not hasattr(self, "place"):
            return
        locks = self.call(self.redis.mget([keys.lock_key("task", record) for record in RECORDS]))
        told = {record: json.loads(lock)["token"] for record, lock in zip(RECORDS, locks, strict=True) if lock}
        assert told == {record: self.running[key].token for record, key in self.holder.items()}

    @invariant()
    def only_the_owners_results_were_recorded_and_each_once(self) -> None:
        if not hasattr(self, "recorded"):
            return
        told: dict[str, list[str]] = {}
        for q, name in enumerate(NAMES):
            for _, fields in self.call(self.redis.xrange(outbox_key(name))):
                row = json.loads(fields[b"entry"])
                told.setdefault(f"{q}/{row['record_id']}/{row['version']}", []).append(row["token"])
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
