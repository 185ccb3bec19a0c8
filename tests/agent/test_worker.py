"""A lane's worker as people run it: a process of its own, on a real queue, killed for real."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis.asyncio import Redis
from saq.job import Job, Status
from saq.queue.redis import RedisQueue

from agent.errors import ConfigError
from agent.lanes import AGENT_TASKS, queue_name
from agent.phoenix import keys
from agent.phoenix.queue import LaneQueue
from agent.redis_client import connect
from agent.settings import load_settings
from agent.worker import THREAD_PINS, AgentWorker
from pipelines.files import ssh
from pipelines.music.samples import write_samples
from pipelines.payload import encode_path
from tests.conftest import REPO
from tests.control_plane import ControlPlane
from tests.servers import Local

AGENT = "test"


class Process:
    """A worker process, its log, and the queue it works on."""

    def __init__(self, redis: Redis, url: str, plane: ControlPlane, log: Path) -> None:
        self.queue = LaneQueue(redis, name=queue_name(AGENT, "meta"))
        self.producer = RedisQueue(connect(url), name=self.queue.name)
        self.log = log
        self._plane = plane
        self._url = url
        self.running: list[asyncio.subprocess.Process] = []

    async def start(
        self,
        lane: str | None = "meta",
        module: str = "tests.agent.tasks",
        until: str = "worker.started",
        **env: str,
    ) -> int:
        environment = {
            **os.environ,
            "PHAZE_REDIS_URL": self._url,
            "PHAZE_HUB_URL": self._plane.url,
            "PHAZE_AGENT_ID": AGENT,
            "PHAZE_AGENT_TOKEN": "t0ken",
            "PHAZE_LOG_FORMAT": "json",
            "PHAZE_LOG_LEVEL": "debug",
            "PHAZE_SHUTDOWN_GRACE": "5",
            "PYTHONPATH": str(REPO),
            **({"PHAZE_AGENT_LANE": lane} if lane else {}),
            **env,
        }
        arguments = [] if module.startswith("tests") else ["worker"]
        with self.log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments, env=environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.running.append(process)
        await self.until(lambda: any(line["event"] == until for line in self.lines()))
        return process.pid

    def lines(self) -> list[dict[str, Any]]:
        rows = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return [json.loads(row) for row in rows if row.startswith("{")]

    async def until(self, condition: Any, within: float = 30.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"not within {within} s; the log: {self.log.read_text('utf-8')[-3000:]}"
            await asyncio.sleep(0.05)

    async def wish(self, key: str, **wishes: Any) -> Job | None:
        return await self.producer.enqueue("wish", key=f"wish:{key}", version="v1", **wishes)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Seconds until all are gone."""
        started = time.monotonic()
        for process in self.running:
            if process.returncode is None:
                process.send_signal(number)
        for process in self.running:
            await asyncio.wait_for(process.wait(), 60)
        return time.monotonic() - started


@pytest.fixture
async def worker(redis: Redis, valkey_url: str, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(redis, valkey_url, plane, tmp_path / "worker.log")
    yield process
    await process.stop(signal.SIGKILL)
    await process.producer.disconnect()


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"PHAZE_REDIS_URL is not set; .*phaze up"):
        AgentWorker(load_settings(agent_lane="meta"))
    with pytest.raises(ConfigError, match=r"PHAZE_AGENT_TOKEN is not set; .*PHAZE_AGENT_TOKEN_FILE"):
        AgentWorker(load_settings(agent_lane="meta", redis_url="redis://127.0.0.1:1"))


async def test_the_start_line_says_lane_slots_and_clamp(worker: Process) -> None:
    await worker.start(lane="io", module="agent.cli", WORKER_MAX_JOBS="3")
    (line,) = [line for line in worker.lines() if line["event"] == "worker.started"]
    assert (line["lane"], line["concurrency"], line["knob"], line["ceiling"]) == ("io", 3, 4, 3)
    assert line["clamped"]
    assert line["queue"] == "phaze-agent-test-io"
    assert line["tasks"] == ["push_file", "s3_upload"]
    assert not line["heartbeat"]


