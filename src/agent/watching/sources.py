"""Where changes are heard of: the system's notices (watchfiles), or a look at everything now and then.

A source yields sets of changed paths, empty ones too, about once a second; the first as soon as it is in place: it
tells whatever happens from then on. Close it at the end.

What the notices cannot do was measured with watchfiles 1.3 (tests/agent/watching/test_sources.py): a name that is not
UTF-8 ends them, folders that may not be read or are too many refuse them, and links are followed. So failing is
ordinary: whoever listens starts anew and has everything looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from threading import Event

from watchfiles import watch

# Raised by `watch`, and exported nowhere else.
from watchfiles._rust_notify import WatchfilesRustInternalError

from agent.watching.looking import Stamp, stamp_of
from pipelines.music.listing import may_be_audio
from pipelines.music.mounts import table
from pipelines.music.walk import walk_after
from pipelines.payload import display_path, encode_path

GATHER_MS = 1_000
"""Longest time over which notices are gathered."""

BEAT = 1.0

_REMOTE = """
    9p afs beegfs ceph cifs coda davfs drvfs gfs2 glusterfs lustre ncpfs nfs nfs4 ocfs2 orangefs prl_fs smb3 smbfs
    vboxsf virtiofs vmhgfs
"""
REMOTE = frozenset(_REMOTE.split())
"""File systems that others change as well: of that the system gives no notice."""

LOCAL_FUSE = frozenset({"fuseblk", "fuse.portal", "fuse.exfat", "fuse.ntfs-3g"})


Source = Generator[set[bytes], None, None]


HINTS = {
    "Unable to decode path": "; give that file a name in UTF-8 to get notices",
    "os error 24": "; raise the sysctl fs.inotify.max_user_instances to get notices",
}
"""Words in an error of watchfiles that would come again -> the remedy. That a file is read is a notice as well."""


LET_READ = "let the watcher's user read it (in containers PHAZE_UID says who he is)"


class SourceFailed(Exception):
    """There will be no more from this source; the message says why. `again`: another one of its kind may do better."""

    def __init__(self, said: str, *, again: bool = True) -> None:
        super().__init__(said)
        self.again = again


def notified(root: bytes, stop: Event) -> Source:
    """What the system gives notice of. Raises SourceFailed."""
    try:
        for changes in watch(
            root.decode("utf-8"),
            watch_filter=None,
            debounce=GATHER_MS,
            stop_event=stop,
            rust_timeout=int(BEAT * 1000),
            yield_on_timeout=True,
            force_polling=False,
            ignore_permission_denied=False,  # True hides also that there are too many folders
            raise_interrupt=False,
        ):
            yield {os.fsencode(path) for _, path in changes}
    except UnicodeDecodeError:
        raise SourceFailed("its name is not UTF-8", again=False) from None
    except FileNotFoundError:
        raise SourceFailed("it is not there") from None
    except PermissionError as error:
        raise SourceFailed(f"not all of its folders may be read ({error}); {LET_READ}", again=False) from None
    except OSError as error:
        remedy = "raise the sysctl fs.inotify.max_user_watches to get notices"
        raise SourceFailed(f"{str(error).partition('. about')[0]}: {remedy}", again=False) from None
    except WatchfilesRustInternalError as error:
        hint = next((hint for words, hint in HINTS.items() if words in str(error)), None)
        raise SourceFailed(f"{error}{hint or ''}", again=hint is None) from None


def polled(root: bytes, period: float, stop: Event) -> Source:
    """What is different between two looks, `period` seconds apart. Raises SourceFailed."""
    try:
        before = yield from _snapshot(root)
        yield set()
        while not stop.is_set():
            due = time.monotonic() + period
            while (left := due - time.monotonic()) > 0 and not stop.wait(min(left, BEAT)):
                yield set()
            after = yield from _snapshot(root)
            yield {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
            before = after
    except OSError as error:
        remedy = f"; {LET_READ}" if isinstance(error, PermissionError) else ""
        raise SourceFailed(f"it cannot be read ({error.strerror}){remedy}") from None


def _snapshot(root: bytes) -> Generator[set[bytes], None, dict[bytes, Stamp]]:
    found: dict[bytes, Stamp] = {}
    beat = time.monotonic()
    for entry in walk_after(root):
        if entry.kind == "file" and may_be_audio(entry.path) is not False:
            found[entry.path] = stamp_of(entry.path)
        if time.monotonic() - beat > BEAT:
            yield set()
            beat = time.monotonic()
    return found


def remote_mount(root: bytes) -> str | None:
    """`nfs4 on /srv/music`: a mount at, above or below `root` that others change as well; None if there is none."""
    path = os.path.realpath(root)
    mounts = table()
    around = max((mount for mount in mounts if _holds(mount, path)), key=len, default=None)
    for mount in filter(None, (around, *sorted(mount for mount in mounts if _holds(path, mount)))):
        kind = mounts[mount]
        if kind in REMOTE or (kind.startswith("fuse") and kind not in LOCAL_FUSE and kind != "fusectl"):
            return f"{kind} on {display_path(encode_path(mount))}"
    return None


def _holds(folder: bytes, path: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
