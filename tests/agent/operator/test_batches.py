"""`phaze approve` and `phaze undo` against a real hub and a real worker, as docs/approved-moves.md shows them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.music.metadata import read_metadata
from pipelines.music.samples import write_samples
from pipelines.payload import encode_path
from tests.conftest import REPO
from tests.pipelines.files.batches import sha, tree

DOC = (REPO / "docs" / "approved-moves.md").read_text("utf-8")


class System:
    """A hub and a worker of the meta lane on a folder of music."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.music = folder / "music"
        self.data = folder / "data"
        self.env = {
            **os.environ,
            "PHAZE_REDIS_URL": redis_url,
            "PHAZE_HUB_PORT": "0",
            "PHAZE_AGENT_TOKEN": "t0ken",
            "PHAZE_AGENT_LANE": "meta",
            "PHAZE_LOG_FORMAT": "json",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.data.parent / "log").open("ab") as log:
            command = [sys.executable, "-m", "agent.cli", *arguments]
            process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)
        self.running.append(process)
        return process

    async def until(self, condition: Callable[[], Any], within: float = 60) -> None:
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(0.05)

    async def begin(self) -> None:
        self.start("hub")
        await self.until((self.data / "hub.url").exists)
        self.env["PHAZE_HUB_URL"] = (self.data / "hub.url").read_text("utf-8").strip()
        self.start("worker")

    async def scan(self) -> None:
        headers = {"Authorization": "Bearer t0ken"}
        async with httpx.AsyncClient(base_url=self.env["PHAZE_HUB_URL"], headers=headers, timeout=30) as client:
            body = {"agent_id": "local", "roots": [encode_path(self.music)]}
            (await client.post("/api/scans", json=body)).raise_for_status()

    def tracks(self) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "agent.cli", "tracks", "--json"], env=self.env, capture_output=True, check=True
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    async def phaze(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "agent.cli", *arguments],
            env=self.env,
            cwd=self.data.parent,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture
async def system(tmp_path: Path, valkey_url: str) -> AsyncIterator[System]:
    system = System(tmp_path, valkey_url)
    system.music.mkdir()
    try:
        await system.begin()
        yield system
    finally:
        for process in reversed(system.running):
            process.kill()
            process.wait(10)


async def test_the_documents_session_is_what_happens(system: System, tmp_path: Path) -> None:
    for sample in write_samples(tmp_path / "samples")[:3]:
        shutil.copy(sample.path, system.music)
    before = tree(system.music)
    await system.scan()
    await system.until(lambda: len(system.tracks()) == 3)
    ids = {track["title"]: track["id"] for track in system.tracks()}
    [proposals] = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    (tmp_path / "proposals.json").write_text(proposals.replace("/music", encode_path(system.music)), "utf-8")
    names: dict[str, str] = {}
    session = "".join(re.findall(r"```console\n(.*?)```", DOC, re.DOTALL))
    for step in session.split("$ phaze ")[1:]:
        command, _, expected = step.partition("\n")
        for theirs, ours in names.items():
            command = command.replace(theirs, ours)
        done = await system.phaze(*shlex.split(command))
        said = (done.stdout + done.stderr).replace(str(system.music), "/music")
        for theirs in re.findall(r"\bb[0-9a-f]{10}\b", expected):
            if theirs not in names:
                names[theirs] = re.findall(r"\bb[0-9a-f]{10}\b", said)[0]
            expected = expected.replace(theirs, names[theirs])
        assert said == expected
        if command.startswith("approve proposals.json --yes"):
            assert done.returncode == 3, "one proposal was not done"
            moved = system.music / "Harbour Lights" / "01.flac"
            assert read_metadata(moved).title == "Harbour Lights (1999)"
            await system.until(lambda: {track["title"] for track in system.tracks()} >= {"Harbour Lights (1999)"})
            [track] = [track for track in system.tracks() if track["id"] == ids["Harbour Lights"]]
            assert track["path"] == str(moved), "the catalogue followed, with the same id"
    after = tree(system.music)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {str(system.music / "01-harbour-lights.flac")}
    assert read_metadata(system.music / "01-harbour-lights.flac").title == "Harbour Lights"
    assert "undoes " in (await system.phaze("batches", "list")).stdout
    shown = json.loads((await system.phaze("batches", "show", names["b0123456789"])).stdout)
    assert shown["details"][2]["reason"] == "destination-exists"


async def test_a_worker_killed_in_the_middle_costs_time_and_nothing_else(system: System, tmp_path: Path) -> None:
    names = [system.music / f"{number:03}.mp3" for number in range(200)]
    for path in names:
        path.write_bytes(path.name.encode())
    proposals = [
        {
            "source": encode_path(path),
            "destination": encode_path(system.music / "new" / path.name),
            "sha256": sha(path),
        }
        for path in names
    ]
    request = {"roots": [encode_path(system.music)], "proposals": proposals}
    (tmp_path / "proposals.json").write_text(json.dumps(request), "utf-8")
    await system.scan()
    approving = asyncio.create_task(system.phaze("approve", "proposals.json", "--yes", "--json"))
    await system.until(lambda: len(list(system.music.glob("new/*"))) >= 40)
    system.running[-1].send_signal(signal.SIGKILL)
    assert len(list(system.music.glob("new/*"))) < 200, "it was killed in the middle"
    system.start("worker")
    done = await approving
    assert done.returncode == 0, done.stderr
    batch = json.loads(done.stdout)
    assert (batch["state"], batch["done"]) == ("done", 200)
    expected = {str(system.music / "new"): None} | {
        str(system.music / "new" / path.name): path.name.encode() for path in names
    }
    assert tree(system.music) == expected


async def test_wrong_use_is_one_line_and_nobody_asked_means_no(system: System, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{", "utf-8")
    (tmp_path / "none.json").write_text('[{"source": "/x/y", "destination": "/x/z"}]', "utf-8")
    for arguments, said in (
        (("approve", "bad.json"), "is not JSON"),
        (("approve", "none.json"), "no folder of this agent was scanned yet"),
        (("undo", "bnope"), "no batch bnope"),
        (("undo", "../x"), "is not a batch"),
    ):
        done = await system.phaze(*arguments)
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    (system.music / "a.mp3").write_bytes(b"a")
    path = encode_path(system.music / "a.mp3")
    asked = {
        "roots": [encode_path(system.music)],
        "proposals": [{"source": path, "destination": f"{path}x", "sha256": sha(b"a")}],
    }
    (tmp_path / "ask.json").write_text(json.dumps(asked), "utf-8")
    assert (await system.phaze("approve", "ask.json")).returncode == 1
    assert (system.music / "a.mp3").exists()
    del system.env["PHAZE_AGENT_TOKEN"]
    assert "PHAZE_AGENT_TOKEN" in (await system.phaze("approve", "ask.json")).stderr
