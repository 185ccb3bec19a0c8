"""Moves: what is done, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.context import InlineContext, policy_of
from pipelines.errors import ChildDied, InputRejected, LeaseLost
from pipelines.files import moving
from pipelines.files.checking import look
from pipelines.files.execute_approved_batch import BatchPayload, Move, TagWrite, Unsettled, execute_approved_batch
from pipelines.files.folders import Place, Roots
from pipelines.files.journal import OVER, JournalError, item_log, journal_path
from pipelines.files.publish import RENAME_EXCHANGE, rename_with
from pipelines.payload import encode_path
from tests.conftest import REPO
from tests.pipelines.files.batches import move, run, sha, tree

module: Any = sys.modules[execute_approved_batch.__module__]

HASH = "0" * 64


def python(code: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=REPO, check=False)


@pytest.fixture
def music(tmp_path: Path) -> Path:
    folder = tmp_path / "music"
    (folder / "album").mkdir(parents=True)
    (folder / "album" / "a.mp3").write_bytes(b"a" * 5000)
    (folder / "b.mp3").write_bytes(b"bb")
    return folder


def test_a_file_is_moved_with_all_that_belongs_to_it_and_missing_folders_are_made_like_their_parent(
    music: Path,
) -> None:
    source, target = music / "b.mp3", music / "new" / "deep" / "B (live).mp3"
    source.chmod(0o640)
    os.utime(source, ns=(1, 1_234_567_890_123_456_789))
    music.chmod(0o2775)
    inode = source.stat().st_ino
    report = run(move(source, target), roots=[music])
    assert (report.outcome, report.reason, report.items) == ("done", None, {"1": "done"})
    [item] = report.details
    assert (item.path, item.sha256, item.size) == (encode_path(target), sha(b"bb"), 2)
    assert item.made == [encode_path(music / "new"), encode_path(music / "new" / "deep")]
    found = target.stat()
    assert (found.st_ino, found.st_mode & 0o777, found.st_mtime_ns) == (inode, 0o640, 1_234_567_890_123_456_789)
    assert {path.stat().st_mode & 0o7777 for path in (music / "new", music / "new" / "deep")} == {0o2775}
    assert not source.exists()


def test_across_file_systems_times_mode_and_attributes_come_along(music: Path, small_disk: Path) -> None:
    source, target = music / "b.mp3", small_disk / "b.mp3"
    source.chmod(0o604)
    os.setxattr(source, "user.note", b"dear")
    os.utime(source, ns=(1, 1_234_567_890_123_456_789))
    report = run(move(source, target), roots=[music, small_disk])
    assert report.items == {"1": "done"}
    assert (target.stat().st_mode & 0o777, target.stat().st_mtime_ns) == (0o604, 1_234_567_890_123_456_789)
    if "attribute" not in report.details[0].detail:
        assert os.getxattr(target, "user.note") == b"dear"
    assert [path.name for path in small_disk.iterdir()] == ["b.mp3"]
    assert not source.exists()


def test_each_failure_is_told_and_the_others_go_on(music: Path) -> None:
    a, b = music / "album" / "a.mp3", music / "b.mp3"
    changed = move(b, music / "c.mp3", name="changed", sha256=sha(b"other"))
    (music / "fifo").mkdir()
    os.mkfifo(music / "pipe.mp3")
    (music / "link.mp3").symlink_to(b)
    report = run(
        move(music / "nope.mp3", music / "x.mp3", name="vanished"),
        move(music / "no" / "nope.mp3", music / "x.mp3", name="vanished-folder"),
        changed,
        move(a, b, name="taken"),
        move(b, b, name="same"),
        move(music / "album", music / "other", name="folder"),
        move(music / "pipe.mp3", music / "x.mp3", name="pipe"),
        move(music / "link.mp3", music / "x.mp3", name="link"),
        move(b, music / ("x" * 256), name="long"),
        move(b, music / "album" / "a.mp3" / "x", name="no-folder"),
        move(a, music / "done.mp3", name="fine"),
        roots=[music],
    )
    assert report.items == {
        "vanished": "vanished",
        "vanished-folder": "vanished",
        "changed": "source-changed",
        "taken": "destination-exists",
        "same": "same-path",
        "folder": "not-a-file",
        "pipe": "not-a-file",
        "link": "link",
        "long": "name-too-long",
        "no-folder": "not-a-folder",
        "fine": "done",
    }
    assert report.outcome == "partial"
    assert report.reason == "10 of 11 not done, the first: vanished"
    assert (music / "done.mp3").read_bytes() == b"a" * 5000
    assert b.read_bytes() == b"bb"
    assert not [path for path in music.rglob("*") if path.name.startswith(".phaze-")]


def test_a_batch_of_failures_alone_is_rejected(music: Path) -> None:
    report = run(move(music / "x", music / "y"), roots=[music])
    assert (report.outcome, report.items) == ("rejected", {"1": "vanished"})


@pytest.mark.parametrize(
    "path",
    [
        "{root}/../out/x.mp3",
        "{root}/album/../../out/x.mp3",
        "{root}/%2E%2E/out/x.mp3",
        "{root}/./x.mp3",
        "{root}//x.mp3",
        "{root}/x.mp3/",
        "{root}",
        "{root}/",
        "x.mp3",
        "",
        "/",
        "{root}/nul%00.mp3",
        "{out}/x.mp3",
        "{root}-evil/x.mp3",
        "{ROOT}/x.mp3",
        "/proc/self/root{out}/x.mp3",
        "{root}/out/x.mp3",
        "{root}/loop/x.mp3",
        "{root}/up/out/x.mp3",
    ],
)
@pytest.mark.parametrize("end", ["source", "destination"])
def test_nothing_leads_out_of_the_roots(music: Path, tmp_path: Path, path: str, end: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "x.mp3").write_bytes(b"bb")
    (music / "out").symlink_to(out)
    (music / "up").symlink_to("..")
    (music / "loop").symlink_to("loop")
    path = path.format(root=encode_path(music), out=encode_path(out), ROOT=encode_path(music).upper())
    fields = {"source": encode_path(music / "b.mp3"), "destination": encode_path(music / "c.mp3"), "sha256": sha(b"bb")}
    before = tree(tmp_path)
    report = run(Move(proposal_id="1", **{**fields, end: path}), roots=[music])
    assert report.items["1"] in {"bad-path", "outside-roots", "link-in-path"}
    del before[str(out)], before[str(music)]
    after = {name: content for name, content in tree(tmp_path).items() if f"{tmp_path}/data" not in name}
    assert {name: content for name, content in after.items() if name in before} == before


def test_a_folder_that_is_swapped_for_a_link_at_any_moment_leads_nowhere(music: Path, tmp_path: Path) -> None:
    """Somebody swaps a folder and a link all the time; files only ever arrive in the folder."""
    out = tmp_path / "out"
    for folder in (out, music / "door"):
        folder.mkdir()
    (music / "aside").symlink_to(out)
    stop = threading.Event()
    opened = os.open(music, os.O_RDONLY)

    def swap() -> None:
        while not stop.is_set():
            rename_with(RENAME_EXCHANGE, Place(opened, b"door"), Place(opened, b"aside"))

    names = [music / f"{number}.mp3" for number in range(60)]
    for path in names:
        path.write_bytes(path.name.encode())
    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[str] = set()
    try:
        for turn in range(200):
            waiting = [path for path in names if path.exists()]
            if not waiting:
                break
            moves = [move(path, music / "door" / path.name, name=path.name) for path in waiting]
            seen |= set(run(*moves, roots=[music], batch=str(turn)).items.values())
    finally:
        stop.set()
        swapper.join()
        os.close(opened)
    assert list(out.iterdir()) == []
    assert seen <= {"done", "link-in-path", "not-a-folder"}
    left = [path.read_bytes() for path in music.rglob("*.mp3") if path.stem.isdigit()]
    assert sorted(left) == sorted(path.name.encode() for path in names)


def test_a_root_may_be_a_link_and_what_is_not_allowed_here_is_no_root(
    music: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "linked").symlink_to(music)
    linked = tmp_path / "linked"
    report = run(move(linked / "b.mp3", linked / "c.mp3", sha256=sha(b"bb")), roots=[linked])
    assert report.items == {"1": "done"}
    monkeypatch.setenv("PHAZE_MOVE_ROOTS", f"{tmp_path}/elsewhere:{music}/album/")
    with pytest.raises(InputRejected, match="root-not-allowed"):
        run(move(music / "c.mp3", music / "d.mp3"), roots=[music])
    inside = music / "album"
    assert run(move(inside / "a.mp3", inside / "d.mp3"), roots=[inside]).outcome == "done"
    with pytest.raises(InputRejected, match="bad-root"):
        run(move(inside / "d.mp3", inside / "e.mp3"), roots=[Path("relative")])


def test_a_root_that_is_not_there_is_told(music: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    report = run(
        move(away / "x", away / "y", name="1"),
        move(music / "b.mp3", away / "y", name="2"),
        move(music / "b.mp3", music / "c.mp3", name="3"),
        roots=[music, away],
    )
    assert report.items == {"1": "root-missing", "2": "root-missing", "3": "done"}


@pytest.mark.parametrize(
    "name",
    [
        b"\xff\xfe.mp3",
        "é.mp3".encode(),
        "e\u0301.mp3".encode(),
        b"new\nline\r.mp3",
        b"-rf .mp3",
        b"n" * 255,
        b"%41~.mp3",
    ],
    ids=["not-utf8", "nfc", "nfd", "newline", "dash", "255", "percent"],
)
def test_any_name_is_moved_there_and_back(music: Path, name: bytes) -> None:
    odd = Path(os.fsdecode(os.fsencode(music) + b"/" + name))
    assert run(move(music / "b.mp3", odd), roots=[music], batch="there").items == {"1": "done"}
    assert os.fsencode(odd) in [os.fsencode(path) for path in music.iterdir()]
    back = Move.model_validate(json.loads(move(odd, music / "b.mp3").model_dump_json()))
    assert run(back, roots=[music], batch="back").items == {"1": "done"}
    assert (music / "b.mp3").read_bytes() == b"bb"


def test_a_full_disk_costs_its_own_items_and_leaves_nothing(music: Path, small_disk: Path) -> None:
    large, small = music / "large.mp3", music / "b.mp3"
    large.write_bytes(os.urandom(2 << 20))
    report = run(
        move(large, small_disk / "new" / "large.mp3", name="1"),
        move(small, small_disk / "b.mp3", name="2"),
        roots=[music, small_disk],
    )
    assert report.items == {"1": "disk-full", "2": "done"}
    assert tree(small_disk) == {str(small_disk / "b.mp3"): b"bb"}
    assert large.stat().st_size == 2 << 20


def test_a_file_that_is_too_large_for_the_disk_is_told(music: Path) -> None:
    code = f"""
