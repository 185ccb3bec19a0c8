"""compose/agent.yml as a clone has it, without any .env, on a real engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.lanes import queue_name
from agent.phoenix import keys
from pipelines.documents.samples import write_samples as write_reports
from pipelines.music.ffmpeg import ffmpeg_path
from pipelines.music.samples import write_samples
from tests.compose.files import services
from tests.compose.stack import BUILD, COUNT, SCAN, Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

HERE = Path(__file__).resolve().parent
UP = [name for name, service in services("agent.yml").items() if "profiles" not in service]

METRICS = """
import os, urllib.request
port = os.environ.get("PHAZE_METRICS_PORT", "8080")
print(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode(), end="")
"""

ENQUEUE = """
import asyncio, os, pathlib
from agent.producer import Producer
from agent.redis_client import connect
from pipelines.music.analyze import AnalyzePayload
async def main():
    producer = Producer(connect(os.environ["PHAZE_REDIS_URL"]))
    payload = AnalyzePayload(version="scratch", path="/scratch/untagged.au", size=SIZE)
    print(int(await producer.enqueue("local", "process_file", "scratch", payload)))
    await producer.close()
asyncio.run(main())
"""


FILES_OF_FAR = """
import json, os, sqlite3
with sqlite3.connect(f"file:{os.environ['PHAZE_DATA_DIR']}/catalogue.sqlite?mode=ro", uri=True) as catalogue:
    rows = catalogue.execute("SELECT path FROM files WHERE agent_id = 'far' ORDER BY path")
    print(json.dumps([row[0] for row in rows]))
"""


ASK = """
import json, os, redis
queue = redis.Redis.from_url(os.environ["PHAZE_REDIS_URL"])
names = [name for name in os.listdir("/documents") if name.endswith(".pdf")]
for name in names:
    queue.xadd("phoenix:router:input", {"record_id": name, "user_id": "ann", "path": "/documents/" + name})
print(len(names))
"""
"""A producer: asks the router for every document."""


def until(stack: Stack, holds: Callable[[], bool], within: float = 300.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, stack.logs()[-8000:]
        time.sleep(1.0)


def analysed(stack: Stack) -> int:
    """Tracks that have a tempo by now; 0 until all three lanes have ended with all of them."""
    tracks = json.loads(stack.inside("hub", "phaze", "tracks", "--json") or "[]")
    ended = stack.python("hub", COUNT)
    each = {ended.get(task, 0) for task in ("process_file", "fingerprint_file", "extract_file_metadata")}
    found = len([track for track in tracks if track["bpm"]])
    return found if each == {found} else 0


def confinement(stack: Stack, service: str) -> dict[str, Any]:
    return stack.python(service, """
import json, os, pathlib
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
def writable(path):
    try:
        pathlib.Path(path, "probe").touch()
    except OSError:
        return False
    return True
print(json.dumps({"uid": os.getuid(), "caps": int(status["CapBnd"], 16), "no_new": status["NoNewPrivs"].strip(),
                  "root": writable("/"), "tmp": writable("/tmp"), "secrets": writable("/var/lib/phaze-secrets")}))
""")  # fmt: skip


@pytest.fixture(scope="module")
def agent(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Started as a clone is, without any .env, on two songs and a file whose facts worker-meta asks ffmpeg for."""
    assert not (clone / ".env").exists()
    songs = [sample.path for sample in write_samples(tmp_path_factory.mktemp("samples"))]
    music = clone / "compose/music"
    for song in songs[:2]:
        shutil.copy(song, music)
    to_untagged = [ffmpeg_path(), "-loglevel", "error", "-i", songs[2], music / "untagged.au"]
    subprocess.run(to_untagged, timeout=60, check=True)
    stack = Stack(clone)
    try:
        stack("up", "--detach", "--wait", within=400)
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="module")
def password(agent: Stack) -> str:
    return agent.inside("hub", "cat", "/var/lib/phaze-secrets/hub-password").strip()


@pytest.fixture(scope="module")
def token(agent: Stack) -> str:
    return agent.inside("hub", "cat", "/var/lib/phaze-secrets/agent-token").strip()