async def test_more_cpu_slots_than_cores_are_warned_of_with_the_numbers(worker: Process) -> None:
    await worker.start(lane="analyze", module="agent.cli", PHAZE_LANE_ANALYZE_CONCURRENCY="90", WORKER_MAX_JOBS="80")
    await worker.until(lambda: any(line["event"] == "lanes.more_slots_than_cores" for line in worker.lines()))
    (line,) = [line for line in worker.lines() if line["event"] == "lanes.more_slots_than_cores"]
    assert (line["slots"], line["analyze"], line["fingerprint"]) == (82, 80, 2)
    assert line["cores"] == len(os.sched_getaffinity(0))
    assert line["remedy"].startswith("lower PHAZE_LANE_ANALYZE_CONCURRENCY")


async def test_the_knob_that_is_to_be_lowered_can_be(worker: Process) -> None:
    knobs = {"PHAZE_LANE_ANALYZE_CONCURRENCY": "1", "PHAZE_LANE_FINGERPRINT_CONCURRENCY": "90"}
    await worker.start(lane="analyze", module="agent.cli", WORKER_MAX_JOBS="80", **knobs)
    await worker.until(lambda: any(line["event"] == "lanes.more_slots_than_cores" for line in worker.lines()))
    (line,) = [line for line in worker.lines() if line["event"] == "lanes.more_slots_than_cores"]
    assert line["remedy"].startswith("lower PHAZE_LANE_FINGERPRINT_CONCURRENCY")


@pytest.mark.parametrize(
    ("stop", "grace", "warned"),
    [("40s", "10", False), ("1m30s", "70", False), ("1m30s", "71", True), ("", "71", False)],
)
async def test_a_grace_that_compose_does_not_grant_is_warned_of(
    worker: Process, stop: str, grace: str, warned: bool
) -> None:
    await worker.start(lane="io", module="agent.cli", PHAZE_STOP_GRACE=stop, PHAZE_SHUTDOWN_GRACE=grace)
    await worker.until(lambda: any(line["event"] == "worker.started" for line in worker.lines()))
    await worker.stop()
    found = [line for line in worker.lines() if line["event"] == "worker.killed_too_soon"]
    assert [(line["stop_grace"], line["remedy"].split(" or ")[0]) for line in found] == (
        [(90.0, "set PHAZE_STOP_GRACE=91s")] if warned else []
    )


async def test_a_busy_analysis_has_one_core_by_its_pins_and_its_threads(
    worker: Process, plane: ControlPlane, tmp_path: Path
) -> None:
    pid = await worker.start(lane="analyze", module="agent.cli", PHAZE_LANE_ANALYZE_CONCURRENCY="1")
    song = write_samples(tmp_path / "samples")[0].path
    queue = RedisQueue(worker.producer.redis, name=queue_name(AGENT, "analyze"))
    arguments = {"version": "v", "path": encode_path(song), "size": song.stat().st_size}
    await queue.enqueue("process_file", key="process_file:1", **arguments)
    seen: dict[int, tuple[int, float]] = {}
    environments: dict[int, dict[str, str]] = {}  # the last of each: before its exec a child shows its parent's
    while not plane.entries:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            for child in psutil.Process(pid).children(recursive=True):
                if environment := Path(f"/proc/{child.pid}/environ").read_bytes():  # none: it is ending
                    items = environment.decode().split("\0")
                    environments[child.pid] = dict(item.split("=", 1) for item in items if "=" in item)
                busy = [thread for thread in child.threads() if thread.user_time + thread.system_time > 0.2]
                seen[child.pid] = max(seen.get(child.pid, (0, 0.0)), (len(busy), sum(child.cpu_times()[:2])))
        await asyncio.sleep(0.05)
    assert plane.entries[0]["outcome"] == "done"
    worked = {child: cpu for child, (_, cpu) in seen.items() if cpu > 0.2}
    assert all(THREAD_PINS.items() <= environments[child].items() for child in worked), environments
    assert max(worked.values()) > 0.5, "a child was busy"
    assert max(count for count, _ in seen.values()) == 1, seen


async def test_all_mode_works_on_the_base_queue_with_every_task(worker: Process) -> None:
    await worker.start(lane=None, module="agent.cli")
    (line,) = [line for line in worker.lines() if line["event"] == "worker.started"]
    assert (line["lane"], line["queue"], line["concurrency"]) == ("all", "phaze-agent-test", 8)
    assert line["tasks"] == sorted(AGENT_TASKS)