import resource, sys
from pathlib import Path
from tests.pipelines.files.batches import move, run
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
from pipelines.files import execute_approved_batch, moving
moving.ItemLog.ever = lambda self, step: [{{"made": []}}] if step == "cross-device" else []
music = Path({str(music)!r})
print(run(move(music / "album/a.mp3", music / "c.mp3"), roots=[music]).items)
"""
    done = python(code)
    assert done.stdout.strip() == "{'1': 'file-too-large'}"
    assert sorted(path.name for path in music.iterdir()) == ["album", "b.mp3"]


def test_what_this_user_may_not_do_is_told_and_undone(request: pytest.FixtureRequest) -> None:
    """A folder that can be read and not written: first as the destination, then as the source."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    nobody = 65534
    music = Path(tempfile.mkdtemp(prefix="phaze-test-"))
    request.addfinalizer(lambda: shutil.rmtree(music))
    mine, theirs = music / "mine", music / "album"
    for path in (mine, theirs):
        path.mkdir()
    music.chmod(0o755)
    (theirs / "a.mp3").write_bytes(b"a")
    (mine / "m.mp3").write_bytes(b"m")
    for path in (mine, mine / "m.mp3"):
        os.chown(path, nobody, nobody)
    theirs.chmod(0o755)
    code = f"""
import os
from pathlib import Path
from tests.pipelines.files.batches import move, run
os.environ["PHAZE_DATA_DIR"] = {str(mine / "warm")!r}
run(move(Path("/x/y"), Path("/x/z")), roots=[Path("/x")])  # loads what is loaded late
os.environ["PHAZE_DATA_DIR"] = {str(mine / "data")!r}
os.setgid({nobody}); os.setuid({nobody})
mine, theirs = Path({str(mine)!r}), Path({str(theirs)!r})
print(run(move(mine / "m.mp3", theirs / "m.mp3", name="1"), move(theirs / "a.mp3", mine / "deep" / "a.mp3", name="2"),
          roots=[Path({str(music)!r})]).items)
"""
    done = python(code)
    assert done.stdout.strip() == "{'1': 'permission-denied', '2': 'permission-denied'}", done.stderr
    assert sorted(path.name for path in theirs.iterdir()) == ["a.mp3"]
    assert (theirs / "a.mp3").stat().st_nlink == 1
    assert sorted(path.name for path in mine.iterdir()) == ["data", "m.mp3", "warm"]


