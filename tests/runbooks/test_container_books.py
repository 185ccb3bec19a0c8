"""The runbooks for containers, typed as they stand on a real Docker engine, each on volumes of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from tests import docker_engine
from tests.compose.stack import BUILD, checkout
from tests.runbooks.runner import Shell, follow, read
from tests.runbooks.system import sound
from tests.servers import free_port

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

OURS, NEXT = "phaze-agent-books:0.1.0", "phaze-agent-books:0.1.1"
"""Images of these tests alone: others build and use the ones that the files name."""

PUT = """
import asyncio, json, os, sys
from saq.queue.redis import RedisQueue
async def main():
    queue = RedisQueue.from_url(os.environ["PHAZE_REDIS_URL"], name=sys.argv[1])
    for job in json.loads(sys.argv[3]):
        await queue.enqueue(sys.argv[2], **job)
    await queue.disconnect()
asyncio.run(main())
"""


COUNT = "python3 -c \"import sqlite3; print(*sqlite3.connect('count.sqlite').execute('select count(*) from results'))\""
NUMBERS = count()


class Containers:
    """A checkout with a shell in it, whose words are those of runbooks/containers.sh."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = checkout(folder / "phaze-agent")
        self.music = folder / "music"
        self.name_images(OURS)
        self.project = f"phaze-books-{os.getpid()}-{next(NUMBERS)}"
        for file in (self.folder / "compose").glob("*.yml"):
            named = {"agent.yml": self.project, "cloud-agent.yml": f"{self.project}-cloud"}.get(file.name, "")
            text = re.sub(r"(?m)^name: .*$", f"name: {named}", file.read_text("utf-8"))
            file.write_text(re.sub(r"\binterval: (5|10)s", "interval: 2s", text), "utf-8")  # each start waits for it
        own = {"PHAZE_HUB_PORT": str(free_port()), "MUSIC": str(self.music)}
        own |= {f"PHAZE_{name}_MEMORY": "2g" for name in ("ANALYZE", "FINGERPRINT", "DRAIN")}
        for name, seconds in (("one", 4.0), ("two", 5.0)):
            sound(self.music / f"{name}.wav", seconds)
        self.music.chmod(0o755)
        self.shell = Shell(self.folder, {**os.environ, **own, "COLUMNS": "100", **env}, within=BUILD)
        self.type(". runbooks/containers.sh")

    def name_images(self, image: str) -> None:
        """What the Compose files call our images where nothing else is set."""
        for file in (self.folder / "compose").glob("*.yml"):
            file.write_text(re.sub(r"phaze-agent(-books)?:[\d.]+\}", f"{image}}}", file.read_text("utf-8")), "utf-8")

    def type(self, command: str) -> str:
        said, code = self.shell.run(command)
        assert code == 0, f"{command}: {code}\n{said}"
        return said

    def follow(self, book: str, world: Mapping[str, Callable[[], None]] | None = None) -> None:
        text = (self.folder / "runbooks" / f"{book}.md").read_text("utf-8")
        follow(read(text, "containers"), self.shell, world)

    def python(self, code: str, *arguments: str) -> None:
        """Run a program in the hub's container."""
        argv = ["docker", "compose", "-f", "compose/agent.yml", "exec", "-T", "hub", "python3", "-c", code, *arguments]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def put(self, queue: str, task: str, jobs: list[dict[str, object]]) -> None:
        """Enqueue as any SAQ producer does."""
        self.python(PUT, queue, task, json.dumps(jobs))

    def until(self, command: str, said: str) -> None:
        """Type a command until it says this among other things."""
        deadline = time.monotonic() + 900
        while said not in (found := self.type(command)):
            assert time.monotonic() < deadline, found
            time.sleep(1)

    def close(self) -> None:
        """Leave no container, network or volume behind."""
        down = "down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1"
        for project in (f"{self.project}-cloud", self.project):
            self.shell.run(f"docker compose --profile '*' --project-name {project} {down}")
        self.shell.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both images, under our name."""
    docker_engine.must_answer()
    first = Containers(tmp_path_factory.mktemp("images") / "first")
    first.type("compose build")
    first.shell.close()


@pytest.fixture
def agent(images: None, tmp_path: Path) -> Iterator[Containers]:
    """A checkout, nothing started."""
    containers = Containers(tmp_path / "home")
    try:
        yield containers
    finally:
        containers.close()


def test_first_start(agent: Containers) -> None:
    agent.follow("first-start")


def test_upgrade(agent: Containers) -> None:
    agent.type("start")

    def comes_out() -> None:
        agent.name_images(NEXT)
        with (agent.folder / "src/agent/__init__.py").open("a", encoding="utf-8") as source:
            source.write("# the next version\n")

    try:
        agent.follow("upgrade", {"the repository is at its new version": comes_out})
    finally:
        agent.shell.run(f"docker image rm --force {NEXT}-light {NEXT}-music")


def test_migrate_to_lanes(agent: Containers) -> None:
    agent.type(f"echo PHAZE_MUSIC_DIR={agent.music} >.env; compose up --detach --wait valkey hub")
    about = {
        "version": "v1",
        "path": "/music/one.wav",
        "root": "/music",
        "size": (agent.music / "one.wav").stat().st_size,
    }
    # The watcher has the same files scanned: these are records from before, whose ids no file of the hub's will have.
    jobs = [{"key": f"extract_file_metadata:{number}", **about} for number in range(101, 113)]
    agent.put("phaze-agent-local", "extract_file_metadata", jobs)
    agent.follow("migrate-to-lanes")


def test_backup_and_restore(agent: Containers) -> None:
    agent.type(
        f"echo PHAZE_MUSIC_DIR={agent.music} >.env; compose up --detach --wait valkey hub; phaze pause analyze; start"
    )
    agent.until("phaze backup - >count.sqlite; " + COUNT, "(5,)")  # two tasks for each file, and the watcher's scan
    agent.type("phaze pause meta")
    about = {"version": "v1", "path": "/music/one.wav", "root": "/music", "size": 1}
    agent.put("phaze-agent-local-meta", "extract_file_metadata", [{"key": "extract_file_metadata:17", **about}])

    def dies() -> None:
        agent.type("compose down --volumes --timeout 5")

    agent.follow("backup-and-restore", {"the disk dies": dies})


def test_rotate_tokens(agent: Containers) -> None:
    agent.type(f"echo PHAZE_MUSIC_DIR={agent.music} >.env; start; phaze agents add nas >nas.token")
    nas = f"{agent.project}-nas"

    def begin() -> None:
        own = '--env PHAZE_AGENT_ID=nas --env PHAZE_AGENT_TOKEN="$(cat nas.token)"'
        agent.type(f"compose run --detach --no-deps --name {nas} {own} worker-analyze >nas.id")

    def begin_anew() -> None:
        agent.type(f"docker rm --force {nas} >nas.id")
        begin()

    begin()
    try:
        agent.follow(
            "rotate-tokens", {"the new token is brought to the nas and its worker is started anew": begin_anew}
        )
    finally:
        agent.shell.run(f"docker rm --force {nas}")


def test_scale_out(images: None, tmp_path: Path) -> None:
    agent = Containers(tmp_path / "home", QUEUE="redis://valkey:6379/0", HUB="http://hub:8080")
    try:
        # The other host is this one: what is between the two is the network of the first one's containers.
        with (agent.folder / "compose/cloud-agent.yml").open("a", encoding="utf-8") as file:
            file.write(f"\nnetworks:\n  default:\n    external: true\n    name: {agent.project}_default\n")
        agent.type(f"echo PHAZE_MUSIC_DIR={agent.music} >.env; start")
        agent.follow("scale-out")
    finally:
        agent.close()
