"""The index of prints at 100,000 tracks: time of a query, memory, disk. `make bench-prints`

    python benchmarks/prints.py [--tracks 100000] [--write] [FOLDER ...]

Real prints are taken of the music in FOLDER (else of Debian's singularity-music and wesnoth-1.16-music) and multiplied
to `--tracks`: the bits of each item rotated, some turned over, every second print reversed. That keeps what makes an
index slow (repeats, lengths, how items follow each other) and gives sound that nobody has heard.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipelines.music.fingerprint import fingerprint
from pipelines.music.postings import Items
from pipelines.music.print_index import PrintIndex
from pipelines.music.print_store import save
from pipelines.music.prints import PER_SECOND, decode_items

FOLDERS = ("/usr/share/games/singularity/music", "/usr/share/games/wesnoth/1.16/data/core/music")
RESULTS = Path(__file__).with_name("RESULTS-PRINTS.md")
RATE = PER_SECOND


class Permuted(Sequence[Items]):
    """`count` prints made of a few real ones; each is made when it is asked for."""

    def __init__(self, real: list[Items], count: int) -> None:
        self._real, self._count = real, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Items:  # type: ignore[override]
        if not 0 <= number < self._count:
            raise IndexError(number)
        items = self._real[number % len(self._real)]
        random = np.random.default_rng(number)
        turn = np.uint32(random.integers(1, 32))
        items = ((items << turn) | (items >> (np.uint32(32) - turn))) ^ np.uint32(random.integers(0, 2**32))
        return items[::-1].copy() if number & 1 else items

    def __iter__(self) -> Iterator[Items]:
        return (self[number] for number in range(self._count))


def real_prints(folders: Sequence[str]) -> list[Items]:
    """Of everything in the folders that is two minutes and longer."""
    files = sorted(file for folder in folders for file in Path(folder).rglob("*") if file.suffix in (".ogg", ".mp3"))
    prints = [np.array(decode_items(fingerprint(file).raw), dtype=np.uint32) for file in files]
    return [items for items in prints if items.size > 120 * RATE]


def rough(items: Items, share: float, seed: int) -> Items:
    """With `share` of all bits wrong."""
    random = np.random.default_rng(seed)
    wrong = (random.random((items.size, 32)) < share) @ (1 << np.arange(32, dtype=np.uint64))
    return items ^ wrong.astype(np.uint32)


def memory() -> dict[str, float]:
    """MB of this process: all, of its own, of mapped files (which the system may take back)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {
        line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM", "Rss"))
    }
    return {"all": found["VmRSS"], "own": found["RssAnon"], "mapped": found["RssFile"], "peak": found["VmHWM"]}


def queries(folder: Path, prints: Permuted, rounds: int) -> list[str]:
    """Rows of the table, from a process of its own."""
    started = time.perf_counter()
    index = PrintIndex(folder, read_only=True)
    opened = time.perf_counter() - started
    random = np.random.default_rng(1)
    unheard = Permuted([items ^ np.uint32(0x5A5A5A5A) for items in prints._real], 10**9)
    rows = []
    kinds = [
        ("15 s clip, 5 % of bits wrong", 15, 0.05),
        ("60 s of a track, 10 % wrong", 60, 0.1),
        ("whole track", 0, 0.05),
    ]
    for name, seconds, share in kinds:
        for heard in (True, False):
            times, right, wrong = [], 0, 0
            for turn in range(rounds):
                number = int(random.integers(0, len(prints))) if heard else 500_000_000 + turn
                items = (prints if heard else unheard)[number]
                length = int(seconds * RATE) or items.size
                start = int(random.integers(0, items.size - length + 1))
                asked = rough(items[start : start + length], share, turn)
                begun = time.process_time()
                spans = index.find(asked)
                times.append(time.process_time() - begun)
                hit = {index.name(span.track) for span in spans}
                right += heard and str(number) in hit
                wrong += bool(hit - {str(number)}) if heard else bool(hit)
            half, most = np.percentile(times, [50, 95]) * 1e3
            found = f"{right} of {rounds}" if heard else "-"
            label = name if heard else f"{name.partition(',')[0]}, not in the library"
            rows.append(f"| {label} | {half:.1f} | {most:.1f} | {found} | {wrong} |")
    now = memory()
    return [
        "| query | median ms of CPU | 95 % | found | false |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"Opened in {opened * 1e3:.0f} ms. Memory after {6 * rounds} queries: {now['all']:.0f} MB "
        f"({now['own']:.0f} its own, {now['mapped']:.0f} mapped files), at most {now['peak']:.0f}.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--tracks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--queries", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.queries:
        with np.load(Path(arguments.queries) / "real.npz") as stored:
            prints = Permuted([stored[name] for name in stored.files], arguments.tracks)
        sys.stdout.write("\n".join(queries(Path(arguments.queries), prints, arguments.rounds)) + "\n")
        return
    real = real_prints(arguments.folders)
    if not real:
        sys.exit("no music there: apt-get install singularity-music wesnoth-1.16-music, or name a folder")
    prints = Permuted(real, arguments.tracks)
    folder = Path(tempfile.mkdtemp(prefix="prints-"))
    try:
        np.savez(folder / "real.npz", *real)
        started, busy = time.perf_counter(), time.process_time()
        save(folder, None, [str(number) for number in range(arguments.tracks)], prints, [])
        wall, cpu = time.perf_counter() - started, time.process_time() - busy
        peak = memory()["peak"]
        disk = sum(file.stat().st_size for file in folder.glob("*.u32")) / 1e6
        minutes = np.mean([items.size for items in real]) / RATE / 60
        argv = [sys.executable, __file__, "--queries", str(folder)]
        argv += ["--tracks", str(arguments.tracks), "--rounds", str(arguments.rounds)]
        table = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    finally:
        shutil.rmtree(folder)
    text = (
        f"# The index of prints at {arguments.tracks:,} tracks\n\n"
        f"Written by `make bench-prints` on {os.cpu_count()} cores. {len(real)} real prints (mean {minutes:.1f} "
        f"minutes), permuted.\n\n{table}\n"
        f"A checkpoint of all of it, from nothing: {wall:.0f} s ({cpu:.0f} s CPU), {disk:.0f} MB on the disk, "
        f"at most {peak:.0f} MB of memory.\n"
    )
    sys.stdout.write(text)
    if arguments.write:
        RESULTS.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
