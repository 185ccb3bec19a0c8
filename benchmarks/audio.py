"""CPU seconds and peak memory of the analysis, by profile: on music, on hours of it, and on two cores at once.

    python benchmarks/audio.py [--music FOLDER] [--hours 2] [--quick] [--write]

Each line is one process that does nothing else; its time includes ffmpeg's. "warm" leaves out what a process pays once
(importing essentia, building its algorithms), which a lane's child spreads over a hundred files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PINS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
"""One slot of a lane is one core."""

MUSIC = Path("/usr/share/games/singularity/music")
"""Debian's singularity-music: real music, an hour of it; what is synthesised serves where it is not."""

BARS = {"fast": 0.6, "default": 1.3}
"""CPU seconds a minute of sound that a profile may take."""

MOST_MEMORY = 400
"""MiB that one process may take, whatever a file's length."""

BESIDE = 1.5
"""Times the work of one process that two must do on two cores."""

RESULTS = Path(__file__).with_name("RESULTS-AUDIO.md")

RUN = """
import json, resource, sys
from pathlib import Path
from pipelines.music.analyze import analyze


def cpu():
    return sum(getattr(resource.getrusage(who), field) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
               for field in ("ru_utime", "ru_stime"))

profile, first, *files = sys.argv[1:]
analyze(first, profile)
begun, seconds = cpu(), 0.0
for file in files:
    seconds += analyze(file, profile).decoded_duration
status = Path("/proc/self/status").read_text("ascii")
peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
print(json.dumps({"cold": begun, "cpu": cpu() - begun, "minutes": seconds / 60, "peak": peak}))
"""


def run(profile: str, first: Path, files: list[Path]) -> dict[str, float]:
    """One process: `first` to warm it up, then `files`. Raises CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, profile, str(first), *map(str, files)],
        env={**os.environ, **PINS},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def side_by_side(first: Path, files: list[Path]) -> float:
    """How much more two processes do than one in the same time, on two cores."""

    def timed(count: int) -> float:
        argv = [sys.executable, "-c", RUN, "default", str(first), *map(str, files)]
        begun = time.monotonic()
        running = [subprocess.Popen(argv, env={**os.environ, **PINS}, stdout=subprocess.DEVNULL) for _ in range(count)]
        if any(process.wait() for process in running):
            sys.exit("a process failed")
        return time.monotonic() - begun

    return 2 * min(timed(1), timed(1)) / timed(2)


def long_file(folder: Path, source: Path, hours: float) -> Path:
    """`source` over and over, without being decoded anew."""
    from pipelines.music.ffmpeg import ffmpeg_path

    path = folder / f"{hours:g}h{source.suffix}"
    argv = [ffmpeg_path(), "-nostdin", "-v", "error", "-y", "-stream_loop", "-1", "-i", f"file:{source}"]
    subprocess.run([*argv, "-t", str(hours * 3600), "-c", "copy", f"file:{path}"], check=True)
    return path


def synthetic(folder: Path, minutes: float) -> Path:
    """Drums, bass and chords."""
    from pipelines.music.ffmpeg import ffmpeg_path
    from pipelines.music.samples import RATE, render

    path = folder / f"synthetic-{minutes:g}.ogg"
    argv = [ffmpeg_path(), "-nostdin", "-v", "error", "-y", "-f", "f64le", "-ar", str(RATE), "-ac", "1", "-i", "pipe:0"]
    sound = render(124, "A", "minor", round(minutes * 31))
    subprocess.run([*argv, "-ac", "2", f"file:{path}"], input=sound.astype("<f8").tobytes(), check=True)
    return path


class Report:
    """The lines so far, each printed as it comes, and whether all bars were kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.kept = True

    def say(self, text: str) -> None:
        self.lines.append(text.rstrip())
        sys.stdout.write(f"{self.lines[-1]}\n")
        sys.stdout.flush()

    def show(self, name: str, found: dict[str, float], bar: float | None = None) -> None:
        """One process."""
        rate = found["cpu"] / found["minutes"]
        kept = (bar is None or rate <= bar) and found["peak"] <= MOST_MEMORY
        self.kept &= kept
        limit = f" (bar {bar})" if bar else ""
        self.say(
            f"{name:<34} {found['minutes']:7.1f} min  {rate:5.2f} CPU-s/min warm{limit:<11}  "
            f"{found['cold']:4.1f} s once  {found['peak']:4.0f} MB  {'' if kept else 'OVER'}"
        )

    def beside(self, ratio: float) -> None:
        """Two processes."""
        kept = ratio >= BESIDE
        self.kept &= kept
        self.say(
            f"two processes do {ratio:.2f} times the work of one (bar {BESIDE}, {os.cpu_count()} cores)"
            f"  {'' if kept else 'UNDER'}"
        )

    def text(self) -> str:
        """As Markdown."""
        lines = "\n".join(self.lines)
        head = f"Written by `make bench-audio`; each line is one process. Memory: at most {MOST_MEMORY} MB."
        return f"# The analysis of sound\n\n{head}\n\n```\n{lines}\n```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--music", type=Path, default=MUSIC, help="a folder of real music")
    parser.add_argument("--hours", type=float, default=2.0, help="length of the long file")
    parser.add_argument("--quick", action="store_true", help="three tracks, no long files")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options: Any = parser.parse_args()
    from pipelines.music.models.listen import Listener

    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tracks = sorted(options.music.glob("*.ogg")) if options.music.is_dir() else []
        tracks = tracks[:3] if options.quick else tracks
        music = f"{len(tracks)} real tracks"
        if not tracks:
            tracks, music = [synthetic(folder, 3)], "synthesised, no real music here"
        first = synthetic(folder, 0.3)
        profiles = ["fast", "default", *(["full"] if Listener.installed() else [])]
        for profile in profiles:
            report.show(f"{profile}, {music}", run(profile, first, tracks), BARS.get(profile))
        if "full" not in profiles:
            report.say("full: no models installed (phaze models install musicnn tempocnn)")
        if not options.quick:
            hours = [(options.hours, long_file(folder, tracks[0], options.hours)), (12, None)]
            for length, path in hours:
                path = path or long_file(folder, synthetic(folder, 3), length)
                report.show(f"default, one file of {length:g} hours", run("default", first, [path]), BARS["default"])
        report.beside(side_by_side(first, tracks[:2]))
    if options.write:
        RESULTS.write_text(report.text(), "utf-8")
    if not report.kept:
        sys.exit("a bar was not kept")


if __name__ == "__main__":
    main()
