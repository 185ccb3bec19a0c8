"""One write of tags, in two steps that may each be done again after a kill.

`prepare` writes the tags into a copy beside the file, and makes sure that the sound in it is the same. `commit` puts
the copy in the file's place at one stroke; at every moment the name holds the old file or the new one, whole.
Where the file system can (RENAME_EXCHANGE), the old file comes back in exchange and is looked at once more, so that
what another program wrote at the last moment is not lost.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from pipelines.files.content import copy, identity, is_still, keep_attributes, open_file, sha256_of
from pipelines.files.folders import Place, Refused, Roots
from pipelines.files.journal import ItemLog, Record
from pipelines.files.moving import temporary_name
from pipelines.files.proposals import Item, TagRestore, TagWrite
from pipelines.files.publish import RENAME_EXCHANGE, move_name, rename_with

HASH_SECONDS = 600
"""For ffmpeg to read a file's packets through; nothing is decoded."""


def prepare(tag: TagWrite | TagRestore, roots: Roots, log: ItemLog) -> Item | None:
    """The copy with the new tags; an Item if the file has them already. Raises Refused and OSError."""
    with ExitStack() as stack:
        source = stack.enter_context(roots.existing(tag.source))
        if source is None:
            raise Refused("vanished", "there is no such file (any more)")
        fd = open_file(source)
        stack.callback(os.close, fd)
        if sha256_of(fd) != tag.sha256:
            raise Refused("source-changed", "its content is not what was approved")
        intent = log.last("intent") or log.append("intent", temporary=temporary_name())
        temporary = source.beside(intent["temporary"].encode())
        temporary.unlink()  # half of a copy, from a run that was killed
        lost = copy(fd, temporary, tag.sha256)
        old, sha256 = _write(tag, fd, source.name, temporary)
        if old is None:
            temporary.unlink()
            return _item(tag, source, tag.sha256, None, ["it had these tags already"])
        temporary.sync()
        written = os.stat(temporary.name, dir_fd=temporary.folder, follow_symlinks=False)
        was = identity(os.fstat(fd))
        log.append("ready", source=was, copy=identity(written), sha256=sha256, old=old, lost=lost)
    return None


def _write(tag: TagWrite | TagRestore, fd: int, name: bytes, temporary: Place) -> tuple[dict[str, object] | None, str]:
    """The tags that were there (None: there is nothing to write) and the hash of the file with the new ones."""
    from pipelines.files import retag
    from pipelines.music.ffmpeg import PLAYLIST_HEADS

    if os.pread(fd, 64, 0).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(PLAYLIST_HEADS):
        raise Refused("not-audio", "a playlist or a page, not a sound")  # ffmpeg would read what it names
    sound = sound_hash(fd)
    out = os.open(temporary.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=temporary.folder)
    with os.fdopen(out, "r+b") as file:
        called = os.fsdecode(name)
        old = retag.write(file, called, tag.tags) if isinstance(tag, TagWrite) else retag.restore(file, called, tag.old)
        file.flush()
        if old is not None and sound_hash(out) != sound:
            raise Refused("sound-changed", "writing the tags would have changed the sound; nothing was written")
        keep_attributes(fd, out, times=False)
        os.fsync(out)
        return old, sha256_of(out)


def sound_hash(fd: int) -> str:
    """SHA-256 of the packets of the first audio stream, as ffmpeg parts them; tags do not count.

    Raises Refused (`not-audio`) and ToolMissing.
    """
    from pipelines import lifeline
    from pipelines.music.ffmpeg import input_arguments

    argv = input_arguments(Path(f"/proc/self/fd/{fd}"))
    argv += ["-map", "0:a:0", "-c", "copy", "-f", "hash", "-hash", "sha256", "-"]
    try:
        done = subprocess.run(
            lifeline.command(*argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HASH_SECONDS,
            pass_fds=[fd],
        )
    except subprocess.TimeoutExpired:
        raise Refused("not-audio", f"ffmpeg had not read it after {HASH_SECONDS} s") from None
    _, _, digest = done.stdout.decode("ascii", "replace").strip().partition("=")
    if done.returncode != 0 or len(digest) != 64:
        raise Refused("not-audio", "ffmpeg finds no sound in it")
    return digest


def commit(tag: TagWrite | TagRestore, roots: Roots, log: ItemLog) -> Item:
    """Put the copy in the file's place, as far as it was not done yet. Raises Refused and OSError."""
    ready, intent = log.last("ready"), log.last("intent")
    assert ready is not None
    assert intent is not None
    with roots.place(tag.source) as source:
        temporary = source.beside(intent["temporary"].encode())
        if not is_still(source, ready["copy"], ready["sha256"]):
            _replace(tag, ready, source, temporary)
        if temporary.stat() is not None:
            if not is_still(temporary, ready["source"], tag.sha256):
                rename_with(RENAME_EXCHANGE, temporary, source)
                raise Refused("source-changed", "another program wrote it at the same moment")
            source.sync()
            temporary.unlink()
        source.sync()
        notes = [f"{what} was not kept" for what in ready["lost"]]
        return _item(tag, source, ready["sha256"], ready["old"], notes)


def _replace(tag: TagWrite | TagRestore, ready: Record, source: Place, temporary: Place) -> None:
    if not is_still(source, ready["source"], tag.sha256):
        raise Refused("source-changed", "it changed after it was verified")
    if not is_still(temporary, ready["copy"], ready["sha256"]):
        raise Refused("failed", "the copy with the new tags is gone; approve it again")
    if not rename_with(RENAME_EXCHANGE, temporary, source):
        move_name(temporary, source)


def abandon(tag: TagWrite | TagRestore, roots: Roots, log: ItemLog) -> bool:
    """Leave nothing of a write that is not done: the copy goes, and nothing but the copy.

    False where the copy is in the file's place already.
    """
    intent, ready = log.last("intent"), log.last("ready")
    if intent is None:
        return True
    with suppress(FileNotFoundError, Refused), roots.place(tag.source) as source:
        temporary = source.beside(intent["temporary"].encode())
        if ready is None or is_still(temporary, ready["copy"], ready["sha256"]):
            temporary.unlink()
        elif is_still(source, ready["copy"], ready["sha256"]):
            return False
    return True


def _item(
    tag: TagWrite | TagRestore, place: Place, sha256: str, old: dict[str, object] | None, notes: Sequence[str]
) -> Item:
    found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    return Item(
        proposal_id=tag.proposal_id,
        action=tag.action,
        source=tag.source,
        path=tag.source,
        sha256_before=tag.sha256,
        sha256=sha256,
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        old=old,
        detail="; ".join(notes),
    )
