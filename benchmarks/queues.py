"""Job queues side by side: one server, one worker process each, jobs that do nothing.

    python benchmarks/queues.py [--peers saq-10,phaze-10] [--repetitions 3] [--jobs 10000] [--write]

For every system and repetition, all jobs are queued first; then one worker starts, pinned to a core of its own.
Measured: jobs/s from the first start to the last, the worker's CPU, the server's counts of commands and of reads,
the delay from sending to start at a steady 50 jobs/s on the then idle worker, memory, lines of log, and how many jobs
ran twice or never. Systems are interleaved: all of them once, then again; the table shows medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from peers import PEERS, Ours
from results import write_section
from server import OTHER_CORE, WORKER_CORE, Server, pinned, running
from slots import WHERE, slots

HERE = Path(__file__).resolve().parent
MEMORY = Path("/", "dev", "shm")
"""Where Linux keeps files in memory, so that a slow disk measures nothing."""

LATENCY_JOBS = 250
LATENCY_RATE = 50
SYNCED = (("saq-10", "phaze-10", "phaze-100", "dramatiq-10"), " (AOF always)")
"""Measured once more with every write on the disk before it is answered, and what their rows are called then."""

BARS = [  # what, ours, theirs, at most (cost) or at least (rate)
    ("worker CPU", "phaze-10", "saq-10", "cpu", 0.25),
    ("worker CPU", "phaze-100", "saq-100", "cpu", 0.12),
    ("worker CPU", "phaze-10", "dramatiq-10", "cpu", 0.9),
    ("jobs/s", "phaze-10", "saq-10", "rate", 4.0),
    ("jobs/s", "phaze-100", "saq-100", "rate", 8.0),
    ("jobs/s", "phaze-10", "dramatiq-10", "rate", 1.3),
    ("p50 latency", "phaze-10", "saq-10", "p50", 1.0),
]
COLUMNS = [
    ("rate", "jobs/s", "{:,.0f}"),
    ("cpu", "worker CPU µs/job", "{:,.0f}"),
    ("commands", "commands/job", "{:.1f}"),
    ("trips", "round trips/job", "{:.2f}"),
    ("p50", "p50 ms", "{:.1f}"),
    ("p95", "p95 ms", "{:.1f}"),
    ("rss", "RSS MB", "{:.0f}"),
    ("lines", "log lines/job", "{:.2f}"),
    ("duplicates", "duplicates", "{:.0f}"),
    ("losses", "losses", "{:.0f}"),
]
TOTALS = ("duplicates", "losses")

Row = dict[str, Any]


class Worker:
    """One worker process and all that it starts."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output, pinned(WORKER_CORE):
            self.process = subprocess.Popen(command, env=environment, cwd=HERE, stdout=output, stderr=output)
        self.root = psutil.Process(self.process.pid)

    def _tree(self) -> list[psutil.Process]:
        return [self.root, *self.root.children(recursive=True)]

    def cpu(self) -> float:
        """Seconds of CPU until now."""
        times = [process.cpu_times() for process in self._tree()]
        return sum(t.user + t.system for t in times) + times[0].children_user + times[0].children_system

    def memory(self) -> float:
        """Megabytes, pages that processes share counted once for each."""
        return sum(process.memory_info().rss for process in self._tree()) / 1e6

    def wait_for(self, jobs: range, timeout: float) -> None:
        """Until each of `jobs` started once; a job that never does is found by the count of losses."""
        deadline = time.monotonic() + timeout
        started = slots().started
        for i in jobs:
            while not started[i]:
                if self.process.poll() is not None:
                    said = self.log.read_text("utf-8", "replace").strip().splitlines()[-1:]
                    raise RuntimeError(f"its worker ended with {self.process.returncode}: {' '.join(said)}")
                if time.monotonic() > deadline:
                    return
                time.sleep(0.005)

    def stop(self) -> None:
        """In order, then by force."""
        tree = self._tree() if self.process.poll() is None else []
        self.process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(tree, timeout=8)
        for process in alive:
            process.kill()
        self.process.wait()


