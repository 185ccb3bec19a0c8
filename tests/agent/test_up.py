"""`phaze up`, as people run it: real processes, real music, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis.asyncio import Redis

from agent.phoenix import keys
from pipelines.music.samples import Sample, write_samples

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return write_samples(tmp_path_factory.mktemp("samples"))


@pytest.fixture
def few(samples: list[Sample], tmp_path: Path) -> Path:
    """Three samples, one of them the copy of another, and a file that is no audio."""
    folder = tmp_path / "few"
    folder.mkdir()
    copy = next(sample for sample in samples if sample.duplicate_of is not None)
    other = next(sample for sample in samples if sample.path not in (copy.path, copy.duplicate_of))
    assert copy.duplicate_of is not None
    for path in (copy.path, copy.duplicate_of, other.path):
        shutil.copy(path, folder)
    (folder / "broken.mp3").write_bytes(b"this is not music\n" * 400)
    return folder


class Up:
    """A running `phaze up`."""

    def __init__(self, data: Path, *arguments: object, **env: str) -> None:
        self.data = data
        self.process_started = time.time()
        environment = {**os.environ, "PHAZE_DATA_DIR": str(data), "PHAZE_HUB_PORT": "0", **env}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent.cli", "up", *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = self.err = ""
        self.ended = False

    def end(self, within: float = 180) -> int:
        """Wait for it; its exit code."""
        self.out, self.err = self.process.communicate(timeout=within)
        self.ended = True
        return self.process.returncode

    def clean(self) -> None:
        """Leave neither processes nor pipes behind, however the test ended."""
        for process in (*self.family(), *([self.process] if self.process.poll() is None else [])):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not self.ended:
            self.process.communicate(timeout=10)

    def family(self) -> list[psutil.Process]:
        """Every process that works on this data folder."""
        found = []
        for process in psutil.process_iter(["pid"]):
            try:
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                said = [*process.cmdline(), process.environ().get("PHAZE_DATA_DIR", ""), process.cwd()]
            except (psutil.Error, OSError):
                continue
            if any(str(self.data) in text for text in said):
                found.append(process)
        return found

    def pid_of(self, name: str) -> int:
        """The process id of `hub`, `valkey` or a lane's worker."""
        for process in self.family():
            line = " ".join(process.cmdline())
            lane = process.environ().get("PHAZE_AGENT_LANE")
            if (
                (name == "valkey" and "valkey-server" in line)
                or (name == "hub" and line.endswith("agent.cli hub"))
                or (name == lane and line.endswith("agent.cli worker"))
            ):
                return process.pid
        raise LookupError(name)

    def until(self, condition: Callable[[], bool], within: float = 90) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def results(self, service: str = "") -> list[sqlite3.Row]:
        """What the catalogue holds, one row a result."""
        path = self.data / "catalogue.sqlite"
        if not path.exists():
            return []
        connection = sqlite3.connect(path, timeout=10)
        connection.row_factory = sqlite3.Row
        try:
            return connection.execute("SELECT * FROM results WHERE service LIKE ?", (service or "%",)).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            connection.close()

    def active(self) -> list[str]:
        """The tasks that run now, as the hub says."""
        with contextlib.suppress(OSError, ValueError):
            url = (self.data / "hub.url").read_text("utf-8").strip()
            with urllib.request.urlopen(f"{url}/api/status", timeout=5) as answer:
                return [row["task"] for row in json.load(answer)["active"]]
        return []

    def nobody_left(self, within: float = 10) -> bool:
        deadline = time.monotonic() + within
        while self.family():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def go(*arguments: object, **env: str) -> Up:
        started.append(Up(tmp_path / "data", *arguments, **env))
        return started[-1]

    yield go
    for up in started:
        up.clean()


