"""`phaze watch`: new, changed, moved and deleted files are scanned as soon as they have settled."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import click
import structlog

from agent import logs
from agent.errors import WrongUse
from agent.health import must_be_writable
from agent.operator.hub import Hub
from agent.roots import outermost
from agent.settings import Settings, load_settings
from agent.watching.root import WatchedRoot

log = structlog.get_logger()

LOOK = 1.0
"""Seconds between two looks at how the roots do."""

END = 10.0
"""Seconds for the threads to end; one that a dead mount holds ends with the process."""


@click.command()
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, required=True)
def watch(paths: tuple[str, ...]) -> None:
    """Watch folders until a signal, and have the hub scan what changes in them; all of it once, to begin with.

    A file is told when nothing about it has changed for PHAZE_WATCH_SETTLE seconds. It speaks to a running `phaze up`,
    or to the hub of PHAZE_HUB_URL. Folders on network mounts are looked at every PHAZE_WATCH_POLL_SECONDS.
    """
    settings = load_settings()
    roots = sorted(outermost([_root(path) for path in paths]))
    logs.configure(settings.log_level, settings.log_format, part="watch")
    must_be_writable(settings.health_file)
    Hub(settings).close()  # says at once if there is no token to be had
    Watcher(settings, roots).run()


def _root(text: str) -> Path:
    absolute = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 - resolve() would follow a linked folder
    if not text or absolute.is_file():
        raise WrongUse(f"{text or 'an empty path'} is no folder; give the folders to watch")
    return absolute


class Watcher:
    """A thread a root; this one hears signals and says that all is well (PHAZE_HEALTH_FILE)."""

    def __init__(self, settings: Settings, roots: list[Path]) -> None:
        self._stop = threading.Event()
        self._health = settings.health_file
        self._roots = [WatchedRoot(os.fsencode(root), settings, self._stop) for root in roots]

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        threads = [threading.Thread(target=root.run, name=root.shown, daemon=True) for root in self._roots]
        for thread in threads:
            thread.start()
        while not self._stop.wait(LOOK):
            if self._health is not None and all(root.well for root in self._roots):
                with contextlib.suppress(OSError):  # whoever looks at it will see that it is old
                    self._health.touch()
        for thread in threads:
            thread.join(END)
        log.info("watch.stopped", hanging=[thread.name for thread in threads if thread.is_alive()])