class Bench:
    """One series of measurements on one server."""

    def __init__(self, url: str, folder: Path, pythons: dict[str, str]) -> None:
        self.server = Server(url)
        self.pythons = pythons
        self.log = folder / "worker.log"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "BENCH_URL": url,
            "RQ_REDIS_URL": url,
            "PYTHONUNBUFFERED": "1",
        }

    def call(self, name: str, command: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        """Run peers.py in the environment of a system."""
        python = self.pythons[PEERS[name]().python]
        argv = [python, str(HERE / "peers.py"), command, name, *map(str, arguments)]
        with pinned(OTHER_CORE):
            return subprocess.run(argv, env=self.environment, cwd=HERE, capture_output=True, check=False)

    def has(self, name: str) -> bool:
        """Whether a system is installed."""
        return Path(self.pythons[PEERS[name]().python]).exists() and self.call(name, "has").returncode == 0

    def produce(self, name: str, first: int, count: int, rate: float = 0) -> None:
        """Enqueue jobs from a process of their own."""
        done = self.call(name, "produce", first, count, rate)
        if done.returncode:
            raise RuntimeError(f"its producer failed: {done.stderr.decode()[-500:]}")

    def measure(self, name: str, most: int, timeout: float, *, sync: bool = False) -> Row:
        """One system once."""
        peer = PEERS[name]()
        jobs = min(most, peer.jobs)
        slots().clear()
        self.server.wipe(sync=sync)
        self.produce(name, 0, jobs)
        self.server.reset()
        worker = Worker(peer.worker_command(self.pythons[peer.python], name), self.environment, self.log)
        try:
            row = self.throughput(worker, jobs, timeout)
            row |= self.latency(worker, name, jobs)
            row["rss"] = worker.memory()
        finally:
            worker.stop()
        runs = slots().runs[: jobs + LATENCY_JOBS].tolist()
        row["duplicates"] = sum(count - 1 for count in runs if count)
        row["losses"] = runs.count(0)
        if isinstance(peer, Ours) and peer.outbox:
            row["losses"] += len(runs) - self.server.client.xlen("phoenix:outbox:bench")
        with self.log.open("rb") as log:
            row["lines"] = sum(1 for _ in log) / len(runs)
        return row

    def throughput(self, worker: Worker, jobs: int, timeout: float) -> Row:
        """From the first job's start to the last one's."""
        worker.wait_for(range(1), 60)
        started = slots().started
        early, before = sum(map(bool, started[:jobs].tolist())), worker.cpu()
        worker.wait_for(range(jobs), timeout)
        cpu = worker.cpu() - before
        time.sleep(0.3)  # the last acknowledgements
        times = [t for t in started[:jobs].tolist() if t]
        row: Row = self.server.counters(jobs)
        row["rate"] = (len(times) - 1) / (max(times) - min(times))
        row["cpu"] = cpu / max(1, len(times) - early) * 1e6
        return row

    def latency(self, worker: Worker, name: str, first: int) -> Row:
        """From sending to start, on an idle worker."""
        ids = range(first, first + LATENCY_JOBS)
        time.sleep(1.0)
        self.produce(name, first, LATENCY_JOBS, LATENCY_RATE)
        worker.wait_for(ids, 30)
        s = slots()
        delays = sorted((s.started[i] - s.sent[i]) * 1000 for i in ids if s.started[i])
        return {"p50": delays[len(delays) // 2], "p95": delays[len(delays) * 95 // 100]}


def table(rows: dict[str, list[Row]]) -> list[str]:
    """The medians as Markdown."""
    lines = ["| | " + " | ".join(title for _, title, _ in COLUMNS) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for name, runs in rows.items():
        cells = [
            form.format((sum if key in TOTALS else statistics.median)(run[key] for run in runs))
            for key, _, form in COLUMNS
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def ratios(rows: dict[str, list[Row]]) -> list[str]:
    """Ours against the bars, as Markdown: medians of the ratios within one repetition."""
    lines = ["| | measured | bar | |", "|---|---:|---:|---|"]
    for what, ours, theirs, key, bar in BARS:
        if ours in rows and theirs in rows:
            pairs = zip(rows[ours], rows[theirs], strict=False)
            ratio = statistics.median(mine[key] / other[key] for mine, other in pairs)
            least = key == "rate"
            met = ratio >= bar if least else ratio <= bar
            sign = "≥" if least else "≤"
            lines.append(f"| {what}, {ours} / {theirs} | {ratio:.2f} | {sign} {bar} | {'met' if met else 'missed'} |")
    return lines


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS), help="comma separated")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that one system may take")
    parser.add_argument("--no-sync", action="store_true", help="leave out the rows with AOF always")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md beside this file")
    parser.add_argument("--raw", type=Path, help="keep every measurement in this file, and count those that it holds")
    for system in ("arq", "taskiq"):
        parser.add_argument(f"--{system}-python", default=f".venv-bench-{system}/bin/python", metavar="PATH",
                            help=f"the interpreter that has {system}")  # fmt: skip
    return parser.parse_args(argv)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def collect(bench: Bench, args: argparse.Namespace) -> tuple[dict[str, list[Row]], list[str]]:
    """All measurements, and what there is to say about those that are missing."""
    names = [name for name in args.peers.split(",") if bench.has(name)]
    notes = [f"{name}: not installed, left out" for name in args.peers.split(",") if name not in names]
    plan = [(name, False) for name in names]
    plan += [] if args.no_sync else [(name, True) for name in names if name in SYNCED[0]]
    rows: dict[str, list[Row]] = {name + SYNCED[1] * sync: [] for name, sync in plan}
    if args.raw and args.raw.exists():
        for line in args.raw.read_text("utf-8").splitlines():
            row = json.loads(line)
            rows.setdefault(row.pop("peer"), []).append(row)
    for repetition in range(args.repetitions):
        for name, sync in plan:
            title = name + SYNCED[1] * sync
            try:
                row = bench.measure(name, args.jobs, args.timeout, sync=sync)
            except (RuntimeError, psutil.Error, subprocess.SubprocessError) as error:
                notes.append(f"{title}: {error}")
                say(f"{repetition} {title}: {error}")
                continue
            rows[title].append(row)
            say(f"{repetition} {title:26} " + "  ".join(f"{key} {form.format(row[key])}" for key, _, form in COLUMNS))
            if args.raw:
                with args.raw.open("a") as raw:
                    raw.write(json.dumps({"peer": title, **row}) + "\n")
    return {name: runs for name, runs in rows.items() if runs}, notes


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print; with --write also into RESULTS.md."""
    args = parse(argv)
    pythons = {"main": sys.executable, "arq": str(Path(args.arq_python).absolute()),
               "taskiq": str(Path(args.taskiq_python).absolute())}  # fmt: skip
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None) as folder:
        os.environ[WHERE] = str(Path(folder) / "slots")
        with running() as url:
            bench = Bench(url, Path(folder), pythons)
            version = bench.server.version
            rows, notes = collect(bench, args)
    cores = os.cpu_count()
    counts = sorted({len(found) for found in rows.values()})
    runs = " to ".join(map(str, (counts[:1] + counts[1:][-1:])))
    lines = [
        f"{args.jobs:,} jobs that do nothing, medians of {runs} interleaved runs, {cores} cores, "
        f"Python {platform.python_version()}, {version}, AOF off where nothing else is said. The number behind a name "
        "is its concurrency.",
        "",
        *table(rows),
        "",
        *ratios(rows),
        "",
        *(f"- {note}" for note in notes),
    ]
    say("\n" + "\n".join(lines))
    if args.write:
        write_section("Queues", lines)


if __name__ == "__main__":
    main()
