"""`phaze watch` as a process, against a real hub: the catalogue follows the disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
import uvicorn
from click.testing import CliRunner

from agent.errors import UserError, WrongUse
from agent.hub.app import create_app
from agent.hub.catalogue import Catalogue
from agent.hub.debts import Debt
from agent.hub.schema import scans
from agent.hub.server import listen, server_config, url_of
from agent.settings import load_settings
from agent.watching.command import watch as command
from pipelines.context import InlineContext
from pipelines.music.scan import ScanPart, ScanPayload, scan_directory
from pipelines.payload import decode_path
from tests.hub.deliveries import AGENT, TOKEN, closing, part

SCAN = "scan_directory"


class Hub:
    """A hub on a real socket that can be stopped and started, and an agent that does the scans it is asked for."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.port = 0
        self.read = 0
        self._stack = contextlib.AsyncExitStack()
        self._agent: asyncio.Task[None] | None = None

    async def start(self) -> None:
        app = create_app(load_settings(), self.catalogue)
        server = uvicorn.Server(server_config(app))
        listener = listen("127.0.0.1", self.port)
        self.port = int(url_of(listener).rsplit(":", 1)[-1])
        running = asyncio.create_task(server._serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)

        async def stop() -> None:
            server.should_exit = True
            await running
            listener.close()

        self._stack.push_async_callback(stop)
        self._agent = asyncio.create_task(self._scan_for_ever())

    async def rest(self) -> None:
        """Scan no more."""
        if self._agent is not None:
            self._agent.cancel()
            await asyncio.wait([self._agent])

    async def stop(self) -> None:
        await self.rest()
        await self._stack.aclose()

    async def _scan_for_ever(self) -> None:
        while True:
            for debt in self.catalogue.owed(AGENT, SCAN, 100):
                await self._scan(debt)
            await asyncio.sleep(0.05)

    async def _scan(self, debt: Debt) -> None:
        payload = debt.payload()
        assert isinstance(payload, ScanPayload)
        known = {
            "known-files": lambda asked: {"known": self.catalogue.unchanged(AGENT, [tuple(f) for f in asked["files"]])}
        }
        ctx = InlineContext(answers=known)
        report = await scan_directory(ctx, payload)
        self.read += report.read
        found = [piece for piece in ctx.parts if isinstance(piece, ScanPart)]
        parts = [
            part(debt.record_id, [file.model_dump() for file in piece.files], number=number)
            for number, piece in enumerate(found)
        ]
        end = closing(
            debt.record_id, outcome=report.outcome, **report.model_dump(mode="json", exclude={"outcome", "reason"})
        )
        end = end.model_copy(update={"reason": report.reason})
        assert set(self.catalogue.record(AGENT, [*parts, end])) == {None}

    def paths(self) -> set[Path]:
        return {decode_path(track.encoded_path) for track in self.catalogue.tracks()}

    def asked(self) -> list[str | None]:
        """The paths of each scan, in order; None: all of a root."""
        with self.catalogue._database.read() as connection:
            return list(connection.scalars(sa.select(scans.c.paths).order_by(scans.c.requested_at)))

    async def until(self, condition: Callable[[], bool], within: float = 60) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, (self.paths(), self.asked())
            await asyncio.sleep(0.05)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    with Catalogue(tmp_path / "hub") as catalogue:
        catalogue.register_agent(AGENT, TOKEN)
        found = Hub(catalogue)
        await found.start()
        yield found
        await found.stop()


