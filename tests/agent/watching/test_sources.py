"""What sources tell, and what is known of watchfiles that the watcher has to make up for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path
from threading import Event

import psutil
import pytest

from agent.watching.sources import Source, SourceFailed, notified, polled, remote_mount


def make(source: str, root: Path) -> Source:
    return notified(os.fsencode(root), Event()) if source == "notified" else polled(os.fsencode(root), 1.0, Event())


def told(source: Source, wanted: set[bytes], within: float = 30.0) -> set[bytes]:
    """All that is told until `wanted` is."""
    found: set[bytes] = set()
    deadline = time.monotonic() + within
    while not wanted <= found:
        assert time.monotonic() < deadline, found
        found |= next(source)
    return found


@pytest.mark.parametrize("source", ["notified", "polled"])
def test_what_comes_changes_moves_and_goes_is_told(tmp_path: Path, source: str) -> None:
    root = tmp_path / "root"
    (root / "old").mkdir(parents=True)
    for name in ("old/a.mp3", "b.mp3", "c.mp3", "d.mp3"):
        (root / name).write_text("x")
    events = make(source, root)
    try:
        assert next(events) == set(), "it is in place"
        (root / "old").rename(root / "new")
        (root / "b.mp3").rename(root / "bb.mp3")
        (root / "c.mp3").unlink()
        (root / "d.mp3").write_text("changed")
        os.mkfifo(root / "pipe.mp3")
        (root / "deep" / "er").mkdir(parents=True)
        (root / "deep" / "er" / "e.mp3").write_text("x")
        seen = {os.fsencode(root / name) for name in ("b.mp3", "bb.mp3", "c.mp3", "d.mp3")}
        folders = ("new", "old") if source == "notified" else ("new/a.mp3", "old/a.mp3", "deep/er/e.mp3")
        told(events, seen | {os.fsencode(root / name) for name in folders})
        time.sleep(1.1)  # what came in a new folder before it was watched is found by a look into it
        (root / "deep" / "er" / "f.mp3").write_text("x")
        told(events, {os.fsencode(root / "deep" / "er" / "f.mp3")})
    finally:
        events.close()


def test_polling_tells_names_that_are_not_utf8_follows_no_link_and_ends_no_loop(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "out").mkdir()
    (root / "loop").symlink_to(root)
    (root / "link").symlink_to(tmp_path / "out")
    odd = os.fsencode(root) + b"/\xff.mp3"
    events = make("polled", root)
    assert next(events) == set()
    (tmp_path / "out" / "secret.mp3").touch()
    Path(os.fsdecode(odd)).touch()
    assert told(events, {odd}) == {odd}
    shutil.rmtree(root)
    with pytest.raises(SourceFailed, match="cannot be read"):
        told(events, {b"never"})


def test_a_name_that_is_not_utf8_ends_the_notices_also_when_it_is_only_read(tmp_path: Path) -> None:
    events = make("notified", tmp_path)
    assert next(events) == set()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.mp3")).touch()
    with pytest.raises(SourceFailed, match=r"decode.*name in UTF-8") as failed:
        told(events, {b"never"})
    assert not failed.value.again
    events = make("notified", tmp_path)
    assert next(events) == set()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.mp3")).read_bytes()
    with pytest.raises(SourceFailed, match="decode"):
        told(events, {b"never"})


def test_a_loop_of_links_does_no_harm_to_the_notices(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    events = make("notified", tmp_path)
    assert next(events) == set()
    (tmp_path / "a.mp3").touch()
    told(events, {os.fsencode(tmp_path / "a.mp3")})
    events.close()


def test_a_root_that_notices_cannot_be_had_of_says_why(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.mkdir()
    with pytest.raises(SourceFailed, match="UTF-8") as failed:
        next(make("notified", odd))
    assert not failed.value.again
    with pytest.raises(SourceFailed, match="not there") as failed:
        next(make("notified", tmp_path / "gone"))
    assert failed.value.again


CODE = """
import sys
from threading import Event
from agent.watching.sources import notified
print(next(notified(sys.argv[1].encode(), Event())))
"""


@pytest.mark.parametrize(
    ("limit", "remedy"), [("watches", "fs.inotify.max_user_watches"), ("instances", "fs.inotify.max_user_instances")]
)
def test_too_many_folders_for_notices_are_told_with_the_remedy(tmp_path: Path, limit: str, remedy: str) -> None:
    """In a user namespace of its own, which has its own limits."""
    (tmp_path / "a" / "b" / "c" / "d" / "e").mkdir(parents=True)
    script = f'echo 0 > /proc/sys/user/max_inotify_{limit} && exec "$@"'
    argv = ["unshare", "-Ur", "sh", "-c", script, "sh", sys.executable, "-c", CODE, str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Ur", "true"], check=False).returncode != 0:
        pytest.skip("no user namespaces here")
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1, run.stdout
    assert f"raise the sysctl {remedy}" in run.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, whom something is denied")
def test_a_folder_that_may_not_be_read_refuses_the_notices() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        (Path(place) / "locked").mkdir(mode=0)
        argv = [sys.executable, "-c", f"import os\n{CODE.replace('print(', 'os.seteuid(65534); print(')}", place]
        run = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert "not all of its folders may be read" in run.stderr, run.stdout
    assert "PHAZE_UID" in run.stderr


WATCH = """
import os, sys, threading
from agent import logs
from agent.settings import load_settings
from agent.watching import root
root.RETRY = 0.1
logs.configure("info", "json", part="watch")
stop = threading.Event()
threading.Timer(3.0, stop.set).start()
settings = load_settings(agent_token="t")
os.seteuid(65534)
root.WatchedRoot(sys.argv[1].encode(), settings, stop).run()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, whom something is denied")
def test_a_root_that_stays_unreadable_is_told_once_with_the_remedy_and_not_at_every_look() -> None:
    with tempfile.TemporaryDirectory() as place:
        run = subprocess.run(
            [sys.executable, "-c", WATCH, place], capture_output=True, text=True, timeout=60, check=False
        )
    lines = [line for line in run.stderr.splitlines() if "watch.begins_anew" in line]
    assert 1 <= len(lines) <= 3, run.stderr  # for the notices, for the polling, and at most one more a minute
    assert all("PHAZE_UID" in line for line in lines)


Mount = namedtuple("Mount", "mountpoint fstype")


@pytest.mark.parametrize(
    ("kind", "root", "polls"),
    [
        ("nfs4", "/srv/music/a", True),
        ("nfs4", "/srv", True),
        ("nfs4", "/srv/musical", False),
        ("cifs", "/srv/music", True),
        ("fuse.sshfs", "/srv/music", True),
        ("fuseblk", "/srv/music", False),
        ("ext4", "/srv/music", False),
    ],
)
def test_mounts_that_others_change_are_polled(
    monkeypatch: pytest.MonkeyPatch, kind: str, root: str, polls: bool
) -> None:
    found = [Mount("/", "ext4"), Mount("/srv/music", kind)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    said = remote_mount(os.fsencode(root))
    assert said == (f"{kind} on /srv/music" if polls else None)


def test_this_machines_own_disk_is_not_polled(tmp_path: Path) -> None:
    assert remote_mount(os.fsencode(tmp_path)) is None
