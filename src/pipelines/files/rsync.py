"""rsync, as an argument list: how it is asked, how far it is, and what its ends mean."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import InputRejected, ToolMissing
from pipelines.files.ssh import FAR, Done, tool
from pipelines.files.transfer import Refused, Stalled, Unreachable

PARTIAL = ".phaze-partial"
"""The folder beside the file in which the far side keeps what has arrived of it."""

OLDEST = (3, 1)
"""The rsync that brought --info=progress2; the far side's may be 3.0."""

PROGRESS = re.compile(rb"(?:^|[\r\n])\s*(\d{1,19})\s+(\d{1,3})%(?=\s)")
STATS = re.compile(
    rb"^(Number of regular files transferred|Literal data|Matched data|Total bytes sent): (\d{1,19})", re.M
)

NAMES = {36: "name-too-long", 27: "too-large", 22: "name-not-allowed", 84: "name-not-allowed"}
"""errno on the far side (Linux) -> reason: its file system takes no such file, today or tomorrow."""

REMEDIES = {
    1: "let that user write there",
    13: "let that user write there",
    2: "make the folder there (is its disk mounted?)",
    28: "make room there",
    30: "its file system is mounted read-only",
    122: "that user's quota is used up",
}
"""errno on the far side -> what an operator can do."""

CONNECTION = frozenset({10, 12, 30, 35, 255})
"""Exit codes (rsync(1), and ssh's 255) that speak of the line, if nothing that was said speaks of something else."""


@dataclass(frozen=True)
class Stats:
    """What a run of rsync did: files sent (0 or 1), bytes of the file that were sent and that were there, all bytes."""

    transferred: int = 0
    literal: int = 0
    matched: int = 0
    sent: int = 0


def arguments(source: bytes, destination: bytes, stall: float, extra: Sequence[str] = ()) -> list[str]:
    """argv for files below the folder `source` into the folder `destination` on the far side; their names follow on
    standard input (`names`), so that neither a shell nor rsync's own patterns ever look at them.

    -s keeps the destination from the far shell. It would still be taken for a pattern there: see `is_pattern`.
    """
    return [
        tool("rsync"),
        "-s",
        *("--times", "--omit-dir-times", "--copy-links", "--no-implied-dirs"),
        f"--partial-dir={PARTIAL}",
        f"--timeout={max(1, int(stall))}",
        *("--info=progress2", "--stats", "--no-human-readable"),
        *("--from0", "--files-from=-", "-e", "sh ./start"),
        *extra,
        "--",
        os.fsdecode(source.rstrip(b"/") + b"/"),
        f"{FAR}:{os.fsdecode(destination.rstrip(b'/') + b'/')}",
    ]


def names(*relative: bytes) -> bytes:
    """What goes to standard input. `./` in front, because rsync skips names that begin with `#` or `;`."""
    return b"".join(b"./" + name + b"\0" for name in relative)


def is_pattern(destination: bytes) -> bool:
    """Whether the far rsync would take a folder for a pattern: `/in/a[1]` means `/in/a1` there, if that exists."""
    return any(character in destination for character in b"*?[\\")


def progress_of(output: bytes) -> tuple[int, int] | None:
    """(bytes, percent) that rsync last said; None if it said none."""
    found = PROGRESS.findall(output)
    return (int(found[-1][0]), min(100, int(found[-1][1]))) if found else None


def stats_of(output: bytes) -> Stats:
    """The numbers at the end of rsync's output."""
    said = {name: int(number) for name, number in STATS.findall(output)}
    return Stats(
        said.get(b"Number of regular files transferred", 0),
        said.get(b"Literal data", 0),
        said.get(b"Matched data", 0),
        said.get(b"Total bytes sent", 0),
    )


def trouble(done: Done, host: str) -> Exception:
    """What an end that is not 0 means, as the exception to raise: by what was said first, then by the exit code."""
    said = done.err
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("rsync error")]
    # What ssh or a shell said is nearer to the cause than what rsync made of it.
    last = next((line for line in lines if not line.startswith("rsync")), lines[-1] if lines else "")
    if (refusal := _of_ssh(said, host)) is not None:
        return refusal
    if done.code == 127 or "command not found" in said or "rsync: not found" in said:
        return ToolMissing(f"there is no rsync on {host}; install it there")
    for number in re.findall(r"\((\d{1,3})\)(?:\s*$|\s*\n)", said):
        if reason := NAMES.get(int(number)):
            return InputRejected(reason, f"{host}: {last}")
        if remedy := REMEDIES.get(int(number)):
            return Refused(f"{host}: {last}; {remedy}")
    if done.code == 30 or "not responding" in said or "timed out" in said:
        return Stalled(f"{host}: {last or 'nothing moved'}")
    if done.code in CONNECTION or done.code < 0:
        return Unreachable(f"{host}: {last or f'rsync ended with code {done.code}'}")
    return Refused(f"{host}: rsync ended with code {done.code}: {last or 'it said nothing'}")


def _of_ssh(said: str, host: str) -> Exception | None:
    if "HOST IDENTIFICATION HAS CHANGED" in said:
        remedy = "nothing was sent; find out why, then give its new key with PHAZE_PUSH_HOST_KEYS"
        return InputRejected("host-key-changed", f"{host} shows another key than the pinned one; {remedy}")
    if "Host key verification failed" in said or re.search(r"No \S+ host key is known", said):
        return InputRejected("host-key-unknown", f"{host} shows a key of no pinned kind; see PHAZE_PUSH_HOST_KEYS")
    if re.search(r"Load key .*(invalid format|error in libcrypto|incorrect passphrase)", said):
        return Refused("PHAZE_PUSH_KEY is no key that ssh can use; give one without a passphrase")
    if "Permission denied (" in said:
        return Refused(f"{host} does not take our key; add its public half to that user's authorized_keys")
    return None


def version_of(output: str) -> tuple[int, int] | None:
    """(3, 2) of what `rsync --version` prints; None for another program of that name."""
    found = re.match(r"rsync\s+version v?(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else None


def below(path: Path, root: Path) -> tuple[bytes, bytes]:
    """(folder, name below it): below the root where the file is, else below its own folder."""
    if root != path and root in path.parents:
        return os.fsencode(root), os.fsencode(path.relative_to(root))
    return os.fsencode(path.parent), os.fsencode(path.name)
