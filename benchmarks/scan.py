"""Scans of many small files: the first, the next, one after some changed; time and memory.

    python benchmarks/scan.py [--files 20000 100000] [--flat]

A real hub, real child processes; the parts go to the hub over HTTP as the relay sends them. No queue server: what a
scan makes others do is not measured. Memory is the peak of each process (VmHWM), CPU that of all three.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import psutil
from pydantic import BaseModel

from agent.children import Children
from agent.desk import Desk
from agent.phoenix.outbox import Entry
from agent.settings import load_settings
from pipelines.music.scan import ScanPayload, ScanReport, scan_directory
from pipelines.payload import encode_path

TOKEN = "benchmark"  # noqa: S105 - of a hub that lives for a minute
SIZE = 4_000
"""Bytes of a file."""


class Context:
    """A task's surroundings: children as a worker has them, a desk, and parts that go to the hub at once."""

    def __init__(self, scan_id: str, children: Children, desk: Desk, client: httpx.AsyncClient) -> None:
        self.record_id, self.token = scan_id, "1"
        self._children, self._desk, self._client, self._part = children, desk, client, 0

    async def check(self) -> None:
        """Nobody else scans."""

    async def progress(self, fraction: float, note: str = "") -> None:
        """Nobody watches."""

    async def report(self, part: BaseModel) -> None:
        await self.send(part, self._part)
        self._part += 1

    async def send(self, result: BaseModel, part: int | None = None) -> None:
        """One entry to the hub."""
        entry = Entry(
            service="scan_directory", record_id=self.record_id, version=self.record_id, token=1, part=part,
            outcome=getattr(result, "outcome", "done"), reason=getattr(result, "reason", None),
            result=result.model_dump(mode="json"),
        )  # fmt: skip
        answer = await self._client.post("/api/agents/local/results", json={"entries": [entry.model_dump()]})
        assert answer.json() == {"refused": []}, answer.text

    async def ask(self, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
        return await self._desk.ask(self.record_id, subject, question)

    async def child(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._children.run(600.0, function, *args, **kwargs)


def fill(root: Path, count: int, flat: bool) -> None:
    """`count` files, 100 to a folder or all in one."""
    for number in range(count):
        folder = root if flat else root / f"artist {number // 1000:03}" / f"album {number // 100:04}"
        if number % 100 == 0:
            folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06} a track with a name of usual length.mp3").write_bytes(
            f"{number:08}".encode() * (SIZE // 8)
        )


def peak(pid: int) -> int:
    """MiB that a process has used at most."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    return int(found.group(1)) >> 10 if found else 0


def cpu() -> float:
    """Seconds that this process and its children have used, those that have ended included."""
    return sum(sum(process.cpu_times()[:4]) for process in (psutil.Process(), *psutil.Process().children()))


async def measure(count: int, flat: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        root, data = Path(place) / "music", Path(place) / "data"
        root.mkdir()
        fill(root, count, flat)
        env = {**os.environ, "PHAZE_DATA_DIR": str(data), "PHAZE_AGENT_TOKEN": TOKEN, "PHAZE_HUB_PORT": "0",
               "PHAZE_REDIS_URL": "redis://127.0.0.1:1/0", "PHAZE_LOG_LEVEL": "error"}  # fmt: skip
        hub = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agent.cli", "hub", env=env, stderr=subprocess.DEVNULL
        )
        children = Children(1)
        try:
            while not (data / "hub.url").exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.1)
            url = (data / "hub.url").read_text("utf-8").strip()
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
                desk = Desk(load_settings(hub_url=url), TOKEN)
                await asyncio.sleep(2.1)  # what was written just now is read once more by the next scan
                for name in ("first", "again", "1 % changed", "reread"):
                    if name.endswith("changed"):
                        for path in islice(root.rglob("*.mp3"), 0, None, 100):
                            path.write_bytes(os.urandom(SIZE))
                    body = {
                        "agent_id": "local",
                        "roots": [encode_path(root)],
                        "fresh": True,
                        "reread": name == "reread",
                    }
                    [scan_id] = (await client.post("/api/scans", json=body)).json()["scans"]
                    ctx = Context(scan_id, children, desk, client)
                    payload = ScanPayload(version=scan_id, root=body["roots"][0], reread=name == "reread")
                    began, before = time.monotonic(), cpu()
                    report: ScanReport = await scan_directory(ctx, payload)  # type: ignore[arg-type]
                    await ctx.send(report)
                    took = time.monotonic() - began
                    inner = max(peak(child.pid) for child in psutil.Process().children() if child.pid != hub.pid)
                    print(f"{count:>8,} files, {name:<12} {took:6.1f} s ({cpu() - before:5.1f} s of CPU), "  # noqa: T201
                          f"{report.read:>7,} read; peak MiB: "
                          f"child {inner}, task {peak(os.getpid())}, hub {peak(hub.pid)}")  # fmt: skip
                await desk.close()
        finally:
            await children.close()
            hub.terminate()
            await hub.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--flat", action="store_true", help="all in one folder")
    given = parser.parse_args()
    for count in given.files:
        asyncio.run(measure(count, given.flat))


if __name__ == "__main__":
    main()
