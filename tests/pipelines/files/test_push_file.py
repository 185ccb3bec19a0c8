"""push_file against a real sshd and a real rsync."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.context import policy_of
from pipelines.errors import ChildDied, InputChanged, InputRejected, NotGranted, RecordNotFoundError, ToolMissing
from pipelines.files import rsync, ssh
from pipelines.files.push_file import Push, PushPayload, push_file
from pipelines.files.transfer import Mismatch, Refused, Stalled, Unreachable
from pipelines.payload import decode_path, encode_path
from tests.far_side import FarSide, far_side
from tests.faulty import faulty_line
from tests.pipelines.files.bucket import MIB, Context, make_file

SHA256_TOOLS = ("sha256sum", "shasum")


@pytest.fixture(scope="session")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarSide]:
    with far_side(tmp_path_factory.mktemp("far")) as running:
        yield running


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever happens, no key is left behind."""
    folder = tmp_path_factory.mktemp("a place with 'quotes' and spaces")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


@pytest.fixture
def music(tmp_path: Path) -> Path:
    folder = tmp_path / "music"
    folder.mkdir()
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "the other machine"
    folder.mkdir()
    return folder


def payload_for(far: FarSide, path: Path, there: Path, **fields: Any) -> PushPayload:
    found = path.stat()
    values = {
        "version": f"{hashlib.sha256(path.read_bytes()).hexdigest()}:test",
        "path": encode_path(path),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "root": encode_path(next(p for p in path.parents if p.name == "music")),
        "host": "127.0.0.1",
        "port": far.port,
        "user": far.user,
        "destination": encode_path(there),
        "host_keys": [far.host_key],
        "stall": 20.0,
    }
    return PushPayload(**{**values, **fields})


def context(far: FarSide) -> Context:
    return Context({"ssh-key": lambda _question: {"key": far.key}})


async def push(far: FarSide, payload: PushPayload) -> Push:
    async with asyncio.timeout(60):
        return await push_file(context(far), payload)


