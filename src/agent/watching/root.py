"""One watched folder, in a thread of its own: nothing that a slow or dead mount does to it holds up another one."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import closing
from itertools import islice
from threading import Event

import structlog

from agent.settings import Settings
from agent.throttle import OncePer
from agent.watching.delivery import Delivery
from agent.watching.looking import Stamp, look, stamp_of
from agent.watching.settling import Settling
from agent.watching.sources import Source, SourceFailed, notified, polled, remote_mount
from pipelines.music.mounts import mounted_below
from pipelines.payload import display_path, encode_path

log = structlog.get_logger()

MOST = 50_000
"""Changed files that are told apart; of more, the whole root is scanned."""

BATCH = 1_000
"""Paths in one request for a scan."""

BATCH_BYTES = 2**20

RETRY = 2.0
"""Seconds until a root is looked for again, or a source that failed is started anew."""

OFTEN, OFTEN_WITHIN = 3, 3600.0
"""Failures of the system's notices within so many seconds after which they are given up, and the root is polled."""

STALLED = 90.0
"""Seconds without a turn of the loop after which it counts as hanging, as on a dead mount."""


class RootAway(Exception):
    """The root is not there, or it is another folder than it was: an archive was unmounted, or mounted."""


class WatchedRoot:
    """`run()` until `stop` is set."""

    def __init__(self, root: bytes, settings: Settings, stop: Event) -> None:
        self.root = root
        self.shown = display_path(encode_path(root))
        self._settings = settings
        self._stop = stop
        self._delivery = Delivery(settings)
        self._poll = settings.watch_poll == "always"
        self._watching = False
        self._turned = time.monotonic()
        self._complain = OncePer(60.0)
        self._said = ""
        self._failed_at: deque[float] = deque(maxlen=OFTEN)
        self._forget()

    def _forget(self) -> None:
        """Everything is to be looked at, so no single file need be remembered."""
        self._settling = Settling(self._settings.watch_settle, MOST)
        self._ready: dict[bytes, Stamp] = {}
        self._everything = True
        self._looked_at = 0.0

    @property
    def well(self) -> bool:
        """Whether it watches, its loop turns, and the hub takes what it tells."""
        return self._watching and self._delivery.well and time.monotonic() - self._turned < STALLED

    def run(self) -> None:
        """Watch; whatever ends that, say it, and begin anew with a look at everything."""
        while not self._stop.is_set():
            try:
                self._watch()
            except RootAway as error:
                if self._complain():
                    log.warning("watch.root_away", root=self.shown, error=str(error),
                                meaning="nothing below it is taken for deleted; it is waited for")  # fmt: skip
            except SourceFailed as error:
                self._failed_at.append(time.monotonic())
                often = len(self._failed_at) == OFTEN and self._failed_at[-1] - self._failed_at[0] < OFTEN_WITHIN
                self._poll = self._poll or often or not error.again
                if (said := str(error)) != self._said or self._complain():
                    log.warning("watch.begins_anew", root=self.shown, error=said, polling=self._poll)
                self._said = said
            except Exception:  # a fault of ours must not end the watch for good
                log.exception("watch.failed", root=self.shown)
            self._watching = False
            self._stop.wait(RETRY)
        self._delivery.close()

    def _watch(self) -> None:
        identity = self._identity()
        self._forget()
        with closing(self._source()) as source:
            for changed in source:
                if not self._watching:
                    self._watching = True
                    log.info("watch.started", root=self.shown, polling=self._poll)
                now = self._turned = time.monotonic()
                if self._identity() != identity:
                    raise RootAway("it, or what is mounted in it, is another folder than it was")
                for path, stamp in look(self.root, changed):
                    self._settling.note(path, stamp, now)
                self._gather(now)
                self._tell(now)

    def _source(self) -> Source:
        if not self._poll and self._settings.watch_poll == "auto" and (mount := remote_mount(self.root)) is not None:
            log.info("watch.polls", root=self.shown, because=mount, seconds=self._settings.watch_poll_seconds)
            self._poll = True
        if self._poll:
            return polled(self.root, self._settings.watch_poll_seconds, self._stop)
        return notified(self.root, self._stop)

    def _identity(self) -> tuple[int, int, frozenset[bytes]]:
        """Which folder it is, and what is mounted in it."""
        try:
            found = os.stat(self.root)  # noqa: PTH116 - bytes
        except OSError as error:
            raise RootAway(f"it cannot be reached ({error.strerror})") from None
        return found.st_dev, found.st_ino, mounted_below(self.root)

    def _gather(self, now: float) -> None:
        """What has settled is ready to be told; of too much, and now and then, everything is."""
        self._ready |= self._settling.due(now, stamp_of)
        if self._settling.overflowed or len(self._ready) > MOST:
            log.info("watch.burst", root=self.shown, meaning="all of it is scanned")
            self._ready.clear()
            self._settling.overflowed = False
            self._everything = True
        hours = self._settings.watch_rescan_hours
        self._everything |= bool(hours) and bool(self._looked_at) and now - self._looked_at > hours * 3600

    def _tell(self, now: float) -> None:
        common = {"roots": [encode_path(self.root)], "fresh": True}
        if self._everything:
            if not self._delivery.send(common):
                return
            self._everything, self._looked_at = False, now
        while self._ready and not self._stop.is_set():
            lot = _first(self._ready)
            there = [encode_path(path) for path in lot if self._ready[path] is not None]
            absent = [encode_path(path) for path in lot if self._ready[path] is None]
            self._identity()  # what is gone with the whole root is not gone
            if not self._delivery.send({**common, "paths": there, "absent": absent}):
                return
            for path in lot:
                del self._ready[path]
            log.info("watch.told", root=self.shown, files=len(there), no_longer_there=len(absent))


def _first(ready: dict[bytes, Stamp]) -> list[bytes]:
    """As many as go into one request."""
    lot: list[bytes] = []
    size = 0
    for path in islice(ready, BATCH):
        size += 3 * len(path)
        if lot and size > BATCH_BYTES:
            break
        lot.append(path)
    return lot
