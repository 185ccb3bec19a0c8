"""Kill a real process at every step of `pipelines.files`, do the batch again, and compare.

    python -m tests.pipelines.files.killing SCENARIO FOLDER OTHER_FOLDER

A step is a line with a system call that changes something: before it, and after it. With KILL_EVERY_LINE=1 every line
that is executed is one (a minute a scenario). A process is forked for each, and ends itself there with SIGKILL; every
second time the run that follows is killed as well, somewhere else. The last run must leave what a run without a kill
leaves: the same names, contents, modes, times and links, the same answers, no temporary file. At no moment may a
content be missing. Prints one JSON object: {"kills": how many, "outcomes": of the items}.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pipelines.context import InlineContext
from pipelines.files import execute_approved_batch as batch
from pipelines.files import publish, tagging
from pipelines.files.proposals import BatchPayload, BatchReport, Item, Move, Proposal, TagWrite
from pipelines.music.ffmpeg import ffmpeg_path
from pipelines.payload import encode_path

EVERY_LINE = bool(os.environ.get("KILL_EVERY_LINE"))

CHANGING = re.compile(
    r"os\.(link|unlink|rename|mkdir|rmdir|write|fsync|ftruncate|fch|setxattr|utime)|os\.O_CREAT|audio\.save|call\("
)

WATCHED = str(Path(batch.__file__).parent)


class Inline(InlineContext):
    """Runs steps in this very thread, which the tracer watches."""

    async def child(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def snapshot(*folders: Path, times: bool = True) -> dict[str, Any]:
    """Everything below: mode, links, time, content."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            stat = path.lstat()
            content = sha(path.read_bytes()) if path.is_file() else "folder"
            time = stat.st_mtime_ns if times and path.is_file() else 0
            found[str(path)] = (oct(stat.st_mode), stat.st_nlink if path.is_file() else 0, time, content)
    return found


def contents(*folders: Path) -> Counter[str]:
    return Counter(
        sha(path.read_bytes())
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".phaze-")
    )


class Scenario:
    """A tree and a batch. `other` may lie on another file system."""

    def __init__(self, name: str, folder: Path, other: Path, music: Path | None) -> None:
        self.name, self.folder, self.other, self.music = name, folder / "m", other / "m", music
        self.times = name != "tags" and name != "tags-plain"

    def build(self) -> BatchPayload:
        for folder in (self.folder, self.other):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        files = {"old/a.mp3": b"a" * 3000, "b.mp3": b"b" * 10, "taken.mp3": b"t"}
        for name, data in files.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            os.utime(path, ns=(10**18, 10**18 + 7))
        proposals = self.proposals(files)
        return BatchPayload(version="1", roots=[encode_path(self.folder), encode_path(self.other)], proposals=proposals)

    def proposals(self, files: dict[str, bytes]) -> list[Proposal]:
        def move(number: int, source: str, destination: Path, **more: Any) -> Move:
            return Move(
                proposal_id=str(number),
                source=encode_path(self.folder / source),
                destination=encode_path(destination),
                sha256=sha(files[source]),
                **more,
            )

        if self.name.startswith("tags"):
            assert self.music is not None
            path = self.folder / self.music.name
            shutil.copy(self.music, path)
            tags = {"title": ["Ein Titel"], "bpm": ["128"]}
            return [
                TagWrite(proposal_id="1", source=encode_path(path), sha256=sha(path.read_bytes()), tags=tags),
            ]
        if self.name == "case":
            return [move(1, "b.mp3", self.folder / "B.mp3")]
        away = self.other if self.name == "across" else self.folder
        return [
            move(1, "old/a.mp3", away / "new" / "deep" / "A.mp3", prune=[encode_path(self.folder / "old")]),
            move(2, "b.mp3", away / "taken.mp3" if away == self.folder else away / "b.mp3"),
        ]

    def patch(self) -> None:
        """Take away what some file systems have not."""
        if self.name in ("no-links", "no-links-no-flags"):

            def link(*args: Any, **kwargs: Any) -> None:
                raise OSError(errno.EPERM, "no hard links here")

            os.link = link  # type: ignore[assignment]
        if self.name in ("no-links-no-flags", "tags-plain"):
            publish.rename_with = lambda *args: False  # type: ignore[assignment]
            tagging.rename_with = lambda *args: False  # type: ignore[assignment]
        if self.name.startswith("tags"):
            tagging.sound_hash = lambda fd: "the same"  # two ffmpeg a run; another test has them


def run(payload: BatchPayload, kill_at: int | None = None) -> BatchReport:
    """The batch, in this process; ends with SIGKILL at that step."""
    left = kill_at
    after = False

    def trace(frame: Any, event: str, _arg: Any) -> Any:
        nonlocal left, after
        name = frame.f_code.co_filename
        if not name.startswith(WATCHED):
            return None
        before = event == "line" and (
            EVERY_LINE or CHANGING.search(linecache.getline(name, frame.f_lineno)) is not None
        )
        if (before or after) and left is not None:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        after = before and not EVERY_LINE
        return trace

    if kill_at is not None:
        sys.settrace(trace)
    try:
        return asyncio.run(batch.execute_approved_batch(Inline("batch"), payload))
    finally:
        sys.settrace(None)


def killed(payload: BatchPayload, at: int) -> bool:
    """Run in a forked process that dies at that line; False if it ended before."""
    pid = os.fork()
    if pid == 0:
        try:
            run(payload, at)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def comparable(items: list[Item], times: bool) -> list[dict[str, Any]]:
    return [item.model_dump(exclude=set() if times else {"mtime_ns"}) for item in items]


def second_of_sound(path: Path) -> Path:
    tags = ["-metadata", "title=Old", "-metadata", "artist=Somebody"]
    subprocess.run([ffmpeg_path(), "-v", "error", "-f", "lavfi", "-i", "sine=duration=1", *tags, path], check=True)
    return path


def main(name: str, folder: Path, other: Path) -> None:
    journal = folder / "data"
    os.environ["PHAZE_DATA_DIR"] = str(journal)
    music = second_of_sound(folder / "sine.mp3") if name.startswith("tags") else None
    scenario = Scenario(name, folder, other, music)
    scenario.patch()
    places = (scenario.folder, scenario.other)
    payload = scenario.build()
    before = contents(*places)
    expected = run(payload).details
    tree = snapshot(*places, times=scenario.times)
    assert any(item.outcome == "done" for item in expected), expected
    at = 0
    while True:
        shutil.rmtree(journal)
        assert scenario.build() == payload
        if not killed(payload, at):
            break
        there = contents_with_temporaries(*places)
        assert set(before) <= there or {sha_before_or_after(item, there) for item in expected} == {True}, at
        if at % 2:
            killed(payload, at * 7919 % 60)
        details = run(payload).details
        assert comparable(details, scenario.times) == comparable(expected, scenario.times), (at, details, expected)
        assert snapshot(*places, times=scenario.times) == tree, (at, snapshot(*places), tree)
        at += 1
    sys.stdout.write(json.dumps({"kills": at, "outcomes": [item.reason or "done" for item in expected]}))


def sha_before_or_after(item: Item, there: set[str]) -> bool:
    """What a tag write leaves at every moment: the old file or the new one, whole."""
    return item.action == "tag" and bool({item.sha256_before, item.sha256} & there)


def contents_with_temporaries(*folders: Path) -> set[str]:
    return {sha(path.read_bytes()) for folder in folders for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
