"""What one `phaze up` did: the tracks, the lanes' work, what was rejected and what is left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.display import duration_text, plural
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS
from agent.hub.tracks import Track
from agent.hub.work import ScanResult, TaskWork
from agent.lanes import AGENT_TASKS, lane_for_task
from agent.names import clean
from agent.settings import Settings
from agent.tracks import print_table, problem_text
from pipelines.payload import display_path, encode_path

PASSED_OVER = {"other": "other file", "links": "link", "special": "pipe or device", "gone": "track that is gone",
               "moved": "track that is elsewhere now"}  # fmt: skip
"""In the singular; `plural` knows none of them better."""

KINDS = 8
"""Suffixes that are told of what was passed over."""


@dataclass(frozen=True)
class Summary:
    """One run, for people and for machines. Seconds."""

    tracks: list[Track]
    work: list[TaskWork]
    retrying: list[dict[str, Any]]
    scans: list[ScanResult]
    elapsed: float
    held: Mapping[str, str] = field(default_factory=dict)
    """What holds jobs back: its name -> one line with the remedy."""
    decoded: Mapping[int, float] = field(default_factory=dict)
    """file id -> seconds, of tracks of which less could be decoded than they declare."""

    @classmethod
    def of(cls, settings: Settings, roots: Sequence[Path], *, since: float, status: Mapping[str, Any]) -> Summary:
        """Read it from the catalogue: the tracks under `roots` (all without roots), the work since `since`."""
        with Catalogue(settings.data_dir, read_only=True) as catalogue:
            catalogue.compare_prints(at_once=True)
            found = catalogue.tracks()
            work = catalogue.work_since(since)
            scans = catalogue.scans_since(since)
            decoded = catalogue.decoded([track.id for track in found if _outcome_of(ANALYSIS, track) == "partial"])
        shown = [display_path(encode_path(root)) for root in roots]
        if shown:
            found = [track for track in found if any(_is_under(track.path, root) for root in shown)]
        retrying, held = list(status.get("retrying", [])), dict(status.get("held", {}))
        return cls(found, work, retrying, scans, time.time() - since, held, decoded)

    @property
    def rejected(self) -> list[Track]:
        """Tracks with a task that rejected them."""
        return [track for track in self.tracks if "rejected" in _outcomes(track)]

    @property
    def unfinished(self) -> list[Track]:
        """Tracks that still wait for a result, or whose file was not as scanned when its turn came."""
        return [track for track in self.tracks if track.pending or "skipped" in _outcomes(track)]

    @property
    def partial(self) -> list[Track]:
        """Tracks of which a task could do a part only (a file that breaks off, an unknown format of tags)."""
        return [track for track in self.tracks if "partial" in _outcomes(track)]

    @property
    def scan_problems(self) -> list[tuple[str, str]]:
        """(path, reason) of what scans could not read."""
        return [line for scan in self.scans for line in scan.unread]

    @property
    def passed_over(self) -> dict[str, int]:
        """What the scans did not take: other files, links (never followed), pipes and devices; and tracks that are gone
        or have moved."""
        return {name: sum(scan.passed_over.get(name, 0) for scan in self.scans) for name in PASSED_OVER}

    @property
    def other_suffixes(self) -> Counter[str]:
        """Suffix -> how many of the other files have it; empty: none, or a rare one."""
        return sum((scan.other_suffixes for scan in self.scans), Counter[str]())

    @property
    def left_over(self) -> bool:
        """Whether some file was rejected, unread or is unfinished."""
        return bool(self.rejected or self.unfinished or self.retrying or self.scan_problems or self.held)

    @property
    def audio_seconds(self) -> float:
        """The sound that was analysed, in this run or before: what was rejected or still waits is none of it."""
        return sum(map(self._heard, self.tracks))

    def _heard(self, track: Track) -> float:
        outcome = _outcome_of(ANALYSIS, track)
        if outcome == "partial":
            return self.decoded.get(track.id, 0.0)
        return track.duration or 0.0 if outcome == "done" else 0.0

    @property
    def file_jobs(self) -> int:
        """Jobs about a file that were done in this run."""
        return sum(row.jobs for row in self.work if row.service != "scan_directory")

    def as_json(self) -> dict[str, Any]:
        """The totals as one JSON object."""
        return {
            "passed_over": self.passed_over,
            "other_suffixes": dict(self.other_suffixes.most_common()),
            "tracks": len(self.tracks),
            "rejected": len(self.rejected),
            "unfinished": len(self.unfinished),
            "partial": len(self.partial),
            "retrying": self.retrying,
            "held": self.held,
            "scan_problems": [{"path": path, "reason": reason} for path, reason in self.scan_problems],
            "audio_seconds": round(self.audio_seconds, 1),
            "elapsed": round(self.elapsed, 1),
            "work": [{"lane": _lane(row.service), **asdict(row)} for row in self.work],
        }

    def print(self, most: int, cores: int) -> None:
        """The table and a few lines under it, on standard output."""
        import click

        if self.tracks:
            print_table(self.tracks[:most])
        if len(self.tracks) > most:
            click.echo(f"... and {len(self.tracks) - most:,} more: phaze tracks")
        click.echo()
        for line in self.lines(cores):
            click.echo(line)

    def lines(self, cores: int) -> list[str]:
        """The run in words."""
        minutes = self.audio_seconds / 60
        lines = []
        if self.tracks or self.scans:
            lines.append(
                f"{plural(len(self.tracks), 'file')}, {minutes:.1f} minutes of audio, in {duration_text(self.elapsed)} "
                f"on {plural(cores, 'core')}" + self._speed()
            )
        for row in self.work:
            slowest = f", slowest {row.slowest:.1f} s {Path(row.slowest_path).name}" if row.slowest_path else ""
            lines.append(
                f"  {_lane(row.service):<12} {row.service:<22} {plural(row.jobs, 'job'):>10} in "
                f"{duration_text(row.wall)} ({row.busy:.1f} s of work{slowest})"
            )
        said = [plural(count, PASSED_OVER[name]) for name, count in self.passed_over.items() if count]
        if said:
            if self.other_suffixes:  # other files come first
                said[0] += f" ({_kinds(self.other_suffixes)})"
            lines.append("passed over: " + ", ".join(said))
        if self.tracks and not self.file_jobs and not self.unfinished:
            lines.append("nothing was analysed again: the content of every file is as it was")
        for title, rows in (
            ("rejected", [(track.path, problem_text(track)) for track in self.rejected]),
            ("unfinished", [(track.path, problem_text(track)) for track in self.unfinished]),
            ("in part", [(track.path, problem_text(track)) for track in self._only_partial()]),
            ("retrying", [(str(row.get("path")), _retry_text(row)) for row in self.retrying]),
            ("not read", self.scan_problems),
        ):
            if rows:
                lines.append(f"{title}: {plural(len(rows), 'path')}")
                lines += [f"  {path}: {why}" for path, why in rows[:20]]
                if len(rows) > 20:
                    lines.append(f"  ... and {len(rows) - 20:,} more")
        return lines + [f"jobs wait: {said}" for said in self.held.values()]

    def _only_partial(self) -> list[Track]:
        """Those that no line before tells of."""
        told = {track.id for track in [*self.rejected, *self.unfinished]}
        return [track for track in self.partial if track.id not in told]

    def _speed(self) -> str:
        analysed = [row for row in self.work if row.service == ANALYSIS]
        if not analysed or self.elapsed < 1 or self.audio_seconds < self.elapsed or analysed[0].jobs < len(self.tracks):
            return ""
        return f" ({self.audio_seconds / self.elapsed:.0f}x real time)"


def _kinds(counted: Counter[str]) -> str:
    """`12 .jpg, 3 .mp4, 2 without a usual suffix`: the most frequent ones."""
    shown = [f"{count:,} {clean(suffix) or 'without a usual suffix'}" for suffix, count in counted.most_common(KINDS)]
    return ", ".join(shown + (["..."] if len(counted) > KINDS else []))


def _lane(service: str) -> str:
    """The lane of a task; `elsewhere` for one whose package is not installed here."""
    return lane_for_task(service) if service in AGENT_TASKS else "elsewhere"


def _outcomes(track: Track) -> set[str]:
    return {problem["outcome"] for problem in track.problems}


def _outcome_of(service: str, track: Track) -> str | None:
    """How a task of the file ended; None while it waits."""
    if service in track.pending:
        return None
    return next((problem["outcome"] for problem in track.problems if problem["service"] == service), "done")


def _is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(root if root.endswith("/") else f"{root}/")


def _retry_text(row: Mapping[str, Any]) -> str:
    return f"{row.get('task')} failed {plural(int(row.get('attempts') or 0), 'time')}: {row.get('error')}"