def test_without_any_env_it_starts_confined_and_tells_the_password_once(
    agent: Stack, password: str, token: str
) -> None:
    assert all(agent.state(service)["State"]["Health"]["Status"] == "healthy" for service in UP)
    found = confinement(agent, "hub")
    assert found == {"uid": 1000, "caps": 0, "no_new": "1", "root": False, "tmp": True, "secrets": True}
    found = confinement(agent, "worker-io")
    assert found == {"uid": 1000, "caps": 0, "no_new": "1", "root": False, "tmp": True, "secrets": False}
    assert {mount["RW"] for mount in agent.state("worker-analyze")["Mounts"] if mount["Type"] == "bind"} == {False}
    assert agent.logs().count(password) == 1
    assert token not in agent.logs()


def test_songs_go_through_all_lanes_also_when_every_connection_to_the_queue_server_was_cut(
    agent: Stack, tmp_path: Path
) -> None:
    agent.python("hub", SCAN)
    until(agent, lambda: analysed(agent) == 3)
    killed = agent.inside("valkey", "valkey-cli", "client", "kill", "type", "normal", "skipme", "yes")
    assert int(re.sub(r"\D", "", killed)) >= 8
    shutil.copy(write_samples(tmp_path)[3].path, agent.folder / "compose/music")
    agent.python("hub", SCAN)
    until(agent, lambda: analysed(agent) == 4)


def test_who_is_killed_is_started_again_and_knows_all_that_was_known(agent: Stack, password: str) -> None:
    until(agent, lambda: analysed(agent) >= 3)
    known = analysed(agent)
    ended = ("hub", "valkey", "worker-meta")
    for service in ended:
        agent.kill(service)
    until(agent, lambda: all(agent.state(service)["RestartCount"] == 1 for service in ended), 60)
    agent("up", "--detach", "--wait", within=300)
    assert analysed(agent) == known
    assert agent.logs().count(password) == 1
    assert all(agent.state(service)["State"]["Health"]["Status"] == "healthy" for service in UP)
    assert all(agent.state(service)["RestartCount"] == 0 for service in UP if service not in ended)


def test_prometheus_reaches_everyone_and_promtool_has_nothing_to_say(agent: Stack) -> None:
    agent("--profile", "metrics", "up", "--detach", "--wait", "prometheus", within=120)
    until(agent, lambda: targets(agent.prometheus) == {"hub": 1, "workers": 4}, 120)
    for service in ("hub", *(name for name in UP if name.startswith("worker-"))):
        text = agent.inside(service, "python3", "-c", METRICS)
        assert "phaze_" in text
        assert agent.inside("prometheus", "promtool", "check", "metrics", given=text) == ""


def elsewhere(agent: Stack, who: str, token: str) -> dict[str, str]:
    """What another machine of the agent `who` is told: where the servers of this one are."""
    servers = {"PHAZE_REDIS_URL": "redis://valkey:6379/0", "PHAZE_HUB_URL": "http://hub:8080"}
    known = {"PHAZE_AGENT_ID": who, "PHAZE_AGENT_TOKEN": token}
    return {**servers, **known, "TEST_NETWORK": f"{agent.project}_default"}


def test_documents_that_a_producer_asks_for_are_read_by_the_lanes_of_their_profile(
    agent: Stack, tmp_path: Path
) -> None:
    lanes = ["worker-router", "worker-parser", "worker-grouper"]
    reports = [sample.path for sample in write_reports(tmp_path)]
    for report in reports:
        shutil.copy(report, agent.folder / "compose/documents")
    agent("--profile", "documents", "up", "--detach", "--wait", *lanes, within=BUILD)
    assert agent.python("worker-router", ASK) == len(reports)
    stages = ("router", "parser", "grouper")
    until(agent, lambda: all(agent.python("hub", COUNT).get(stage) == len(reports) for stage in stages), 120)
    assert confinement(agent, "worker-router")["root"] is False


def test_a_machine_with_music_and_no_servers_has_its_watcher_alone_and_then_its_lanes(
    agent: Stack, tmp_path: Path
) -> None:
    """compose/agent.yml as .env can say: the queue server and the control plane are another machine's."""
    music = tmp_path / "music"
    music.mkdir()
    music.chmod(0o755)
    one, two, *_ = (sample.path for sample in write_samples(tmp_path / "samples"))
    shutil.copy(one, music)
    token = agent.inside("hub", "phaze", "agents", "add", "far").strip()
    told = {"PHAZE_LOCAL_VALKEY": "0", "PHAZE_LOCAL_HUB": "0", "PHAZE_MUSIC_DIR": str(music), "PHAZE_WATCH_SETTLE": "1"}
    far = Stack(agent.folder, HERE / "network.yml", name="far", **told, **elsewhere(agent, "far", token))
    try:
        far("up", "--detach", "--wait", "watcher", within=120)
        assert far("ps", "--services").split() == ["watcher"]
        waits = ("valkey-cli", "llen", keys.queued_key(queue_name("far", "meta")))
        until(agent, lambda: agent.inside("valkey", *waits).strip() != "0", 60)
        far("up", "--detach", "--wait", "worker-meta", within=120)
        until(agent, lambda: agent.python("hub", FILES_OF_FAR) == [f"/music/{one.name}"], 60)
        shutil.copy(two, music)
        until(
            agent, lambda: agent.python("hub", FILES_OF_FAR) == sorted([f"/music/{one.name}", f"/music/{two.name}"]), 60
        )
        assert far.state("watcher")["State"]["Health"]["Status"] == "healthy"
    finally:
        far.down()


