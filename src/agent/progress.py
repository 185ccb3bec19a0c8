"""What `phaze up` shows while it works: bars in a terminal, lines elsewhere, events for machines.

A view is fed the hub's status (`GET /api/status`) and notes; it decides nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from agent.display import duration_text

if TYPE_CHECKING:
    from rich.console import Console

RATE_WINDOW = 30.0
"""Seconds over which a lane's rate is measured."""

LINE_PERIOD = 5.0
"""Seconds between two lines of the plain view, if something changed."""

CURRENT_FILES = 6
"""Most jobs shown as running now, the longest-running first."""

BAR = 24
NARROW = 90
"""Characters of a lane's bar, and the terminal's width below which it has a third of them."""

Status = Mapping[str, Any]


class View(Protocol):
    """Where progress goes."""

    def note(self, text: str) -> None:
        """Something worth a line: a restart, a port, a warning."""

    def update(self, status: Status) -> None:
        """The hub's latest status."""

    def close(self) -> None:
        """No more updates; leave the output tidy."""


class Rates:
    """Jobs per second by lane, over the last `RATE_WINDOW` seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def add(self, lane: str, finished: int, now: float | None = None) -> float | None:
        """Note `finished` jobs of `lane`; jobs per second, or None while nothing has finished."""
        now = time.monotonic() if now is None else now
        seen = self._seen.setdefault(lane, deque())
        seen.append((now, finished))
        while now - seen[0][0] > RATE_WINDOW:
            seen.popleft()
        (first_time, first), (last_time, last) = seen[0], seen[-1]
        return (last - first) / (last_time - first_time) if last > first else None


def finished(row: Mapping[str, Any]) -> int:
    """Jobs of a lane that are settled, whatever their outcome."""
    return sum(int(row.get(name, 0)) for name in ("done", "partial", "skipped", "rejected"))


class TerminalView:
    """A bar a lane, the files of the moment, redrawn in place."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True, screen=False)
        self._rates = Rates()
        self._started = time.monotonic()
        self._live.start()

    def note(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def update(self, status: Status) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = BAR if self._console.width >= NARROW else BAR // 3
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        table.add_column("lane", no_wrap=True, min_width=11)
        table.add_column("", width=width)
        for name in ("settled", "queued", "active", "retrying", "rejected", "rate", "left"):
            table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
        for lane, row in status["lanes"].items():
            settled, total = finished(row), int(row["total"])
            rate = self._rates.add(lane, settled)
            table.add_row(
                lane,
                ProgressBar(total=max(total, 1), completed=settled, width=width),
                f"{settled}/{total}",
                _count(row.get("queued")),
                _count(row.get("active")),
                Text(_count(row.get("retrying")), style="yellow"),
                Text(_count(row.get("rejected")), style="red"),
                f"{rate:.1f}/s" if rate and rate >= 1 else f"{rate * 60:.0f}/min" if rate else "",
                duration_text((total - settled) / rate) if rate and total > settled else "",
            )
        lines = [Text(f"  {text}", style="dim", no_wrap=True, overflow="ellipsis") for text in current_lines(status)]
        head = Text(headline(status, time.monotonic() - self._started), style="bold")
        self._live.update(Group(head, table, *lines))

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._last_time = -LINE_PERIOD
        self._last_text = ""
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def update(self, status: Status) -> None:
        now = time.monotonic()
        lanes = ", ".join(
            f"{lane} {finished(row)}/{row['total']}" for lane, row in status["lanes"].items() if row["total"]
        )
        if now - self._last_time >= LINE_PERIOD and lanes != self._last_text:
            self._last_time, self._last_text = now, lanes
            self.note(f"{headline(status, now - self._started)}: {lanes or 'nothing found yet'}")

    def close(self) -> None:
        """Nothing to tidy."""


class JsonView:
    """One JSON object a line on standard output: {"event": "note" | "progress", ...}."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._last = ""

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event."""
        print(json.dumps({"event": event, **fields}), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        self.emit("note", text=text)

    def update(self, status: Status) -> None:
        fields = {name: status[name] for name in ("scans", "lanes", "retrying") if name in status}
        text = json.dumps(fields)
        if text != self._last:
            self._last = text
            self.emit("progress", **fields, active=status.get("active", []))

    def close(self) -> None:
        """Nothing to tidy."""


def headline(status: Status, seconds: float) -> str:
    """The state in a few words, with the time so far."""
    if status.get("queue") == "unreachable":
        doing = "waiting for the queue server"
    elif status["scans"].get("open"):
        doing = "scanning"
    elif status["idle"]:
        doing = "done"
    else:
        doing = "working"
    return f"{doing}, {duration_text(seconds)}"


def current_lines(status: Status) -> list[str]:
    """The jobs of the moment, the longest-running first: `0:12 process_file  A New Journey.ogg`."""
    now = time.time()
    rows = sorted(status.get("active", []), key=lambda row: float(row.get("since") or now))
    lines = []
    for row in rows[:CURRENT_FILES]:
        seconds = max(0.0, now - float(row.get("since") or now))
        name = str(row.get("path") or "").rsplit("/", 1)[-1]
        attempt = f" (attempt {row['attempts']})" if int(row.get("attempts") or 1) > 1 else ""
        note = f"  {row['note']}" if row.get("note") else ""
        lines.append(f"{duration_text(seconds):>6} {row['task']}  {name}{attempt}{note}")
    return lines


def _count(value: Any) -> str:
    return str(value) if value else ""
