"""A clean checkout whose Compose file runs on a real Docker engine, under a project name of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import REPO
from tests.servers import free_port

IMAGE = "phaze-agent:test"
BUILD = 1500.0
"""Seconds for both images on a machine that has neither."""

SCAN = """
import json, os, urllib.request
token = open(os.environ["PHAZE_AGENT_TOKEN_FILE"]).read().strip()
body = json.dumps({"agent_id": "local", "roots": ["/music"]}).encode()
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
url = "http://127.0.0.1:8080/api/scans"
print(urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20).read().decode())
"""
"""Asks the hub, from its own container, to scan the music."""

COUNT = """
import json, os, sqlite3
with sqlite3.connect(f"file:{os.environ['PHAZE_DATA_DIR']}/catalogue.sqlite?mode=ro", uri=True) as catalogue:
    print(json.dumps(dict(catalogue.execute(
        "SELECT service, count(*) FROM results WHERE outcome IN ('done', 'partial') GROUP BY service"))))
"""
"""Results that are no rejections, by task, in the hub's catalogue."""


def checkout(folder: Path) -> Path:
    """What a clone of this repository holds, as it stands now."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPO, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source, target = REPO / name, folder / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def not_ours(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the developer's own settings, which Compose would read."""
    return {name: value for name, value in environ.items() if not name.startswith(("PHAZE_", "WORKER_MAX_JOBS"))}


class Stack:
    """`docker compose` on a Compose file of a clean checkout; `down()` leaves nothing behind."""

    def __init__(self, folder: Path, *files: Path, file: str = "agent.yml", name: str = "agent", **env: str) -> None:
        self.folder = folder
        self.project = f"phaze-test-{os.getpid()}-{name}"
        self.port, self.prometheus = free_port(), free_port()
        named = [part for file in (Path("compose", file), *files) for part in ("-f", str(file))]
        self.command = ["docker", "compose", *named, "--project-name", self.project]
        ports = {"PHAZE_HUB_PORT": str(self.port), "PHAZE_PROMETHEUS_PORT": str(self.prometheus)}
        self.env = {**not_ours(os.environ), "PHAZE_IMAGE": IMAGE, **ports, **env}

    def __call__(self, *arguments: str, within: float = 180.0) -> str:
        """What one command said."""
        done = subprocess.run(
            [*self.command, *arguments], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=within,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{arguments}: {said[-3000:]}\n{self.logs()[-6000:]}"
        return said

    def inside(self, service: str, *command: str, given: str = "", within: float = 120.0) -> str:
        """What a command in the service's container wrote to its output; `given` is its input."""
        argv = [*self.command, "exec", "-T", service, *command]
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env=self.env,
            input=given,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, service: str, code: str) -> Any:
        """What a Python program in the service's container printed, as JSON."""
        return json.loads(self.inside(service, "python3", "-c", code))

    def logs(self, *services: str) -> str:
        """The logs, without Compose's own colours."""
        argv = [*self.command, "logs", "--no-color", "--no-log-prefix", *services]
        said = subprocess.run(
            argv, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        return re.sub(r"\x1b\[\d*K", "", said.stdout)

    def state(self, service: str) -> dict[str, Any]:
        """`docker inspect` of the service's container."""
        (container,) = self("ps", "--all", "--quiet", service).split()
        said = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, timeout=30, check=True)
        found: dict[str, Any] = json.loads(said.stdout)[0]
        return found

    def kill(self, service: str) -> None:
        """kill -9 of every process in the service's container, from within: to Docker it died of itself."""
        argv = [*self.command, "exec", "-T", service, "sh", "-c", "kill -9 -1"]
        subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, timeout=60, check=False)

    def down(self) -> None:
        """End everything and remove it, volumes too."""
        argv = [*self.command, "--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5"]
        subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, timeout=180, check=False)