def test_a_compute_agent_beside_it_analyses_a_file_of_its_scratch(agent: Stack, token: str) -> None:
    """compose/cloud-agent.yml on the servers of this one, and alone on the lane."""
    scratch = {"PHAZE_SCRATCH_DIR": str(agent.folder / "compose/music")}
    given = {**elsewhere(agent, "local", token), **scratch}
    cloud = Stack(agent.folder, HERE / "network.yml", file="cloud-agent.yml", name="cloud", **given)
    try:
        agent("stop", "worker-analyze")
        cloud("up", "--detach", "--wait", within=300)
        (line,) = [line for line in cloud.logs().splitlines() if '"worker.started"' in line]
        started = json.loads(line)
        assert (started["lane"], started["concurrency"], started["heartbeat"]) == ("analyze", 1, True)
        size = (agent.folder / "compose/music/untagged.au").stat().st_size
        assert agent.python("hub", ENQUEUE.replace("SIZE", str(size)))
        until(cloud, lambda: '"event":"job.settled"' in cloud.logs(), 120)
    finally:
        cloud.down()


def targets(port: int) -> Counter[str]:
    """Job -> its targets that Prometheus reaches."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=10) as answer:
        found = json.load(answer)["data"]["activeTargets"]
    return Counter(target["labels"]["job"] for target in found if target["health"] == "up")


def test_env_at_the_top_of_the_repository_reaches_every_service(clone: Path, tmp_path: Path) -> None:
    shutil.copytree(clone / "compose", tmp_path / "compose", symlinks=True)
    example = (clone / ".env.example").read_text("utf-8")
    uncommented = re.sub(r"^#(?=[A-Z_]+=)", "", example, flags=re.MULTILINE)
    chosen = {
        "PHAZE_REDIS_URL": "redis://elsewhere:6379/1", "PHAZE_LOCAL_VALKEY": "0", "PHAZE_IO_MEMORY": "3g",
        "PHAZE_CHILD_MEMORY_MB": "999", "PHAZE_UID": "1234", "PHAZE_MUSIC_DIR": "/srv/music",
        "PHAZE_PUBLISH_HOST": "10.0.0.1", "PHAZE_HUB_PASSWORD_FILE": "/keys/password",
        "PHAZE_AGENT_TOKEN_FILE": "/var/lib/phaze-secrets/mine",
    }  # fmt: skip
    lines = [uncommented, *(f"{name}={value}" for name, value in chosen.items())]
    (tmp_path / ".env").write_text("\n".join(lines), "utf-8")
    argv = ["docker", "compose", "-f", "compose/agent.yml", "--profile", "*", "config", "--format", "json"]
    said = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(said.stdout)["services"]
    assert found["valkey"]["scale"] == 0
    assert found["hub"]["environment"]["PHAZE_HUB_PASSWORD_FILE"] == "/keys/password"
    assert int(found["worker-io"]["mem_limit"]) == 3 * 2**30
    assert found["hub"]["ports"][0]["host_ip"] == "10.0.0.1"
    for name, service in found.items():
        if name.startswith("worker-"):
            assert service["environment"]["PHAZE_REDIS_URL"] == chosen["PHAZE_REDIS_URL"]
            assert service["environment"]["PHAZE_CHILD_MEMORY_MB"] == "999"
            assert service["environment"]["PHAZE_AGENT_TOKEN_FILE"] == "/var/lib/phaze-secrets/mine"
            assert service["user"].startswith("1234:")
            sources = {volume["source"] for volume in service["volumes"]}
            assert ("/srv/music" in sources) is (service.get("profiles") != ["documents"])