def test_case_alone_is_renamed_where_case_matters(music: Path) -> None:
    assert run(move(music / "b.mp3", music / "B.MP3"), roots=[music]).items == {"1": "done"}
    assert sorted(path.name for path in music.iterdir()) == ["B.MP3", "album"]


def test_case_alone_is_renamed_where_it_does_not_and_nothing_is_overwritten_there(exfat: Path) -> None:
    (exfat / "song.mp3").write_bytes(b"song")
    (exfat / "other.mp3").write_bytes(b"other")
    report = run(
        move(exfat / "other.mp3", exfat / "SONG.mp3", name="1"),
        move(exfat / "song.mp3", exfat / "Song.MP3", name="2"),
        move(exfat / "other.mp3", exfat / "new" / "other.mp3", name="3"),
        roots=[exfat],
    )
    assert report.items == {"1": "destination-exists", "2": "done", "3": "done"}
    assert tree(exfat) == {
        str(exfat / "Song.MP3"): b"song",
        str(exfat / "new"): None,
        str(exfat / "new" / "other.mp3"): b"other",
    }


def test_done_again_it_is_answered_from_the_journal(music: Path) -> None:
    proposal = move(music / "b.mp3", music / "c.mp3")
    first = run(proposal, roots=[music])
    (music / "b.mp3").write_bytes(b"bb")
    assert run(proposal, roots=[music]) == first
    assert (music / "b.mp3").exists(), "what is done is not done a second time"


