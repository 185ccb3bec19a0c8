"""The runbooks, typed as they stand for an agent that `phaze up` runs, after what has brought its operator here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from pipelines.music.analyze import AnalyzePayload
from pipelines.music.ingest import IngestPayload
from pipelines.music.metadata import MetadataPayload
from pipelines.payload import Payload
from tests.agent.test_plugins import FILES as PACKAGE
from tests.runbooks.system import Installation, about, must_have, sound
from tests.servers import free_port

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Installation]:
    """A running agent."""
    installation = Installation(tmp_path / "home")
    try:
        installation.type("start")
        yield installation
        installation.type("stop")
    finally:
        installation.close()


class Unfit(Payload):
    """Arguments that do not fit the task."""

    note: str


class Engine:
    """A fingerprint engine (pipelines.music.sidecar) that is not there before it is started."""

    def __init__(self) -> None:
        engine = self
        self.items: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/ingest":
                    engine.items.append(body["item"])
                matches = [{"item": item, "score": 1.0, "offset": 0.0} for item in engine.items]
                answer = json.dumps({"hashes": 7} if self.path == "/ingest" else {"matches": matches}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.server_bind()  # its port is ours, and refuses until it listens
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._server.server_activate()
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.close()


def pid_of(agent: Installation, lane: str) -> int:
    """The process of a lane's worker."""
    wanted = {"PHAZE_AGENT_LANE": lane, "PHAZE_DATA_DIR": str(agent.data)}
    for process in psutil.process_iter(["environ", "cmdline"]):
        environ, cmdline = process.info["environ"] or {}, process.info["cmdline"] or []
        if wanted.items() <= environ.items() and cmdline[-1:] == ["worker"]:
            return int(process.pid)
    raise AssertionError(f"no worker runs on {lane}")


def test_a_job_is_stuck(agent: Installation) -> None:
    archive = agent.folder / "archive"
    away, there = archive / "18.wav", sound(agent.music / "17.wav")
    agent.type("phaze pause meta")
    jobs = {"17": about(there, agent.music), "18": about(away, archive, size=there.stat().st_size)}
    agent.put("extract_file_metadata", {record: MetadataPayload(**payload) for record, payload in jobs.items()})
    long = about(sound(agent.music / "19.wav", 1200), agent.music)
    agent.put("process_file", {"19": AnalyzePayload(**long)})
    world = {
        "the worker is killed": lambda: os.kill(pid_of(agent, "analyze"), signal.SIGKILL),
        "the archive is mounted": lambda: sound(away) and None,
    }
    agent.follow("a-job-is-stuck", world)


def test_dead_letters(agent: Installation) -> None:
    gone = {str(number): agent.music / f"{number}.wav" for number in (1, 2, 3)}
    size = sound(agent.music / "other.wav").stat().st_size
    jobs = {record: MetadataPayload(**about(path, agent.music, size=size)) for record, path in gone.items()}
    for record, payload in jobs.items():
        agent.put("extract_file_metadata", {record: payload})
        agent.until("valkey-cli llen phoenix:extract_file_metadata:dlq", record)
    agent.put("extract_file_metadata", {"4": Unfit(version="v1", note="by hand")})
    agent.until("valkey-cli llen phoenix:extract_file_metadata:quarantine", "1")
    agent.follow("dead-letters", {"the files are back": lambda: [sound(path) for path in gone.values()] and None})


def test_circuit_open(agent: Installation, engine: Engine) -> None:
    file = about(sound(agent.music / "a.wav"), agent.music)
    jobs = {str(number): IngestPayload(engine=engine.url, **file) for number in range(8)}
    agent.put("ingest_file", jobs)
    agent.follow("circuit-open", {"the engine is back": engine.start})


def test_out_of_memory(agent: Installation) -> None:
    agent.type("stop")
    (agent.folder / ".env").write_text("PHAZE_CHILD_MEMORY_MB=128\n", "ascii")
    agent.type("start")
    agent.put("process_file", {"50": AnalyzePayload(**about(sound(agent.music / "50.wav", 20), agent.music))})
    gone = about(agent.music / "gone.wav", agent.music, size=1)
    agent.put("extract_file_metadata", {str(number): MetadataPayload(**gone) for number in range(100)})
    while "1" not in agent.type("valkey-cli llen phoenix:process_file:quarantine"):
        agent.hurry("process_file")
        time.sleep(0.2)
    agent.until("valkey-cli llen phoenix:extract_file_metadata:dlq", "100")
    agent.follow(
        "out-of-memory",
        {"the queue server is full": lambda: agent.type("valkey-cli config set maxmemory 1mb") and None},
    )


def test_backup_and_restore(agent: Installation) -> None:
    for name in ("a", "b"):
        sound(agent.music / f"{name}.wav", 3 + len(agent.music.name))
    agent.type("phaze pause analyze")
    agent.scan(agent.music)
    agent.until("phaze backup --force count.sqlite", " 5 results")
    agent.type("phaze pause meta")
    agent.put("extract_file_metadata", {"17": MetadataPayload(**about(agent.music / "a.wav", agent.music))})

    def dies() -> None:
        agent.type("stop")
        shutil.rmtree(agent.data)

    agent.follow("backup-and-restore", {"the disk dies": dies})


class OtherMachine:
    """The worker of an agent elsewhere, which reports to this one's hub."""

    def __init__(self, agent: Installation) -> None:
        self.agent = agent
        agent.type("phaze agents add nas >nas.token")
        self.start()

    def start(self) -> None:
        own = {
            "PHAZE_AGENT_ID": "nas",
            "PHAZE_AGENT_LANE": "analyze",
            "PHAZE_AGENT_TOKEN": (self.agent.folder / "nas.token").read_text("ascii").strip(),
            "PHAZE_REDIS_URL": (self.agent.data / "redis.url").read_text("utf-8").strip(),
            "PHAZE_HUB_URL": (self.agent.data / "hub.url").read_text("utf-8").strip(),
        }
        command = [sys.executable, "-m", "agent.cli", "worker"]
        with (self.agent.folder / "nas.log").open("ab") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def test_rotate_tokens(tmp_path: Path) -> None:
    agent = Installation(tmp_path / "home", PHAZE_HUB_PORT=str(free_port()))
    try:
        agent.type("start")
        nas = OtherMachine(agent)
        try:
            agent.follow(
                "rotate-tokens",
                {
                    "the new token is brought to the nas and its worker is started anew": lambda: (
                        nas.stop() or nas.start()
                    )
                },
            )
        finally:
            nas.stop()
        agent.type("stop")
    finally:
        agent.close()


def test_add_a_lane_or_task(tmp_path: Path) -> None:
    must_have("pip")
    local = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    agent = Installation(tmp_path / "home", **local, PIP_ROOT_USER_ACTION="ignore")
    for name, text in PACKAGE.items():
        (agent.folder / "phaze-words" / name).parent.mkdir(parents=True, exist_ok=True)
        (agent.folder / "phaze-words" / name).write_text(text, "utf-8")
    try:
        agent.type("start")
        agent.follow("add-a-lane-or-task")
        agent.type("stop")
    finally:
        agent.close()