async def test_a_plain_producers_job_is_done_and_delivered_once(worker: Process, plane: ControlPlane) -> None:
    await worker.start()
    job = await worker.wish("1")
    assert job is not None
    assert (job.timeout, job.retries) == (10, 1), "a plain SAQ producer leaves its defaults"
    await plane.until(lambda: len(plane.entries) == 1)
    assert plane.entries[0]["result"]["text"] == "v1"
    await job.refresh(until_complete=5)
    assert job.status is Status.COMPLETE
    assert job.result["text"] == "v1"


async def test_an_argument_that_is_called_context_is_one_as_any_other(worker: Process, plane: ControlPlane) -> None:
    await worker.start()
    await worker.wish("1", context="x")
    await plane.until(lambda: len(plane.entries) == 1)
    assert plane.entries[0]["outcome"] == "done"


async def test_a_tasks_own_time_beats_saqs_ten_seconds(worker: Process, plane: ControlPlane) -> None:
    await worker.start()
    await worker.wish("1", do="nap", seconds=11.0)
    await plane.until(lambda: len(plane.entries) == 1)
    assert plane.entries[0]["attempts"] == 1


async def test_a_failure_is_scheduled_again_with_its_reason(worker: Process) -> None:
    await worker.start()
    job = await worker.wish("1", do="fail")
    assert job is not None
    started = time.time()
    await worker.until(lambda: any(line["event"] == "job.failed" for line in worker.lines()))
    for _ in range(100):
        await job.refresh()
        if job.status is Status.QUEUED:
            break
        await asyncio.sleep(0.05)
    assert job.attempts == 1
    assert "the store is away" in (job.error or "")
    due = await worker.queue.redis.zscore(worker.queue.namespace("incomplete"), job.id)
    assert due is not None
    assert 1.0 <= float(due) - started <= 8.0


@pytest.mark.parametrize("do", ["crash", "eat"])
async def test_a_childs_death_fails_its_job_and_nothing_else(worker: Process, plane: ControlPlane, do: str) -> None:
    pid = await worker.start(PHAZE_CHILD_MEMORY_MB="256")
    await worker.wish("bad", do=do)
    await worker.until(lambda: any(line["event"] == "job.failed" for line in worker.lines()))
    await worker.wish("good")
    await plane.until(lambda: [entry["record_id"] for entry in plane.entries] == ["good"])
    assert psutil.pid_exists(pid)


async def test_a_killed_workers_job_is_taken_over_by_another(worker: Process, plane: ControlPlane) -> None:
    pid = await worker.start()
    await worker.wish("1", do="child-nap", seconds=600.0)
    await worker.until(lambda: any(line["event"] == "job.claimed" for line in worker.lines()))
    await asyncio.sleep(0.5)
    child_pids = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    assert child_pids
    os.kill(pid, signal.SIGKILL)
    await worker.running[0].wait()
    await worker.until(lambda: not any(map(psutil.pid_exists, child_pids)), within=10)
    await worker.start()
    await worker.until(lambda: len([line for line in worker.lines() if line["event"] == "job.claimed"]) == 2, within=60)
    assert plane.entries == []


async def test_a_job_that_runs_longer_than_its_lease_starts_once_and_the_agent_goes_on_beating(
    worker: Process, plane: ControlPlane, tmp_path: Path
) -> None:
    await worker.start(lane="analyze")
    await worker.start(lane="analyze", PHAZE_AGENT_HEARTBEAT="false")
    queue = RedisQueue(worker.producer.redis, name=queue_name(AGENT, "analyze"))
    note = tmp_path / "starts"
    await queue.enqueue("wish", key="wish:1", version="v", do="child-spin", seconds=22.0, note=str(note))
    await plane.until(lambda: len(plane.entries) == 1, within=60)
    assert len(note.read_text("utf-8").splitlines()) == 1
    assert plane.entries[0]["attempts"] == 1
    assert plane.beats