def test_the_journal_of_a_batch_that_is_over_is_kept_for_ninety_days_and_removed_by_another_batch(
    music: Path, tmp_path: Path
) -> None:
    names = ("old", "young", "at-work")
    for name in names:
        (music / name).write_bytes(name.encode())
        run(move(music / name, music / f"{name}.moved"), roots=[music], batch=name)
    (music / "new").write_bytes(b"new")
    journals = {path.name.rpartition("-")[0]: path for path in (tmp_path / "data" / "journal").iterdir()}
    killed = journals["old"].with_name("killed-0.jsonl")
    killed.write_bytes(journals["old"].read_bytes().removesuffix(OVER))
    now = time.time()
    for path, days in ((journals["old"], 91), (journals["at-work"], 91), (killed, 9999), (journals["young"], 89)):
        os.utime(path, (now, now - days * 86_400))
    with journals["at-work"].open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run(move(music / "new", music / "new.moved"), roots=[music], batch="new")
    left = {path.name.rpartition("-")[0] for path in (tmp_path / "data" / "journal").iterdir()}
    assert left == {"young", "at-work", "killed", "new"}
    assert (
        run(move(music / "old", music / "old.moved", sha256=sha(b"old")), roots=[music], batch="old").outcome == "done"
    )


def test_done_again_a_journal_does_not_grow(music: Path, tmp_path: Path) -> None:
    (music / "a").write_bytes(b"a")
    asked = move(music / "a", music / "b")
    run(asked, roots=[music])
    [journal] = (tmp_path / "data" / "journal").iterdir()
    before = journal.read_bytes()
    assert before.endswith(OVER)
    run(asked, roots=[music])
    assert journal.read_bytes() == before


