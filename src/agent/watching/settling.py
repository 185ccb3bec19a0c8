"""Changes that wait until they have settled: nothing about a file has changed for some seconds."""

from __future__ import annotations

from collections.abc import Callable

from agent.watching.looking import Stamp


class Settling:
    """`note` what changed; `due` gives what has settled since. Seconds are the caller's clock's."""

    def __init__(self, quiet: float, most: int) -> None:
        """`most`: how many files may wait; beyond that single files are no longer told apart (`overflowed`)."""
        self._quiet = quiet
        self._most = most
        self._waiting: dict[bytes, tuple[float, Stamp]] = {}
        """In the order of their last change."""
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, path: bytes, stamp: Stamp, now: float) -> None:
        """Something changed at `path`; this is there now."""
        self._waiting.pop(path, None)
        if len(self._waiting) >= self._most:
            self._waiting.clear()
            self.overflowed = True
        self._waiting[path] = (now, stamp)

    def due(self, now: float, look: Callable[[bytes], Stamp]) -> dict[bytes, Stamp]:
        """What has settled, and what is there. Each is looked at once more: a change without an event is a change."""
        settled: dict[bytes, Stamp] = {}
        for path, (since, stamp) in list(self._waiting.items()):
            if now - since < self._quiet:
                break
            found = look(path)
            if found == stamp:
                del self._waiting[path]
                settled[path] = stamp
            else:
                self.note(path, found, now)
        return settled