async def test_a_full_lane_a_backlog_and_a_frozen_child_delay_no_beat(
    worker: Process, plane: ControlPlane, tmp_path: Path
) -> None:
    pid = await worker.start(lane="analyze", PHAZE_LANE_ANALYZE_CONCURRENCY="2", TEST_BEAT_PERIOD="0.5")
    queue, started = RedisQueue(worker.producer.redis, name=queue_name(AGENT, "analyze")), tmp_path / "starts"
    for i in range(30):
        await queue.enqueue("wish", key=f"wish:{i}", version="v", do="child-spin", seconds=600.0, note=str(started))
    await worker.until(started.exists, within=60)
    await plane.until(lambda: plane.beats[-1:] != [] and plane.beats[-1]["queue_depth"] == 28)
    for child in psutil.Process(pid).children(recursive=True):
        child.suspend()
    sent, frozen = len(plane.beats), time.monotonic()
    await plane.until(lambda: len(plane.beats) >= sent + 6)
    assert time.monotonic() - frozen < 10 * 6 * 0.5
    assert {(beat["worker_pid"], beat["queue_depth"]) for beat in plane.beats[sent:]} == {(pid, 28)}


async def test_no_beat_is_sent_while_the_queue_server_hangs_and_they_come_again_after_it(
    plane: ControlPlane, start_server: Callable[..., Local], tmp_path: Path
) -> None:
    server = start_server("--appendonly", "yes")
    assert server.process is not None
    client = connect(server.url)
    worker = Process(client, server.url, plane, tmp_path / "worker.log")
    try:
        await worker.start(lane="analyze", TEST_BEAT_PERIOD="0.5")
        await plane.until(lambda: len(plane.beats) > 1)
        server.process.send_signal(signal.SIGSTOP)
        await worker.until(lambda: any(line["event"] == "heartbeat.withheld" for line in worker.lines()))
        assert [beat["queue_depth"] for beat in plane.beats][-2:] == [None, None], "two said that they do not know"
        sent = len(plane.beats)
        await asyncio.sleep(3)
        assert len(plane.beats) == sent
        server.process.send_signal(signal.SIGCONT)
        await plane.until(lambda: len(plane.beats) > sent and plane.beats[-1]["queue_depth"] == 0)
    finally:
        server.process.send_signal(signal.SIGCONT)
        await worker.stop(signal.SIGKILL)
        await worker.producer.disconnect()
        await client.aclose()


async def test_sigterm_lets_a_running_job_finish_and_takes_no_new_one(worker: Process, plane: ControlPlane) -> None:
    await worker.start(PHAZE_LANE_META_CONCURRENCY="1")
    await worker.wish("long", do="nap", seconds=2.0)
    await worker.until(lambda: any(line["event"] == "job.claimed" for line in worker.lines()))
    await worker.wish("next")
    assert await worker.stop() < 10
    assert [entry["record_id"] for entry in plane.entries] == ["long"]
    assert await worker.queue.count("queued") == 1
    assert await worker.queue.count("active") == 0


async def test_sigterm_does_not_wait_for_idle_slots(worker: Process) -> None:
    await worker.start(PHAZE_SHUTDOWN_GRACE="60")
    assert await worker.stop() < 10
    assert worker.running[0].returncode == 0


async def test_sigterm_hands_back_what_does_not_finish_in_time(worker: Process, plane: ControlPlane) -> None:
    await worker.start(PHAZE_SHUTDOWN_GRACE="1")
    job = await worker.wish("1", do="child-nap", seconds=600.0)
    assert job is not None
    await worker.until(lambda: any(line["event"] == "job.claimed" for line in worker.lines()))
    assert await worker.stop() < 20
    assert await worker.queue.count("queued") == 1
    assert await worker.queue.count("active") == 0
    assert plane.entries == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_that_all_of_a_workers_processes_hear_lets_a_child_finish(
    worker: Process, plane: ControlPlane, number: signal.Signals
) -> None:
    """systemd ends a service so, and a terminal's Ctrl-C."""
    pid = await worker.start()
    await worker.wish("1", do="child-nap", seconds=2.0)
    await child_of(worker, pid)
    os.killpg(pid, number)
    await asyncio.wait_for(worker.running[0].wait(), 30)
    assert [entry["attempts"] for entry in plane.entries] == [1]


async def test_a_stop_uses_no_attempt_and_is_no_death_though_the_child_dies_of_it(
    worker: Process, plane: ControlPlane
) -> None:
    pid = await worker.start()
    job = await worker.wish("1", do="child-nap", seconds=600.0)
    assert job is not None
    child = await child_of(worker, pid)
    os.kill(pid, signal.SIGTERM)
    await asyncio.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    await asyncio.wait_for(worker.running[0].wait(), 30)
    await job.refresh()
    assert (await worker.queue.count("queued"), job.attempts) == (1, 0)
    assert await worker.queue.redis.hgetall(keys.deaths_key(worker.queue.name)) == {}