NAMES = [
    b"plain.mp3",
    b"two  spaces and a tab\t.mp3",
    b'it\'s "quoted" `id` $(touch pwned) ;& | > x.mp3',
    b"new\nline.mp3",
    b"\xff\xfe not UTF-8 \x01.mp3",
    b"-e sh -c pwned",
    b"#hash",
    b"; semicolon",
    b"glob [1]*?{a,b}\\.mp3",
    b"127.0.0.1:colon.mp3",
    "cafe\u0301 \u97f3\u697d.flac".encode(),
    b"x" * 255,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_every_name_arrives_to_the_letter(far: FarSide, music: Path, there: Path, name: bytes) -> None:
    album = music / os.fsdecode(b"al'bum [" + name[:40] + b"]")
    album.mkdir()
    path = make_file(album, 1000, name)
    result = await push(far, payload_for(far, path, there))
    arrived = there / album.name / path.name
    assert arrived.read_bytes() == path.read_bytes()
    assert [p for p in there.rglob("*") if p.is_file()] == [arrived]
    assert decode_path(result.path) == arrived
    assert (result.outcome, result.verified, result.bytes) == ("done", "far-sha256", 1000)
    assert int(arrived.stat().st_mtime) == int(path.stat().st_mtime)


@pytest.mark.parametrize("size", [0, 1, 3 * MIB])
async def test_every_size_arrives(far: FarSide, music: Path, there: Path, size: int) -> None:
    path = make_file(music, size)
    result = await push(far, payload_for(far, path, there))
    assert (there / path.name).read_bytes() == path.read_bytes()
    assert result.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    again = await push(far, payload_for(far, path, there))
    assert again.sent < 4096


def still_runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


async def test_a_push_that_is_killed_goes_on_where_it_was(far: FarSide, music: Path, there: Path) -> None:
    path = make_file(music, 12 * MIB)
    async with faulty_line(far.port) as line:
        line.rate = 16 * MIB
        payload = payload_for(far, path, there, port=line.here)
        running = asyncio.create_task(push_file(context(far), payload))
        while line.sent < 7 * MIB:
            await asyncio.sleep(0.01)
        below = psutil.Process().children(recursive=True)  # sshd's are among them
        ours = [child for child in below if child.name() in ("rsync", "ssh") and "--server" not in child.cmdline()[1:2]]
        assert {child.name() for child in ours} == {"rsync", "ssh"}
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with asyncio.timeout(10):  # ssh is killed by rsync's group, and gone a moment later
            while any(still_runs(child) for child in ours):
                await asyncio.sleep(0.02)
        partial = there / rsync.PARTIAL / path.name
        async with asyncio.timeout(30):
            while not partial.exists():
                await asyncio.sleep(0.02)
        assert not (there / path.name).exists()
        kept, line.sent, line.rate = partial.stat().st_size, 0, None
        result = await push(far, payload)
        assert line.sent < 12 * MIB - kept + MIB
    assert result.resumed >= kept - MIB
    assert kept > MIB
    assert (there / path.name).read_bytes() == path.read_bytes()
    assert not partial.parent.exists()


@pytest.mark.parametrize("name", [b"a b.mp3", NAMES[2], NAMES[3], NAMES[4]], ids=range(4))
async def test_of_a_file_that_goes_or_changes_half_way_nothing_is_left_over_there(
    far: FarSide, music: Path, there: Path, name: bytes
) -> None:
    path = make_file(music, 4 * MIB, name)
    payload = payload_for(far, path, there)
    partial = there / rsync.PARTIAL / path.name
    for change in (lambda: path.write_bytes(b"another"), path.unlink):
        partial.parent.mkdir()
        partial.write_bytes(b"what has arrived of it")
        (partial.parent / "of another file").touch()
        change()
        (music / "other").touch()
        with pytest.raises((InputChanged, RecordNotFoundError)):
            await push(far, payload)
        assert [left.name for left in partial.parent.iterdir()] == ["of another file"]
        (partial.parent / "of another file").unlink()
        partial.write_bytes(b"what has arrived of it")
        with pytest.raises((InputChanged, RecordNotFoundError)):
            await push(far, payload)
        assert list(there.iterdir()) == []


async def test_a_file_that_is_gone_is_a_dead_letter_though_the_far_side_is_away(
    far: FarSide, music: Path, there: Path
) -> None:
    path = make_file(music, 10)
    payload = payload_for(far, path, there, port=1)
    path.rename(music / "other")
    for asked in (context(far), Context({})):
        with pytest.raises(RecordNotFoundError):
            await push_file(asked, payload)


async def test_a_line_that_is_cut_or_falls_silent_is_told_and_retried(far: FarSide, music: Path, there: Path) -> None:
    path = make_file(music, 4 * MIB)
    async with faulty_line(far.port) as line:
        payload = payload_for(far, path, there, port=line.here, stall=2.0)
        line.cut = 2 * MIB
        with pytest.raises(Unreachable):
            await push(far, payload)
        line.sent, line.cut, line.hang = 0, None, MIB
        with pytest.raises(Unreachable):
            await push(far, payload)
        line.hang = None
        assert (await push(far, payload)).verified == "far-sha256"


async def test_nobody_there_counts_against_the_circuit_and_a_refused_key_does_not(
    far: FarSide, music: Path, there: Path, tmp_path: Path
) -> None:
    from agent.phoenix.breaker import outcome_of

    path = make_file(music, 10)
    with pytest.raises(Unreachable, match="refused") as nobody:
        await push(far, payload_for(far, path, there, port=1))
    assert outcome_of(nobody.value) == "failed"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    stranger = Context({"ssh-key": lambda _question: {"key": (tmp_path / "other").read_text()}})
    with pytest.raises(Refused, match="authorized_keys") as refused:
        await push_file(stranger, payload_for(far, path, there))
    assert outcome_of(refused.value) == "void"
    with pytest.raises(Refused, match="PHAZE_PUSH_KEY"):
        await push_file(Context({"ssh-key": lambda _q: {"key": "no key"}}), payload_for(far, path, there))
    with pytest.raises(NotGranted):
        await push_file(Context({}), payload_for(far, path, there))


async def test_another_host_key_is_refused_before_a_byte_of_the_file(
    far: FarSide, music: Path, there: Path, tmp_path: Path
) -> None:
    path = make_file(music, 10)
    keys = {}
    for kind in ("ed25519", "ecdsa"):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", tmp_path / kind], check=True)
        keys[kind] = (tmp_path / f"{kind}.pub").read_text()
    for kind in keys:
        with pytest.raises(InputRejected) as refused:
            await push(far, payload_for(far, path, there, host_keys=[keys[kind]]))
        assert refused.value.reason == "host-key-changed"
    assert not list(there.iterdir())
    both = payload_for(far, path, there, host_keys=[keys["ecdsa"], f"nas,10.0.0.1 {far.host_key}"])
    assert (await push(far, both)).outcome == "done"


@pytest.mark.parametrize("line", ["", "# only a comment", "nas ssh-ed25519", "nas ssh-ed25519 AAAA", "* ssh-rsa !!!"])
def test_what_is_no_public_key_is_refused(line: str) -> None:
    with pytest.raises(InputRejected, match="host-key-unreadable"):
        ssh.known_hosts([line])


async def test_what_the_far_side_lacks_is_told(far: FarSide, music: Path, there: Path, tmp_path: Path) -> None:
    path = make_file(music, 10)
    programs = tmp_path / "bin"
    programs.mkdir()
    far.set_path(str(programs))
    try:
        with pytest.raises(ToolMissing, match="there is no rsync on"):
            await push(far, payload_for(far, path, there))
        (programs / "rsync").symlink_to(shutil.which("rsync") or "")
        result = await push(far, payload_for(far, path, there))
        assert (result.verified, result.outcome) == ("rsync-checksum", "done")
    finally:
        far.set_path(os.environ["PATH"])


async def test_what_is_there_and_wrong_is_replaced_though_it_looks_the_same(
    far: FarSide, music: Path, there: Path
) -> None:
    """Same size and time: rsync's quick look takes it for the file, its hash does not."""
    path = make_file(music, 1000)
    (there / path.name).write_bytes(bytes(1000))
    os.utime(there / path.name, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    result = await push(far, payload_for(far, path, there))
    assert (result.passes, result.verified) == (2, "far-sha256")
    assert (there / path.name).read_bytes() == path.read_bytes()


async def test_a_far_side_that_never_holds_what_was_sent_is_not_called_done(
    far: FarSide, music: Path, there: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("rsync", "xargs", "cat"):
        (programs / name).symlink_to(shutil.which(name) or "")
    (programs / "sha256sum").write_text(f"#!/bin/sh\necho {'0' * 64}  x\n")
    (programs / "sha256sum").chmod(0o755)
    far.set_path(str(programs))
    try:
        with pytest.raises(Mismatch, match="after 3 passes"):
            await push(far, payload_for(far, make_file(music, 10), there))
    finally:
        far.set_path(os.environ["PATH"])


async def test_a_missing_folder_names_the_remedy(far: FarSide, music: Path, there: Path) -> None:
    payload = payload_for(far, make_file(music, 10), there / "not" / "there")
    with pytest.raises(Refused, match="make the folder there"):
        await push(far, payload)


async def test_a_file_that_changed_or_is_gone_is_told_apart(far: FarSide, music: Path, there: Path) -> None:
    path = make_file(music, 64)
    payload = payload_for(far, path, there)
    path.write_bytes(bytes(64))
    with pytest.raises(InputChanged):
        await push(far, payload)
    path.write_bytes(b"longer" * 20)
    with pytest.raises(InputChanged):
        await push(far, payload)
    path.unlink()
    (music / "other").touch()
    with pytest.raises(RecordNotFoundError):
        await push(far, payload)
    shutil.rmtree(music)
    with pytest.raises(OSError, match="mounted"):
        await push(far, payload)


async def test_the_key_is_nobody_elses_and_the_users_own_ssh_is_not_asked(
    far: FarSide, music: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_RSH", "false")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    seen: list[tuple[int, int]] = []
    run = ssh.run

    async def looking(folder: Path, *args: Any, **options: Any) -> ssh.Done:
        seen.append((stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE((folder / "key").stat().st_mode)))
        return await run(folder, *args, **options)

    monkeypatch.setattr(ssh, "run", looking)
    await push(far, payload_for(far, make_file(music, 10), there))
    assert set(seen) == {(0o700, 0o600)}


async def test_what_a_killed_worker_left_is_removed_by_the_next_push_even_of_a_file_that_is_gone(
    far: FarSide, music: Path, there: Path
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = Path(tempfile.gettempdir()) / f"{ssh.PREFIX}{dead.pid}-abc"
    left.mkdir()
    (left / "key").write_text("secret")
    payload = payload_for(far, make_file(music, 10), there)
    make_file(music, 10, "another.mp3")
    (music / "a b.mp3").unlink()
    with pytest.raises(RecordNotFoundError):
        await push(far, payload)
    assert not left.exists()


async def test_a_missing_program_is_told_before_anything_is_done(
    far: FarSide, music: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = payload_for(far, make_file(music, 10), there)
    monkeypatch.setenv("PATH", str(music))
    with pytest.raises(ToolMissing, match="apt-get install rsync"):
        await push(far, payload)


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "-oProxyCommand=x"}, {"host": "a b"}, {"host": ""}, {"host": "a;b"}, {"user": "-x"}, {"user": "a b"},
        {"destination": "relative"}, {"destination": "/in/a[1]"}, {"destination": "/in/%2A"},
        {"destination": "/a/../b"}, {"destination": "/a%0Ab"}, {"host_keys": []}, {"port": 0},
    ],
)  # fmt: skip
def test_a_payload_that_would_mean_something_else_over_there_is_refused(fields: dict[str, Any]) -> None:
    values = {
        "version": "v",
        "path": "/a",
        "size": 1,
        "host": "h",
        "user": "u",
        "destination": "/in",
        "host_keys": ["k"],
    }
    PushPayload(**values)
    with pytest.raises(ValidationError):
        PushPayload(**{**values, **fields})


def test_the_dependency_is_the_host_and_the_bound_follows_the_size() -> None:
    values = {"version": "v", "path": "/a", "host": "nas", "user": "u", "destination": "/in", "host_keys": ["k"]}
    policy = policy_of(push_file)
    assert policy.dependency is not None
    assert policy.dependency(PushPayload(**values, size=1)) == "ssh:nas:22"
    assert policy.timeout(PushPayload(**values, size=1)) < policy.timeout(PushPayload(**values, size=10**9))


# What rsync says.


@pytest.mark.parametrize(
    ("code", "said", "kind", "word"),
    [
        (255, "ssh: connect to host x port 22: Connection timed out", Stalled, "timed out"),
        (30, "rsync error: timeout in data send/receive (code 30) at io.c(195)", Stalled, "nothing moved"),
        (12, "rsync: connection unexpectedly closed (0 bytes received so far) [sender]", Unreachable, "closed"),
        (11, 'rsync: [receiver] write failed on "/in/a": No space left on device (28)', Refused, "make room"),
        (23, 'rsync: [receiver] mkstemp "/in/.a" failed: Keine Berechtigung (13)', Refused, "write there"),
        (23, 'rsync: [receiver] mkstemp "/in/.a" failed: File name too long (36)', InputRejected, "name-too-long"),
        (1, "rsync: --secluded-args: unknown option", Refused, "code 1"),
        (-9, "", Unreachable, "code -9"),
    ],
)
def test_ends_of_rsync_are_told_apart(code: int, said: str, kind: type[Exception], word: str) -> None:
    found = rsync.trouble(ssh.Done(code, b"", said), "nas")
    assert type(found) is kind
    assert word in str(found)


@given(st.integers(0, 10**15), st.integers(0, 100), st.binary(max_size=40))
def test_progress_is_read_whatever_stands_before_it(done: int, percent: int, noise: bytes) -> None:
    line = f"\r{done:15d} {percent:3d}%  110.53MB/s    0:00:00".encode()
    assert rsync.progress_of(noise + line) == (done, percent)


@given(st.binary(max_size=200))
def test_no_output_breaks_the_readers(noise: bytes) -> None:
    rsync.progress_of(noise)
    rsync.stats_of(noise)
    rsync.trouble(ssh.Done(23, noise, noise.decode("utf-8", "replace")), "nas")


def test_child_died_is_not_what_a_dead_rsync_is() -> None:
    """It would count as a death of the job's own, and a killed rsync is the line's or the operator's."""
    assert not isinstance(rsync.trouble(ssh.Done(-15, b"", ""), "nas"), ChildDied)
