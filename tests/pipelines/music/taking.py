"""Taking files through analysis, fingerprint and tags, as a lane's child does: what came of each, as a table.

    python -m tests.pipelines.music.taking [--write FILE] [FOLDER ...]

One process takes file after file; where it dies or hangs, that file is `crashed` or `hung`, and a new process goes on
with the next. Seconds and peak memory are each file's own. Exit code 1: a crash, a hang, or a bar that was not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from pipelines.music.models.wheels import pip
from tests.pipelines.conftest import REPO, find_cases

TASKS = ("analyze", "fingerprint", "read_metadata")
NAMES = {"analyze": "process_file", "fingerprint": "fingerprint_file", "read_metadata": "extract_file_metadata"}

MOST_SECONDS = 60.0
MOST_MEMORY = 400.0
"""MiB."""

HUNG = 240.0
"""Seconds after which a file hangs; over the bar, so that a slow one is told from one that never ends."""

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "phaze-tests"

TAKE = """
import json, sys, time
from pathlib import Path
from pipelines.errors import InputRejected
from pipelines.music.analyze import analyze
from pipelines.music.fingerprint import fingerprint
from pipelines.music.metadata import read_metadata

def ask(function, path):
    begun = time.monotonic()
    try:
        found = json.loads(function(path).model_dump_json())
    except InputRejected as error:
        found = {"outcome": "rejected", "reason": error.reason}
    except Exception as error:
        found = {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"[:200]}
    return found | {"seconds": round(time.monotonic() - begun, 2)}

for line in sys.stdin.buffer:
    path = Path(bytes.fromhex(line.decode()).decode(errors="surrogateescape"))
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak is the file's own: proc(5)
    begun = time.monotonic()
    row = {f.__name__: ask(f, path) for f in (analyze, fingerprint, read_metadata)}
    row["seconds"] = time.monotonic() - begun
    # Not ru_maxrss: that of a program started by a large process begins with the large one's.
    status = Path("/proc/self/status").read_text("ascii")
    row["peak"] = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    print(json.dumps(row, allow_nan=False), flush=True)
"""

Row = dict[str, Any]


def take(files: Iterable[Path]) -> Iterator[Row]:
    """One row a file: `name`, `path`, what each task answered (with its seconds), `seconds` and `peak` (MiB) of all."""
    process = _start()
    try:
        for path in files:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(os.fsencode(path).hex().encode() + b"\n")
            process.stdin.flush()
            line = _line(process.stdout)
            if line:
                yield {"name": path.name, "path": path, **json.loads(line)}
                continue
            ended = "hung" if line is None else "crashed"
            code = _end(process)
            reason = f"signal or exit code {code}" if ended == "crashed" else f"over {HUNG:.0f} s"
            answers = {task: {"outcome": ended, "reason": reason, "seconds": 0.0} for task in TASKS}
            yield {"name": path.name, "path": path, **answers, "seconds": HUNG if line is None else 0.0, "peak": 0.0}
            process = _start()
    finally:
        _end(process)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _end(process: subprocess.Popen[bytes]) -> int:
    """How it had ended by itself, or -9."""
    if process.stdout is not None:
        process.stdout.close()
    process.kill()
    code = process.wait()
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    return code


def _line(pipe: IO[bytes]) -> bytes | None:
    """The next line; empty at the end, None if none comes."""
    ready, _, _ = select.select([pipe], [], [], HUNG)
    return pipe.readline() if ready else None


def files_of(folder: Path) -> list[Path]:
    """The files in a folder and below, without the notes beside them."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".txt", ".pyc", ".py"))


def mutagen_data() -> Path:
    """`tests/data` of mutagen's source distribution: fetched with pip, once. Raises RuntimeError where it cannot be."""
    release = f"mutagen-{version('mutagen')}"
    data = CACHE / release / "tests" / "data"
    if data.is_dir():
        return data
    CACHE.mkdir(parents=True, exist_ok=True)
    argv = [*pip(), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
    argv += ["--dest", str(CACHE), release.replace("-", "==")]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=300)
    source = CACHE / f"{release}.tar.gz"
    if done.returncode or not source.exists():
        raise RuntimeError(f"{release}'s source could not be fetched: {done.stderr.strip()[-300:]}")
    with tarfile.open(source) as archive:
        archive.extractall(CACHE, filter="data")
    return data


def ending(answer: Row) -> str:
    """The reason, where there is one, else the outcome."""
    return str(answer["reason"] or answer["outcome"])


def faults(rows: Iterable[Row]) -> Iterator[str]:
    """What must not be, a line each."""
    for row in rows:
        for task in TASKS:
            if row[task]["outcome"] not in ("done", "partial", "rejected"):
                yield f"{row['name']}: {NAMES[task]} {row[task]['outcome']} ({row[task]['reason']})"
            elif row[task]["outcome"] != "done" and not row[task]["reason"]:
                yield f"{row['name']}: {NAMES[task]} is {row[task]['outcome']} without a reason"
            if row[task]["seconds"] > MOST_SECONDS:
                yield f"{row['name']}: {NAMES[task]} took {row[task]['seconds']:.0f} s"
        if row["peak"] > MOST_MEMORY:
            yield f"{row['name']}: {row['peak']:.0f} MB"


def table(rows: list[Row]) -> str:
    """Markdown: one line a file."""
    lines = ["| file | process_file | fingerprint_file | extract_file_metadata | seconds | peak MB |"]
    lines.append("|---|---|---|---|---:|---:|")
    for row in rows:
        said = (row[task]["outcome"] + (f": {row[task]['reason']}" if row[task]["reason"] else "") for task in TASKS)
        name = row["name"].encode("utf-8", "replace").decode().replace("|", "/")
        lines.append(f"| {name} | {' | '.join(said)} | {row['seconds']:.1f} | {row['peak']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, default=REPO / "build" / "cases.md", help="where the table goes")
    parser.add_argument("folders", type=Path, nargs="*", help="instead of the shared cases and mutagen's")
    options = parser.parse_args()
    folders: list[Path] = options.folders
    if not folders:
        cases = find_cases()
        folders = [cases / "audio", cases / "music"] if cases else []
        folders.append(mutagen_data())
    rows = []
    for row in take(path for folder in folders for path in files_of(folder)):
        rows.append(row)
        sys.stderr.write(f"\r{len(rows)} files, now {row['name'][:60]:<60}")
    options.write.parent.mkdir(parents=True, exist_ok=True)
    options.write.write_text(table(rows) + "\n", "utf-8")
    wrong = list(faults(rows))
    sys.stdout.write(f"\r{table(rows)}\n\n")
    for task in TASKS:
        counts = Counter(row[task]["outcome"] for row in rows)
        sys.stdout.write(f"{NAMES[task]:<22} {dict(counts)}\n")
    slowest, largest = max(rows, key=lambda row: row["seconds"]), max(rows, key=lambda row: row["peak"])
    sys.stdout.write(
        f"{len(rows)} files; slowest {slowest['seconds']:.1f} s ({slowest['name']}), "
        f"largest {largest['peak']:.0f} MB ({largest['name']}); the table is in {options.write}\n"
    )
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