async def test_a_stop_is_heard_while_it_waits_for_its_server(worker: Process, tmp_path: Path) -> None:
    await worker.start(until="server.waiting", PHAZE_REDIS_URL=f"unix://{tmp_path}/nobody.sock")
    assert await worker.stop() < 30
    assert worker.running[0].returncode == 0
    assert worker.lines()[-1]["event"] == "worker.stopped"


async def test_a_stop_that_is_said_again_and_again_does_not_end_what_is_being_finished(worker: Process) -> None:
    """With a result left to deliver to a hub that says nothing, the last delivery is tried for five seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pid = await worker.start(PHAZE_HUB_URL=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert await worker.wish("1", do="fine") is not None
        await worker.until(lambda: any(line["event"] == "job.settled" for line in worker.lines()))
        for _ in range(15):
            os.kill(pid, signal.SIGTERM)
            await asyncio.sleep(0.2)
        await asyncio.wait_for(worker.running[0].wait(), 60)
    assert worker.running[0].returncode == 0
    assert [line["event"] for line in worker.lines()][-2:] == ["relay.not_drained", "worker.stopped"]


async def test_what_a_killed_worker_left_of_a_push_is_gone_once_another_has_started(
    worker: Process, tmp_path: Path
) -> None:
    """A key must not outlive its push until somebody pushes again."""
    with subprocess.Popen(["true"]) as gone:
        left = tmp_path / f"{ssh.PREFIX}{gone.pid}-left"
    other = tmp_path / f"{ssh.PREFIX}{os.getpid()}-of-one-that-lives"
    for folder in (left, other):
        folder.mkdir()
        (folder / "key").touch()
    await worker.start(lane="io", module="agent.cli", TMPDIR=str(tmp_path))
    assert not left.exists()
    assert other.exists()


async def child_of(worker: Process, pid: int) -> int:
    """The process id of the worker's one child, as soon as there is one."""
    found: list[int] = []

    def begun() -> bool:
        found[:] = [child.pid for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]
        return bool(found)

    await worker.until(begun)
    return found[0]


@pytest.mark.parametrize(
    ("lane", "task"),
    [
        ("io", None),
        ("meta", "extract_file_metadata"),
        ("analyze", "process_file"),
        ("fingerprint", "fingerprint_file"),
    ],
)
async def test_a_worker_that_has_done_a_job_imported_no_numeric_library_and_is_small(
    worker: Process, plane: ControlPlane, tmp_path: Path, lane: str, task: str | None
) -> None:
    loaded = tmp_path / "modules"
    pid = await worker.start(lane=lane, TEST_LOADED_MODULES=str(loaded))
    if task is not None:
        song = write_samples(tmp_path / "samples")[0].path
        arguments = {"version": "v", "path": encode_path(song), "size": song.stat().st_size}
        queue = RedisQueue(worker.producer.redis, name=queue_name(AGENT, lane))
        await queue.enqueue(task, key=f"{task}:1", **arguments)
        await plane.until(lambda: len(plane.entries) == 1, within=60)
        assert plane.entries[0]["outcome"] == "done"
    assert psutil.Process(pid).memory_info().rss < 80 * 2**20
    await worker.stop()
    modules = set(loaded.read_text("utf-8").split())
    assert {"saq", "redis"} <= modules
    assert not modules & {"essentia", "tensorflow", "numpy", "mutagen", "imageio_ffmpeg"}


@pytest.mark.parametrize("lane", ["analyze", "meta"])
async def test_only_the_analyze_lane_beats(worker: Process, plane: ControlPlane, lane: str) -> None:
    await worker.start(lane=lane, module="agent.cli")
    if lane == "analyze":
        await plane.until(lambda: len(plane.beats) == 1)
        beat = plane.beats[0]
        assert beat["lane"] == "analyze"
        assert beat["worker_pid"] == worker.running[0].pid
        assert beat["queue_depth"] == 0
        assert {"agent_version", "hostname", "started_at"} <= beat.keys()
    else:
        await asyncio.sleep(2.0)
        assert plane.beats == []
