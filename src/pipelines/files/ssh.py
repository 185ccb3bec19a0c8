"""ssh to one pinned host, out of a private folder that holds its configuration, the host's keys and our key.

Everything that ssh reads stands in that folder, the user's and the system's configuration are not looked at, and no
other key of the host is accepted. Programs are started in the folder and name its files without a path, so that no
path has to be quoted for anybody.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines import lifeline
from pipelines.errors import InputRejected, ToolMissing
from pipelines.files.transfer import Stalled

FAR = "phaze-far"
"""What the host is called within the folder, whatever its name and port: its keys are found under it."""

CONNECTING = 15
"""Seconds to connect."""

MOST_OUTPUT = 64 << 10
"""Bytes kept of what a program says, the last ones."""

DYING = 10.0
"""Seconds for a killed program to be gone."""

PREFIX = "phaze-push-"

CONFIG = """Host {far}
  HostName {host}
  Port {port}
  User {user}
  HostKeyAlias {far}
  IdentityFile ./key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile ./known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  UpdateHostKeys no
  VerifyHostKeyDNS no
  CheckHostIP no
  BatchMode yes
  PreferredAuthentications publickey
  ConnectTimeout {connecting}
  ConnectionAttempts 1
  ServerAliveInterval {alive}
  ServerAliveCountMax 3
  ControlMaster no
  ControlPath none
  ClearAllForwardings yes
  ForwardAgent no
  ForwardX11 no
  PermitLocalCommand no
  RequestTTY no
  EscapeChar none
  LogLevel ERROR
"""

_open_folders: set[str] = set()


@dataclass(frozen=True)
class Done:
    """How a program ended: exit code, the last 64 KiB of each output."""

    code: int
    out: bytes
    err: str


def tool(name: str) -> str:
    """The path of a program. Raises ToolMissing."""
    found = shutil.which(name)
    if found is None:
        package = "openssh-client" if name == "ssh" else name
        raise ToolMissing(f"there is no {name} here; install it (Debian: apt-get install {package})")
    return found


def known_hosts(lines: Sequence[str]) -> str:
    """The lines of known_hosts (or of a host's .pub files) under our own name for it.

    Raises InputRejected (`host-key-unreadable`) for what is no public key.
    """
    found = []
    for line in lines:
        words = line.split("#")[0].split()
        if not words:
            continue
        at = 0 if _is_key(words, 0) else 1
        if not _is_key(words, at):
            raise InputRejected("host-key-unreadable", f"{line[:60]!r}; give lines as ssh-keyscan prints them")
        found.append(f"{FAR} {words[at]} {words[at + 1]}\n")
    if not found:
        raise InputRejected("host-key-unreadable", "no key of the host is given; give lines as ssh-keyscan prints them")
    return "".join(found)


def _is_key(words: list[str], at: int) -> bool:
    """Whether a type and its base64 begin at that word; the blob repeats the type (RFC 4253, 6.6)."""
    if len(words) < at + 2 or not re.fullmatch(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[A-Za-z0-9@.-]+", words[at]):
        return False
    try:
        blob = base64.b64decode(words[at + 1], validate=True)
    except ValueError:
        return False
    name = words[at].encode()
    return blob.startswith(len(name).to_bytes(4, "big") + name)


@contextlib.contextmanager
def private_folder(
    *, host: str, port: int, user: str, key: str, host_keys: Sequence[str], stall: float
) -> Iterator[Path]:
    """A folder that only this user can enter, and that is gone afterwards. `sh ./start` is ssh there."""
    known = known_hosts(host_keys)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    _open_folders.add(folder.name)
    try:
        alive = max(1, int(stall / 3))
        config = CONFIG.format(far=FAR, host=host.strip("[]"), port=port, user=user, connecting=CONNECTING, alive=alive)
        texts = {
            "config": config,
            "known_hosts": known,
            "key": key.rstrip("\n") + "\n",
            "start": lifeline.script(tool("ssh"), "-F", "./config"),
        }
        for name, text in texts.items():
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        yield folder
    finally:
        _open_folders.discard(folder.name)
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the folders that killed workers have left: a key must not outlive its push."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        ours = pid == str(os.getpid()) and folder.name in _open_folders
        with contextlib.suppress(OSError):
            if pid.isdigit() and not ours and folder.stat().st_uid == os.getuid() and not _lives(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    """Whether another process has that number. Our own folders are known by name."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return pid != os.getpid()


async def run(
    folder: Path,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    limit: float,
    on_output: Callable[[bytes], Awaitable[None]] | None = None,
) -> Done:
    """Run a program in `folder` for `limit` seconds at most; it and all it started are gone when this returns.

    It ends with this process too, and what it starts by `sh ./start` with it (lifeline). Of the environment it sees
    PATH alone. Raises Stalled.
    """
    process = await asyncio.create_subprocess_exec(
        *lifeline.command(*argv),
        cwd=folder,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": str(folder)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(limit), asyncio.TaskGroup() as group:
            out = group.create_task(_last_of(process.stdout, on_output))
            err = group.create_task(_last_of(process.stderr, None))
            group.create_task(_feed(process.stdin, stdin))
            code = await process.wait()
            _kill_group(process.pid)  # who is left of it holds our pipes open
    except TimeoutError:
        raise Stalled(f"{Path(argv[0]).name} was not done within {limit:.0f} s") from None
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    finally:
        await _end(process)
    return Done(code, out.result(), err.result().decode("utf-8", "replace"))


async def _feed(pipe: asyncio.StreamWriter, text: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        pipe.write(text)
        await pipe.drain()
    pipe.close()


async def _last_of(pipe: asyncio.StreamReader, on_output: Callable[[bytes], Awaitable[None]] | None) -> bytes:
    kept = bytearray()
    while block := await pipe.read(MOST_OUTPUT):
        kept += block
        del kept[:-MOST_OUTPUT]
        if on_output is not None:
            await on_output(block)
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the whole group: ssh is rsync's child, and neither may go on alone."""
    _kill_group(process.pid)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DYING):
            await process.wait()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def sha256_of(folder: Path, path: bytes, limit: float) -> str | None:
    """The far side's own SHA-256 (hex) of one of its files; None if it has no program for it, or lets us run none.

    The path goes over standard input to `xargs -0`: no shell ever sees it.
    """
    for program in ("sha256sum --", "shasum -a 256 --"):
        done = await run(
            folder, [tool("ssh"), "-F", "./config", FAR, f"xargs -0 {program}"], stdin=path + b"\0", limit=limit
        )
        if done.code == 255:
            return None
        # GNU marks a line whose name it had to escape with a backslash.
        match = re.match(rb"\\?([0-9a-f]{64})\s", done.out)
        if done.code == 0 and match:
            return match[1].decode()
    return None


async def remove(folder: Path, path: bytes, limit: float) -> None:
    """Remove one of the far side's files, and its folder if nothing else is in it; no error if they are not there.

    The path goes the way of `sha256_of`; the far `sh` sees it as `$0` alone. Raises Stalled.
    """
    script = """xargs -0 sh -c 'rm -f -- "$0" && rmdir -- "${0%/*}"'"""
    await run(folder, [tool("ssh"), "-F", "./config", FAR, script], stdin=path + b"\0", limit=limit)