class Watch:
    """A running `phaze watch`."""

    def __init__(self, log: Path, url: str, *roots: Path, **env: str) -> None:
        self.log = log
        self.health = log.with_name("healthy")
        environment = {
            **os.environ,
            "PHAZE_HUB_URL": url,
            "PHAZE_AGENT_TOKEN": TOKEN,
            "PHAZE_WATCH_SETTLE": "1",
            "PHAZE_HEALTH_FILE": str(self.health),
            **env,
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agent.cli", "watch", *map(os.fsencode, roots)], env=environment, stderr=output
            )

    def said(self, event: str) -> int:
        return self.log.read_text("utf-8").count(event)

    def end(self) -> float:
        """Seconds that a polite end took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        return time.monotonic() - began


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "music"
    folder.mkdir()
    for name in ("a.mp3", "album/b.mp3", "album/c.mp3"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def watch(tmp_path: Path, hub: Hub) -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def go(*roots: Path, **env: str) -> Watch:
        started.append(Watch(tmp_path / f"{len(started)}.log", f"http://127.0.0.1:{hub.port}", *roots, **env))
        return started[-1]

    yield go
    for one in started:
        one.process.kill()
        one.process.wait(10)


def music(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.suffix == ".mp3"}


@pytest.mark.parametrize("poll", ["never", "always"])
async def test_the_catalogue_follows_the_disk(
    hub: Hub, watch: Callable[..., Watch], root: Path, tmp_path: Path, poll: str
) -> None:
    process = watch(root, PHAZE_WATCH_POLL=poll, PHAZE_WATCH_POLL_SECONDS="1")
    await hub.until(lambda: hub.paths() == music(root))
    await hub.until(process.health.exists)
    assert hub.asked() == [None], "a look at everything, to begin with"
    (root / "a.mp3").rename(root / "album" / "renamed.mp3")
    (root / "album" / "b.mp3").unlink()
    (root / "album" / "c.mp3").write_text("changed")
    (tmp_path / "came" / "deep").mkdir(parents=True)
    (tmp_path / "came" / "deep" / "new.mp3").write_text("new")
    (tmp_path / "came").rename(root / "came")
    (root / "album" / "notes.txt").write_text("no music")
    await hub.until(lambda: hub.paths() == music(root) and hub.read == 6)
    shutil.rmtree(root / "album")
    await hub.until(lambda: hub.paths() == music(root))
    assert hub.asked().count(None) == 1, "only what changed was looked at"
    assert process.end() < 10


async def test_a_file_is_told_when_it_has_settled(hub: Hub, watch: Callable[..., Watch], root: Path) -> None:
    watch(root, PHAZE_WATCH_SETTLE="2")
    await hub.until(lambda: hub.paths() == music(root))
    growing = root / "growing.mp3"
    for _ in range(6):
        with growing.open("a") as file:
            file.write("more")
        await asyncio.sleep(0.5)
        assert growing not in hub.paths()
    await hub.until(lambda: growing in hub.paths())
    assert hub.read == 4, "it was read once"


async def test_a_name_that_is_not_utf8_is_found_all_the_same(hub: Hub, watch: Callable[..., Watch], root: Path) -> None:
    process = watch(root, PHAZE_WATCH_POLL_SECONDS="1")
    await hub.until(lambda: hub.paths() == music(root))
    odd = root / os.fsdecode(b"\xff\n.mp3")
    odd.write_text("x")
    await hub.until(lambda: odd in hub.paths())
    assert process.said("watch.begins_anew") == 1
    await hub.until(lambda: process.said("watch.started") == 2)
    (root / "after.mp3").write_text("x")
    await hub.until(lambda: root / "after.mp3" in hub.paths())


async def test_a_hub_that_is_away_loses_nothing(hub: Hub, watch: Callable[..., Watch], root: Path) -> None:
    process = watch(root)
    await hub.until(lambda: hub.paths() == music(root))
    await hub.stop()
    (root / "meanwhile.mp3").write_text("x")
    (root / "a.mp3").unlink()
    await hub.until(lambda: process.said("watch.hub_away") == 1)
    process.health.unlink(missing_ok=True)
    await asyncio.sleep(1.5)
    assert not process.health.exists()
    await hub.start()
    await hub.until(lambda: hub.paths() == music(root))
    await hub.until(process.health.exists)


async def test_a_root_that_is_taken_away_is_no_deletion(
    hub: Hub, watch: Callable[..., Watch], root: Path, tmp_path: Path
) -> None:
    process = watch(root)
    await hub.until(lambda: hub.paths() == music(root))
    before = hub.paths()
    shutil.move(root, tmp_path / "elsewhere")
    await hub.until(lambda: process.said("watch.root_away") == 1)
    root.mkdir()  # as a mount point is without its mount
    await hub.until(lambda: hub.asked().count(None) == 2)
    await asyncio.sleep(2)
    assert hub.paths() == before
    (tmp_path / "elsewhere" / "meanwhile.mp3").write_text("x")
    root.rmdir()
    shutil.move(tmp_path / "elsewhere", root)
    await hub.until(lambda: hub.paths() == music(root))
    (root / "after.mp3").write_text("x")
    await hub.until(lambda: hub.paths() == music(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("below", [False, True], ids=["itself", "below"])
async def test_an_unmounted_archive_is_no_deletion(
    hub: Hub, watch: Callable[..., Watch], tmp_path: Path, below: bool
) -> None:
    place = tmp_path / "watched" / "archive"
    place.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "none", place], check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (place / "a.mp3").write_text("a")
        process = watch(place.parent if below else place, PHAZE_WATCH_RESCAN_HOURS="0")
        await hub.until(lambda: hub.paths() == {place / "a.mp3"})
        subprocess.run(["umount", place], check=True)
        await hub.until(lambda: process.said("watch.root_away") == 1)
        await hub.until(lambda: hub.asked().count(None) == 2 and not hub.catalogue.owed(AGENT, SCAN, 1))
        assert hub.paths() == {place / "a.mp3"}
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
        (place / "b.mp3").write_text("b")
        await hub.until(lambda: place / "b.mp3" in hub.paths())
    finally:
        while subprocess.run(["umount", place], check=False, capture_output=True).returncode == 0:
            pass


async def test_ten_thousand_changes_at_once_cost_little(hub: Hub, watch: Callable[..., Watch], root: Path) -> None:
    process = watch(root)
    await hub.until(lambda: hub.paths() == music(root))
    await hub.rest()
    known = psutil.Process(process.process.pid)
    before = sum(known.cpu_times()[:2])
    for number in range(10_000):
        if number % 100 == 0:
            (root / f"{number:05}").mkdir()
        (root / f"{number // 100 * 100:05}" / f"{number}.mp3").write_bytes(b"%d" % number)
    await hub.until(lambda: sum(len(json.loads(paths)) for paths in hub.asked()[1:] if paths) == 10_000)
    used = sum(known.cpu_times()[:2]) - before
    assert used < 10, "half a second is usual"
    assert known.memory_info().rss < 150 * 2**20
    assert len(hub.asked()) < 40, "told in lots"


async def test_nothing_watched_is_told_twice_and_a_folder_in_a_folder_is_watched_once(
    hub: Hub, watch: Callable[..., Watch], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "x.mp3").write_text("x")
    watch(root, root / "album", tmp_path / "second")
    await hub.until(lambda: hub.paths() == music(root) | music(tmp_path / "second"))
    assert hub.asked() == [None, None]


def test_wrong_use_is_one_line_with_the_remedy(root: Path) -> None:
    with pytest.raises(WrongUse, match="give the folders to watch"):
        CliRunner().invoke(command, [str(root / "a.mp3")], catch_exceptions=False)
    with pytest.raises(UserError, match=r"phaze up.*PHAZE_AGENT_TOKEN"):
        CliRunner().invoke(command, [str(root)], catch_exceptions=False)
    assert CliRunner().invoke(command, []).exit_code == 2


async def test_a_token_that_is_not_taken_is_said_and_tried_again(
    hub: Hub, watch: Callable[..., Watch], root: Path
) -> None:
    process = watch(root, PHAZE_AGENT_TOKEN="wrong")
    await hub.until(lambda: process.said("watch.hub_away") == 1)
    assert "token" in process.log.read_text("utf-8")
    hub.catalogue.register_agent(AGENT, "wrong")
    await hub.until(lambda: hub.paths() == music(root))


async def test_a_root_that_is_not_there_yet_is_waited_for(
    hub: Hub, watch: Callable[..., Watch], root: Path, tmp_path: Path
) -> None:
    shutil.move(root, tmp_path / "later")
    process = watch(root)
    await hub.until(lambda: process.said("watch.root_away") == 1)
    assert not process.health.exists()
    shutil.move(tmp_path / "later", root)
    await hub.until(lambda: hub.paths() == music(root) != set())
