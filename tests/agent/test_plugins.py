"""Other packages' lanes and tasks: the package of docs/plugins.md, really installed, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from saq.queue.redis import RedisQueue

from agent import lanes, plugins
from agent.errors import ConfigError
from agent.redis_client import connect
from tests.agent.test_up import Up
from tests.conftest import REPO
from tests.hub.test_server import Hub

DOC = (REPO / "docs" / "plugins.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL))
PRINTED = re.findall(r"^It prints\n\n```\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which an installer has put the package of the page."""
    source, target = tmp_path_factory.mktemp("phaze-words"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text, "utf-8")
    install = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--offline", "--no-cache"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(target), str(source)]
    done = subprocess.run([*install, *options], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return target


WORKER = """
import atexit, pathlib, sys
from agent.cli import main
atexit.register(lambda: pathlib.Path(sys.argv[1]).write_text(" ".join(sys.modules)))
main(["worker"])
"""


class Workers:
    """`phaze worker` processes and their logs."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.env = {**os.environ, "PHAZE_AGENT_TOKEN": "t", "PHAZE_LOG_FORMAT": "json", **env}
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, lane: str, **env: str) -> dict[str, Any]:
        """Start one; its start line."""
        log = self.folder / f"{lane}.log"
        with log.open("wb") as output:
            argv = [sys.executable, "-c", WORKER, str(self.folder / f"{lane}.modules")]
            environment = {**self.env, "PHAZE_AGENT_LANE": lane, **env}
            process = subprocess.Popen(argv, env=environment, stdout=output, stderr=output)
        self.running.append(process)
        until(lambda: '"worker.started"' in log.read_text("utf-8"), lambda: log.read_text("utf-8")[-2000:])
        line: dict[str, Any] = next(
            json.loads(line) for line in log.read_text("utf-8").splitlines() if '"worker.started"' in line
        )
        return line

    def imported(self, lane: str) -> set[str]:
        """The modules that its process had imported at its end."""
        return set((self.folder / f"{lane}.modules").read_text("utf-8").split())

    def end(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(30)


def until(condition: Callable[[], bool], said: Callable[[], str], within: float = 60) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


@pytest.fixture
def hub(tmp_path: Path, valkey_url: str) -> Iterator[Hub]:
    """A hub that has never heard of the package."""
    running = Hub(tmp_path / "hub", valkey_url)
    yield running
    running.end()


async def test_the_documented_package_runs_and_a_hub_that_does_not_know_it_records_it(
    site: Path, hub: Hub, valkey_url: str, tmp_path: Path
) -> None:
    url = await asyncio.to_thread(hub.url)
    workers = Workers(tmp_path, PYTHONPATH=str(site), PHAZE_REDIS_URL=valkey_url, PHAZE_HUB_URL=url)
    try:
        words = await asyncio.to_thread(workers.start, "words", PHAZE_LANE_WORDS_CONCURRENCY="3")
        assert (words["queue"], words["tasks"]) == ("phaze-agent-local-words", ["rank_words"])
        assert (words["concurrency"], words["knob"], words["heartbeat"]) == (3, 3, False)
        assert "count_words" in (await asyncio.to_thread(workers.start, "meta"))["tasks"]

        (tmp_path / "producer.py").write_text(FILES["producer.py"], "utf-8")
        env = {**os.environ, "PHAZE_REDIS_URL": valkey_url}
        argv = [sys.executable, str(tmp_path / "producer.py")]
        said = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, text=True, timeout=60)
        assert said.stdout == PRINTED, said.stderr
        again = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, text=True, timeout=60)
        assert again.stdout == PRINTED, "answered from what was recorded"

        meta = RedisQueue(connect(valkey_url), name="phaze-agent-local-meta")
        found = await meta.apply("count_words", key="count_words:17", version="1", text="a b c", poll_interval=0.05)
        assert found["words"] == 3
        await meta.disconnect()

        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            async with asyncio.timeout(30):
                while (status := (await client.get("/api/status")).json())["others"].keys() < {
                    "count_words",
                    "rank_words",
                }:
                    await asyncio.sleep(0.1)
            assert status["others"] == {"count_words": 1, "rank_words": 1}
            assert "words" not in status["lanes"]
            (row,) = (await client.get("/api/results?task=rank_words&record_id=moby-dick")).json()["results"]
            assert (row["outcome"], row["version"], row["attempts"]) == ("done", "1", 1)
            assert row["result"]["ranks"] == [["the", 2]]
            assert re.search(
                r'task=rank_words">rank_words</a> <b data-task="rank_words">1</b>', (await client.get("/")).text
            )
            assert (await client.get("/api/results")).status_code == 400
    finally:
        await asyncio.to_thread(workers.end)
    assert "phaze_words.ranking" in workers.imported("words")
    assert not workers.imported("words") & {"phaze_words.counting", "pipelines.music.metadata"}
    assert "phaze_words.counting" in workers.imported("meta")
    assert "phaze_words.ranking" not in workers.imported("meta")


DERIVED = """
import json, os, sys
from agent import doctor, lanes, settings, worker
from agent.embedded import Fleet
from agent.operator.why import _parts

def refused(**env):
    os.environ.update(env)
    try:
        settings.load_settings()
    except Exception as error:
        return str(error)
    finally:
        for name in env:
            del os.environ[name]

print(json.dumps({
    "lanes": lanes.LANES,
    "lane_of": [lanes.lane_for_task("count_words"), lanes.lane_for_task("rank_words")],
    "knobs": [settings.load_settings(worker_max_jobs=most).concurrency("words") for most in (8, 1)],
    "bad_knob": refused(PHAZE_LANE_WORDS_CONCURRENCY="0"),
    "bad_agent": refused(PHAZE_AGENT_ID="box-words"),
    "bad_lane": refused(PHAZE_AGENT_LANE="word"),
    "misspelt": (os.environ.update(PHAZE_LANE_WORD_CONCURRENCY="1"), list(settings.unknown_variables()))[1],
    "example": settings.example(),
    "beats": settings.load_settings(agent_lane="words").beats,
    "up": Fleet(settings.load_settings(), print).slots["words"],
    "pins": (worker.pin_threads("words"), os.environ.get("OMP_NUM_THREADS"))[1],
    "key": _parts("rank_words:x"),
    "doctor": [[finding.verdict, finding.detail] for finding in doctor.other_packages(None)],
    "imported": [name for name in sys.modules if name.startswith("phaze_words")],
}))
"""


def test_all_else_follows_from_the_table_and_imports_nothing_of_the_package(site: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(site)}
    env.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", DERIVED], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lanes"] == ["analyze", "fingerprint", "meta", "io", "router", "parser", "grouper", "words"]
    assert found["lane_of"] == ["meta", "words"]
    assert found["knobs"] == [2, 1]
    assert found["bad_knob"].startswith("PHAZE_LANE_WORDS_CONCURRENCY=0 should be greater than or equal to 1")
    assert found["bad_agent"].startswith("PHAZE_AGENT_ID=box-words must not end in -words")
    assert found["bad_lane"].startswith(
        "PHAZE_AGENT_LANE=word is not a lane; "
        "the lanes are analyze, fingerprint, meta, io, router, parser, grouper, words"
    )
    assert found["misspelt"] == [["PHAZE_LANE_WORD_CONCURRENCY", "PHAZE_LANE_WORDS_CONCURRENCY"]]
    assert "# Slots of the words lane (CPU: one core each).\n#PHAZE_LANE_WORDS_CONCURRENCY=2\n" in found["example"]
    assert found["beats"] is False
    assert found["up"] == min(2, os.cpu_count() or 1)
    assert found["pins"] == "1"
    assert found["key"] == ["rank_words", "x"]
    assert found["doctor"] == [["ok", "count_words on meta, rank_words on words"]]
    assert found["imported"] == []


def distribution(folder: Path, name: str, entry_points: str, *, metadata: bool = True) -> None:
    """What an installer leaves of a package."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    if metadata:
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(entry_points, "utf-8")


def table() -> dict[str, dict[str, str]]:
    """What the lane table is with what the packages on the path add."""
    found = copy.deepcopy(lanes.LANE_TASKS)
    plugins.add(plugins.installed(), found, set(lanes.CPU_LANES))
    return found


def group(name: str, *entries: str) -> str:
    return "\n".join([f"[{name}]", *entries, ""])


@pytest.mark.parametrize(
    ("entry_points", "said"),
    [
        (
            group("phaze.lanes.meta", "process_file = mine:process_file"),
            "adds the task process_file to the lane meta, but that is already a task of phaze-agent on analyze",
        ),
        (
            group("phaze.lanes.one", "work = mine:work") + group("phaze.lanes.two", "work = mine:work"),
            "adds the task work to the lane two, but that is already a task of mine on one",
        ),
        (
            group("phaze.lanes.mine", "mine = mine:mine") + group("phaze.lanes.other", "mine = mine:mine"),
            "adds the task mine to the lane other, but that is already a task of mine on mine",
        ),
        (
            group("phaze.lanes.mine", "io = mine:io"),
            "adds the task io to the lane mine, but that is already a lane of phaze-agent",
        ),
        (
            group("phaze.lanes.s3_upload", "work = mine:work"),
            "adds the lane s3_upload, but that is already a task of phaze-agent on io",
        ),
        (group("phaze.lanes.my-lane", "work = mine:work"), "names a lane 'my-lane'; use 1 to 48 lower-case letters"),
        (group("phaze.lanes.Mine", "work = mine:work"), "names a lane 'Mine'; use 1 to 48 lower-case letters"),
        (group("phaze.lanes.a.b", "work = mine:work"), "names a lane 'a.b'; use 1 to 48 lower-case letters"),
        (group("phaze.lanes.", "work = mine:work"), "names a lane ''; use 1 to 48 lower-case letters"),
        (group("phaze.lanes." + 49 * "a", "work = mine:work"), f"names a lane '{49 * 'a'}'; use 1 to 48"),
        (group("phaze.lanes.all", "work = mine:work"), "names a lane all, a word that has another meaning"),
        (group("phaze.lanes.mine", "my:work = mine:work"), "names a task 'my:work'; use 1 to 48 lower-case letters"),
        (group("phaze.lanes.mine", "cron = mine:work"), "names a task cron, a word that has another meaning"),
        (group("phaze.lanes.mine", "work = mine"), "gives 'mine' for its task work; it must read module:function"),
        (group("phaze.lanes.mine", "work = mine:work [x]"), "gives 'mine:work [x]' for its task work"),
        (group("phaze.lanes.mine", "work = mine.:work"), "gives 'mine.:work' for its task work"),
        (group("phaze.cpu_lanes.io", "work = mine:work"), "says that io is bound by the processor; use phaze.lanes.io"),
        (group("phaze.lane.mine", "work = mine:work"), "has entry points in phaze.lane.mine; only phaze.lanes.<lane>"),
        (group("phaze.lanes.mine", "no value"), "has entry points that cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_that_names_package_and_remedy(
    entry_points: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path / "site", "mine", entry_points)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(ConfigError) as error:
        table()
    assert str(error.value).startswith(f"the package mine {said}")
    assert str(error.value).endswith("; mend it, or pip uninstall mine")
    assert "\n" not in str(error.value)


def test_two_packages_with_one_task_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        distribution(tmp_path, name, group(f"phaze.lanes.{name}s", f"work = {name}:work"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"the package two adds the task work .*already a task of one on ones"):
        table()


def test_two_packages_share_a_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a"):
        distribution(tmp_path, name, group("phaze.lanes.shared", f"{name}_work = {name}:work"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert table()["shared"] == {"a_work": "a:work", "b_work": "b:work"}


def test_a_package_that_is_on_the_path_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("old", "new"):
        distribution(tmp_path / place, "my-work", group("phaze.lanes.mine", f"work = my_work:{place}"))
        monkeypatch.syspath_prepend(str(tmp_path / place))
    assert table()["mine"] == {"work": "my_work:new"}


def test_other_peoples_broken_packages_are_not_our_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "broken", group("console_scripts", "no value"))
    distribution(tmp_path, "latin", "")
    (tmp_path / "latin-1.0.dist-info" / "entry_points.txt").write_bytes(b"[phaze.lanes.mine]\nw\xf6rk = mine:work\n")
    distribution(tmp_path, "half", group("phaze.lanes.mine", "work = mine:work"), metadata=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert table()["mine"] == {"work": "mine:work"}, "half uninstalled: its entry is read all the same"


TASK = """
from pipelines.context import Policy, task
from pipelines.payload import Payload, TaskResult
"""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'mine'"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise RuntimeError('no model at\\nhttps://x.example/?token=s3cret')", "RuntimeError: no model at https://"),
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("def work(): (", "SyntaxError"),
        ("other = 1", "AttributeError: module 'mine' has no attribute 'work'"),
        ("async def work(ctx, payload): ...", "TypeError: .*needs a parameter `payload` annotated with"),
        (f"{TASK}async def work(ctx, payload: Payload): ...", r"TypeError: .* is not a task; decorate it with @task"),
        (
            f"{TASK}@task(Policy(timeout=lambda payload: 1.0))\ndef work(ctx, payload: Payload): ...",
            "TypeError: work is not an `async def`",
        ),
    ],
)
def test_a_task_that_does_not_load_stops_its_lanes_worker_with_one_line(
    module: str | None, reason: str, tmp_path: Path
) -> None:
    distribution(tmp_path, "my-work", group("phaze.lanes.mine", "work = mine:work"))
    if module is not None:
        (tmp_path / "mine.py").write_text(module, "utf-8")
    given = {"PHAZE_AGENT_LANE": "mine", "PHAZE_REDIS_URL": "redis://127.0.0.1:1", "PHAZE_AGENT_TOKEN": "t"}
    said = subprocess.run(
        [sys.executable, "-m", "agent.cli", "worker"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == ConfigError.exit_code, said.stderr
    (line,) = said.stderr.splitlines()
    assert re.match(rf"phaze: the package my-work: its task work cannot be loaded from mine:work \({reason}", line)
    assert line.endswith("; mend it, or pip uninstall my-work")
    assert "s3cret" not in line


async def test_phaze_up_works_on_the_lane_like_on_any_other(
    site: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = tmp_path / "data"
    up = Up(data, PYTHONPATH=str(site))
    request.addfinalizer(up.clean)
    await asyncio.to_thread(up.until, (data / "hub.url").exists)
    url = (data / "redis.url").read_text("utf-8").strip()
    queue = RedisQueue(connect(url), name="phaze-agent-local-words")
    text = {"version": "1", "text": "   "}
    found = await queue.apply("rank_words", key="rank_words:blank", poll_interval=0.05, **text)
    assert (found["outcome"], found["reason"]) == ("rejected", "no-words")
    await asyncio.to_thread(up.until, lambda: len(up.results("rank_words")) == 1)
    env = {**os.environ, "PHAZE_DATA_DIR": str(data), "PYTHONPATH": str(site)}
    for arguments, said in (
        (["pause", "words"], "words is paused"),
        (["why", "rank_words:blank"], "rank_words:blank on phaze-agent-local-words: it is over: complete"),
    ):
        argv = [sys.executable, "-m", "agent.cli", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, argv, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.startswith(said), done.stderr
    async with httpx.AsyncClient(base_url=(data / "hub.url").read_text("utf-8").strip(), timeout=10) as client:
        assert 'data-lane="words"' in (await client.get("/")).text
    await queue.disconnect()
    up.process.terminate()
    assert await asyncio.to_thread(up.end, 60) == 130
    assert await asyncio.to_thread(up.nobody_left)


def test_phaze_up_ends_with_one_line_where_a_lane_cannot_start(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    distribution(tmp_path, "my-work", group("phaze.lanes.mine", "work = mine:work"))
    up = Up(tmp_path / "data", PYTHONPATH=str(tmp_path))
    request.addfinalizer(up.clean)
    assert up.end(60) == ConfigError.exit_code
    line = up.err.splitlines()[-1]
    assert line.startswith("phaze: worker-mine: the package my-work: its task work cannot be loaded from mine:work (")
    assert "Traceback" not in up.err
    assert up.nobody_left()