def tracks(data: Path, *arguments: str) -> list[dict[str, Any]]:
    """`phaze tracks --json` on a data folder."""
    run = subprocess.run(
        [sys.executable, "-m", "agent.cli", "tracks", "--json", *arguments],
        env={**os.environ, "PHAZE_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


def test_a_folder_goes_through_all_lanes_into_a_table_and_a_bad_file_into_a_row(
    start: Callable[..., Up], few: Path, samples: list[Sample]
) -> None:
    truth = {sample.path.name: sample for sample in samples}
    up = start(few, "--once")
    assert up.end() == 3, up.err
    assert up.nobody_left()
    rows = {Path(row["path"]).name: row for row in tracks(up.data)}
    assert rows.keys() == {path.name for path in few.iterdir()}
    for name, sample in truth.items():
        if name in rows:
            assert rows[name]["title"] == sample.title
            assert rows[name]["bpm"] == pytest.approx(sample.bpm, rel=0.04)
            assert (rows[name]["key"], rows[name]["scale"]) == (sample.key, sample.scale)
            assert rows[name]["title"] in up.out
    groups = [row["duplicates"] for row in rows.values() if row["duplicates"]]
    assert len(groups) == 2
    assert len(set(groups)) == 1
    problems = rows["broken.mp3"]["problems"]
    assert {problem["outcome"] for problem in problems} == {"rejected"}
    assert {problem["service"] for problem in problems} >= {"process_file", "fingerprint_file"}
    assert "rejected: 1 path" in up.out
    assert re.search(r"4 files, 1\.\d minutes of audio, in \d+:\d\d on \d+ cores?", up.out)

    again = start(few, "--once")
    assert again.end() == 3
    assert "nothing was analysed again" in again.out
    assert len(again.results("process_file")) == 4
    assert max(row["finished_at"] for row in again.results("process_file")) < again.process_started

    narrowed = tracks(up.data, "--bpm", f"{truth[next(iter(truth))].bpm - 1}..200", "--sort", "-bpm")
    assert all(row["bpm"] for row in narrowed)


def test_every_event_is_json_for_machines(start: Callable[..., Up], few: Path) -> None:
    (few / "broken.mp3").unlink()
    up = start(few, "--once", "--json")
    assert up.end() == 0, up.err
    events = [json.loads(line) for line in up.out.splitlines()]
    kinds = {event["event"] for event in events}
    assert kinds == {"note", "progress", "track", "summary"}
    assert events[-1]["event"] == "summary"
    assert (events[-1]["tracks"], events[-1]["rejected"], events[-1]["unfinished"]) == (3, 0, 0)
    assert {work["lane"] for work in events[-1]["work"]} == {"analyze", "fingerprint", "meta"}


def test_ctrl_c_ends_everything_within_the_grace_and_the_next_start_goes_on(
    start: Callable[..., Up], few: Path
) -> None:
    up = start(few, "--once", PHAZE_SHUTDOWN_GRACE="1")
    up.until(lambda: len(up.results("extract_file_metadata")) == 4)
    up.process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert up.end() == 130
    assert time.monotonic() - started < 30
    assert "stopping" in up.err
    assert up.nobody_left()
    again = start(few, "--once")
    assert again.end() == 3
    assert len(again.results("process_file")) == 4
    assert len(again.results("extract_file_metadata")) == 4


def test_nobody_survives_a_killed_parent_and_what_was_recorded_stays_as_it_was(
    start: Callable[..., Up], few: Path
) -> None:
    up = start(few, "--once")
    up.until(lambda: len(up.results("extract_file_metadata")) >= 1)
    up.until(lambda: len(up.family()) > 7)
    up.process.send_signal(signal.SIGKILL)
    assert up.end() == -signal.SIGKILL
    assert up.nobody_left()
    before = {(row["service"], row["record_id"]): dict(row) for row in up.results()}
    assert before
    again = start(few, "--once")
    assert again.end() == 3
    after = {(row["service"], row["record_id"]): dict(row) for row in again.results()}
    for key, row in before.items():
        kept = ("version", "token", "outcome", "result", "started_at", "finished_at", "attempts")
        assert {name: after[key][name] for name in kept} == {name: row[name] for name in kept}
    for service in ("extract_file_metadata", "fingerprint_file", "process_file"):
        assert len(again.results(service)) == 4


@pytest.mark.parametrize("victim", ["analyze", "hub", "valkey"])
def test_whoever_dies_is_started_again_and_the_run_completes(start: Callable[..., Up], few: Path, victim: str) -> None:
    up = start(few, "--once")
    up.until(lambda: len(up.results("extract_file_metadata")) >= 1)
    os.kill(up.pid_of(victim), signal.SIGKILL)
    assert up.end() == 3, up.err
    said = {
        "analyze": "worker-analyze was ended by SIGKILL",
        "hub": "hub was ended by SIGKILL",
        "valkey": "queue server",
    }
    assert said[victim] in up.err
    assert up.nobody_left()
    for service in ("extract_file_metadata", "fingerprint_file", "process_file"):
        rows = up.results(service)
        assert len(rows) == 4
        assert {row["outcome"] for row in rows} <= {"done", "partial", "rejected"}


def test_a_second_one_on_the_same_data_folder_is_refused(start: Callable[..., Up], few: Path) -> None:
    first = start(few)
    first.until(lambda: (first.data / "catalogue.sqlite").exists())
    second = start(few, "--once")
    assert second.end() == 1
    assert re.search(
        rf"another `phaze up` \(process {first.process.pid}\) uses the data folder .*PHAZE_DATA_DIR", second.err
    )


def test_what_cannot_start_is_one_line(start: Callable[..., Up], tmp_path: Path) -> None:
    missing = start(tmp_path / "nowhere", "--once")
    assert missing.end() == 2
    assert missing.err.strip().endswith("nowhere does not exist; give a folder of music, or one file")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        busy = start(tmp_path, "--once", PHAZE_HUB_PORT=port)
        assert busy.end() == 1
        assert f"PHAZE_HUB_PORT={port} is in use" in busy.err
    bad = start(tmp_path, PHAZE_LANE_META_CONCURRENCY="two")
    assert bad.end() == 2
    assert bad.err.strip() == (
        "phaze: PHAZE_LANE_META_CONCURRENCY=two should be a valid integer, unable to parse string as an integer"
    )
    empty = start("", "--once")
    assert empty.end() == 2
    assert "an empty path was given" in empty.err
    away = start(tmp_path, "--once", PHAZE_REDIS_URL="redis://:hidden@127.0.0.1:1")
    assert away.end() == 1
    assert "the server of PHAZE_REDIS_URL does not answer" in away.err
    assert "hidden" not in away.err
    toolless = start(tmp_path, "--once", PHAZE_FFMPEG="/nowhere/ffmpeg")
    assert toolless.end() == 1
    assert "PHAZE_FFMPEG=/nowhere/ffmpeg is not a program" in toolless.err
    modelless = start(tmp_path, "--once", PHAZE_PROFILE="full")
    assert modelless.end() == 1
    assert modelless.err.strip() == (
        f"phaze: PHAZE_PROFILE=full, and {tmp_path / 'data' / 'models'} holds no models; "
        "phaze models install musicnn tempocnn, or set PHAZE_PROFILE to another profile"
    )
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "logs").write_text("a file where a folder should be", "utf-8")
    blocked = start(tmp_path, "--once")
    assert blocked.end() == 1
    assert "PHAZE_DATA_DIR" in blocked.err
    for run in (missing, busy, bad, empty, away, toolless, modelless, blocked):
        assert "Traceback" not in run.err
        assert run.nobody_left()


def test_what_the_hub_cannot_start_with_is_its_one_line(start: Callable[..., Up], tmp_path: Path) -> None:
    for given, said in (
        ({"PHAZE_HUB_HOST": "foo.invalid"}, "phaze: PHAZE_HUB_HOST=foo.invalid is not an address of this machine ("),
        ({"PHAZE_HUB_HOST": "0.0.0.0"}, "phaze: PHAZE_HUB_PASSWORD is not set, without which"),
        ({"PHAZE_S3_BUCKET": "b"}, "phaze: PHAZE_S3_BUCKET is set and PHAZE_S3_ACCESS_KEY_ID is not; set it, or"),
    ):
        bad = start(tmp_path, "--once", **given)
        assert bad.end() == 2
        assert bad.err.startswith(said)
        assert bad.err.count("\n") == 1


def test_an_empty_folder_ends_at_once_and_says_so(start: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    up = start(tmp_path / "empty", tmp_path / "link", "--once")
    assert up.end() == 3
    assert f"{tmp_path}/link is scanned with another of the given folders" in up.err
    assert re.search(r"scan_directory +1 job ", up.out), "one folder under two names is scanned once"
    assert "it holds nothing at all; is an archive mounted there?" in up.out


def test_a_long_data_folder_and_odd_file_names_work(
    start: Callable[..., Up], samples: list[Sample], tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    names = [b"caf\xe9 \xff.mp3", "a\nb\u2028[bold]c.flac".encode(), b"-rf.ogg", b"%41\x1b[31m.mp3"]
    mp3 = next(sample.path for sample in samples if sample.path.suffix == ".mp3")
    for name in names:
        shutil.copy(mp3, os.path.join(os.fsencode(folder), name))  # noqa: PTH118 - the names are bytes
    deep = tmp_path / ("d" * 60) / 'a "b" #1 ?x=%41'
    up = Up(deep, folder, "--once")
    try:
        assert up.end() == 0, up.err
        assert len(tracks(deep)) == len(names)
        assert "\x1b[31m" not in up.out
    finally:
        up.clean()


def test_real_music_goes_through(start: Callable[..., Up], tmp_path: Path) -> None:
    album = Path("/usr/share/games/singularity/music")
    if not album.is_dir():
        assert not os.environ.get("CI"), "CI wants the Debian package singularity-music (tests/system-packages)"
        pytest.skip("the Debian package singularity-music is not installed")
    folder = tmp_path / "album"
    folder.mkdir()
    for name in ("lose/Chimes They Fade.ogg", "lose/March Thee to Dis.ogg", "win/Apex Aleph.ogg"):
        shutil.copy(album / name, folder)
    up = start(folder, "--once")
    assert up.end() == 0, up.err
    rows = {row["title"]: row for row in tracks(up.data)}
    assert rows.keys() == {"Chimes They Fade", "March Thee to Dis", "Apex Aleph"}
    for row in rows.values():
        assert row["artist"] == "Maxstack"
        assert 40 < row["duration"] < 120
        assert row["bpm"]
        assert row["camelot"]
        assert -30 < row["loudness"] < -8
        assert (row["problems"], row["pending"], row["duplicates"]) == ([], [], None)


def test_python_files_in_the_music_folder_are_not_run(
    start: Callable[..., Up], few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("redis", "essentia", "click", "saq"):
        (few / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit(9)", "utf-8")
    monkeypatch.chdir(few)
    up = start(".", "--once", PYTHONSAFEPATH="1")
    assert up.end() == 3, up.err
    assert not (few / "ran").exists()


def test_interruptions_use_up_no_attempts(start: Callable[..., Up], few: Path) -> None:
    for _ in range(4):
        up = start(few, "--once", PHAZE_SHUTDOWN_GRACE="0")
        up.until(lambda up=up: "process_file" in up.active() or len(up.results("process_file")) == 4)
        up.process.send_signal(signal.SIGINT)
        assert up.end() == 130
    last = start(few, "--once")
    assert last.end() == 3
    assert {row["attempts"] for row in last.results()} == {1}


def test_what_failed_before_is_tried_again_at_the_next_start(
    start: Callable[..., Up], few: Path, tmp_path: Path
) -> None:
    failing = tmp_path / "ffmpeg"
    failing.write_text("#!/bin/sh\necho no >&2; kill -KILL $$\n", "utf-8")
    failing.chmod(0o755)
    first = start(few, "--once", PHAZE_FFMPEG=str(failing))
    assert first.end(240) == 3
    assert "retrying: " in first.out
    assert "ffmpeg was ended from outside by SIGKILL" in first.out
    second = start(few, "--once")
    assert second.end() == 3
    assert "that failed before are tried again" in second.err
    for service in ("fingerprint_file", "process_file"):
        assert len(second.results(service)) == 4


def test_a_job_that_fails_for_its_profile_gives_way_when_the_profile_changes(
    start: Callable[..., Up], few: Path, tmp_path: Path
) -> None:
    (few / "broken.mp3").unlink()
    failing = tmp_path / "ffmpeg"
    failing.write_text("#!/bin/sh\necho no >&2; kill -KILL $$\n", "utf-8")
    failing.chmod(0o755)
    first = start(few, PHAZE_FFMPEG=str(failing))
    log = first.data / "logs" / "worker-analyze.log"
    first.until(lambda: log.exists() and "job.failed" in log.read_text("utf-8"))
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130
    second = start(few, "--once", PHAZE_PROFILE="fast")
    assert second.end() == 0, second.out
    versions = {row["version"].partition(":")[2] for row in second.results("process_file")}
    assert versions == {"fast-2"}


async def test_once_ends_where_only_what_is_paused_is_left_and_says_how_it_goes_on(
    start: Callable[..., Up], few: Path, redis: Redis, valkey_url: str
) -> None:
    await redis.sadd(keys.PAUSED, "process_file", "fingerprint")
    up = start(few, "--once", PHAZE_REDIS_URL=valkey_url)
    assert await asyncio.to_thread(up.end) == 3, up.err
    for name in ("process_file", "fingerprint"):
        said = f"jobs wait: {name} is paused; `phaze resume {name}` lets it go on"
        assert up.err.count(said) == up.out.count(said) == 1
    assert "unfinished: 4 paths" in up.out
    assert {row["service"] for row in up.results()} >= {"extract_file_metadata"}
    await redis.sadd(keys.PAUSED, "scan_directory")
    again = start(few, "--once", "--json", PHAZE_REDIS_URL=valkey_url)
    assert await asyncio.to_thread(again.end) == 3, again.err
    summary = json.loads(again.out.splitlines()[-1])
    assert summary["held"].keys() == {"process_file", "fingerprint", "scan_directory"}
    assert [problem["reason"] for problem in summary["scan_problems"]] == [
        "its scan is not finished; the next start goes on"
    ]


def test_what_is_in_the_data_folder_is_this_users_alone(start: Callable[..., Up], few: Path) -> None:
    data = few.parent / "data"
    data.mkdir(mode=0o755)
    (data / "agent.token").write_text("x" * 40, "ascii")
    up = start(few)
    up.until(lambda: (up.data / "hub.url").exists() and (up.data / "logs" / "worker-io.log").exists())
    url = (up.data / "redis.url").read_text("utf-8")
    assert url.startswith("unix://")
    private = [Path(url.removeprefix("unix://")), *(path for path in up.data.rglob("*") if path.name != "agent.token")]
    assert len(private) > 8
    for path in private:
        assert path.is_dir() or path.stat().st_mode & 0o077 == 0, path


def test_what_is_added_later_goes_through_the_lanes_as_well(
    start: Callable[..., Up], samples: list[Sample], tmp_path: Path
) -> None:
    folder = tmp_path / "later"
    folder.mkdir()
    shutil.copy(samples[0].path, folder / "first.wav")
    up = start(folder, PHAZE_WATCH_SETTLE="1")
    up.until(lambda: len(up.results("extract_file_metadata")) == 1)
    up.until(lambda: "watch.started" in (up.data / "logs" / "watcher.log").read_text("utf-8"))
    shutil.copy(samples[1].path, folder / "second.wav")
    up.until(lambda: len(up.results("extract_file_metadata")) == 2)
    (folder / "first.wav").rename(folder / "moved.wav")
    up.until(lambda: {Path(row["path"]).name for row in tracks(up.data)} == {"moved.wav", "second.wav"})
    assert len(up.results("extract_file_metadata")) == 2, "nothing is done again for a file that was moved"
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 130
    assert "watching 1 folder" in up.err
    assert up.nobody_left()