def test_without_its_journal_a_finished_move_is_found_finished(music: Path, tmp_path: Path) -> None:
    proposal = move(music / "b.mp3", music / "c.mp3")
    run(proposal, roots=[music])
    subprocess.run(["rm", "-r", tmp_path / "data" / "journal"], check=True)
    report = run(proposal, roots=[music])
    assert report.items == {"1": "done"}
    assert report.details[0].detail == "it was there already"


def test_a_run_whose_lease_is_lost_does_nothing_more(music: Path) -> None:
    proposal = move(music / "b.mp3", music / "c.mp3")
    payload = BatchPayload(version="1", roots=[encode_path(music)], proposals=[proposal])
    content = BatchPayload.model_dump_json(payload.model_copy(update={"version": ""}))
    with item_log(journal_path("batch", content), "7", 0):
        """A later run was here."""
    with pytest.raises(LeaseLost):
        run(proposal, roots=[music], token="6")
    assert (music / "b.mp3").exists()
    assert run(proposal, roots=[music], token="8").items == {"1": "done"}


def test_the_lease_is_checked_before_every_step(music: Path) -> None:
    class Lost(InlineContext):
        left = 1

        async def check(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise LeaseLost("gone")

    proposal = move(music / "b.mp3", music / "new" / "c.mp3")
    payload = BatchPayload(version="1", roots=[encode_path(music)], proposals=[proposal])
    with pytest.raises(LeaseLost):
        asyncio.run(execute_approved_batch(Lost(), payload))
    assert (music / "b.mp3").exists()
    assert not (music / "new" / "c.mp3").exists()


def test_an_item_whose_process_dies_or_hangs_costs_itself_alone(music: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(InlineContext):
        async def child(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            if function is module.advance and args[2] == 0:
                raise ChildDied("it was ended by SIGSEGV")
            if function is module.advance and args[2] == 1:
                await asyncio.sleep(60)
            return function(*args, **kwargs)

    monkeypatch.setattr(module, "item_seconds", lambda proposal: 0.2)
    names = [music / name for name in ("1.mp3", "2.mp3", "3.mp3")]
    for path in names:
        path.write_bytes(b"x")
    moves = [move(path, music / "new" / path.name, name=path.stem) for path in names]
    payload = BatchPayload(version="1", roots=[encode_path(music)], proposals=moves)
    report = asyncio.run(execute_approved_batch(Dying(), payload))
    assert report.items == {"1": "died", "2": "timed-out", "3": "done"}


def test_what_fails_after_the_source_is_gone_is_not_called_a_failure(
    music: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "the disk is going")

    proposal = move(music / "b.mp3", music / "new" / "c.mp3")
    original = moving._item
    monkeypatch.setattr(moving, "_item", broken)
    with pytest.raises(Unsettled, match="disk-error"):
        run(proposal, roots=[music])
    monkeypatch.setattr(moving, "_item", original)
    report = run(proposal, roots=[music])
    assert (report.items, report.details[0].made) == ({"1": "done"}, [encode_path(music / "new")])
    assert (music / "new" / "c.mp3").read_bytes() == b"bb"


def test_two_runs_are_never_in_one_step(music: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.files.journal.LOCK_SECONDS", 0.1)
    path = journal_path("batch", "x")
    with item_log(path, "1", 0), pytest.raises(JournalError, match="another run"), item_log(path, "2", 0):
        """Not reached."""


def test_without_a_journal_nothing_is_changed(music: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the data folder should be", "ascii")
    with pytest.raises(JournalError, match="PHAZE_DATA_DIR"):
        run(move(music / "b.mp3", music / "c.mp3"), roots=[music])
    assert (music / "b.mp3").exists()


def test_a_last_line_that_was_cut_off_is_as_if_it_had_not_been_written(music: Path, tmp_path: Path) -> None:
    proposal = move(music / "b.mp3", music / "new" / "c.mp3")
    first = run(proposal, roots=[music])
    [journal] = (tmp_path / "data" / "journal").iterdir()
    whole = journal.read_bytes()
    for cut in range(0, len(whole), 7):
        journal.write_bytes(whole[:cut])
        again = run(proposal, roots=[music])
        assert again.items == first.items
        assert (music / "new" / "c.mp3").read_bytes() == b"bb"


def test_a_file_that_gets_the_old_name_meanwhile_is_left_alone(music: Path, tmp_path: Path) -> None:
    """Linked, killed, and another program writes a new file under the old name before we are back."""
    proposal = move(music / "b.mp3", music / "c.mp3")
    with item_log(tmp_path / "journal", "0", 0) as log:
        assert moving.prepare(proposal, Roots([encode_path(music)]), log) is None
        os.link(music / "b.mp3", music / "c.mp3")
        (music / "new").write_bytes(b"another")
        (music / "new").replace(music / "b.mp3")
        item = moving.commit(proposal, Roots([encode_path(music)]), log)
    assert "left alone" in item.detail
    assert ((music / "b.mp3").read_bytes(), (music / "c.mp3").read_bytes()) == (b"another", b"bb")


def test_a_destination_that_appears_at_the_last_moment_is_not_overwritten(music: Path) -> None:
    proposal = move(music / "b.mp3", music / "c.mp3")
    original = moving.publish

    def late(*args: object, **kwargs: object) -> None:
        (music / "c.mp3").write_bytes(b"late")
        original(*args, **kwargs)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "publish", late)
        assert run(proposal, roots=[music]).items == {"1": "destination-exists"}
    assert ((music / "b.mp3").read_bytes(), (music / "c.mp3").read_bytes()) == (b"bb", b"late")


def test_hard_links_are_refused_as_any_destination_and_what_linux_says_where_it_cannot(music: Path) -> None:
    os.link(music / "b.mp3", music / "twin.mp3")
    assert run(move(music / "b.mp3", music / "twin.mp3"), roots=[music]).items == {"1": "destination-exists"}
    assert (music / "b.mp3").stat().st_nlink == 2
    fd = os.open(music, os.O_RDONLY)
    (music / "link").symlink_to("album")
    with pytest.raises(OSError) as caught:
        os.open("link", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    os.close(fd)
    assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)


def test_a_batch_holds_1_to_500_proposals_of_known_kinds_with_ids_of_their_own() -> None:
    moves = [Move(proposal_id=str(n), source="/m/a", destination="/m/b", sha256=HASH) for n in range(501)]
    tag = TagWrite(proposal_id="tag", source="/music/a.mp3", sha256=HASH, tags={"title": ["A"]})
    batch = BatchPayload(version="1", roots=["/music"], proposals=[moves[0], tag])
    assert BatchPayload.model_validate_json(batch.model_dump_json()) == batch
    assert policy_of(execute_approved_batch).outside_effects
    assert policy_of(execute_approved_batch).timeout(batch) == 60 + 2 * 600
    wrong = [[], moves, [moves[0], moves[0]], [{"action": "delete", "proposal_id": "3", "source": "/a"}]]
    for proposals in wrong:
        with pytest.raises(ValidationError):
            BatchPayload(version="1", roots=["/music"], proposals=proposals)
    with pytest.raises(ValidationError, match="overwrite"):
        Move(proposal_id="1", source="/m/a", destination="/m/b", sha256=HASH, overwrite=True)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="surrogate"):
        Move(proposal_id="1", source="/m/\ud800", destination="/m/b", sha256=HASH)


def test_a_look_says_what_would_be_done_and_changes_nothing(music: Path) -> None:
    a, b = music / "album" / "a.mp3", music / "b.mp3"
    proposals = [
        move(a, music / "deep" / "new" / "a.mp3", name="1"),
        move(b, a, name="2"),
        move(b, music / "x.mp3", name="3"),
        move(music / "deep" / "new" / "a.mp3", music / "y.mp3", name="4", sha256=sha(a)),
        move(a, music / "y.mp3", name="5", sha256=sha(b)),
        move(a, music / ".." / "z.mp3", name="6", sha256=sha(b)),
    ]
    before = tree(music)
    payload = BatchPayload(version="1", roots=[encode_path(music)], proposals=proposals)
    seen = {name: reason.partition(":")[0] for name, reason in look(payload).items()}
    assert tree(music) == before
    done = {"1": "", "2": "", "3": "vanished", "4": "", "5": "destination-exists", "6": "bad-path"}
    assert seen == done
    report = run(*proposals, roots=[music])
    assert {name: reason.removeprefix("done") for name, reason in report.items.items()} == done
