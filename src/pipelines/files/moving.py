"""One move, in two steps that may each be done again after a kill.

`prepare` changes nothing that anybody would notice: it verifies, makes missing folders, and across file systems copies
to a temporary name beside the destination. `commit` gives the destination its name, then takes the source's away.
Wherever it is killed, the journal's `intent` and `ready` say what may lie where, and `commit` goes on from there.

A rename that changes only case or normalisation, on a file system to which both names are one, goes by the temporary
name: source -> temporary -> destination.
"""

from __future__ import annotations

import os
import secrets
import unicodedata
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from pipelines.files.content import copy, holds, identity, is_still, open_file, sha256_of
from pipelines.files.folders import Place, Refused, Roots
from pipelines.files.journal import ItemLog, Record
from pipelines.files.proposals import Item, Move
from pipelines.files.publish import move_name, publish


def temporary_name() -> str:
    """A name that nobody else has: `.phaze-<16 hex digits>.tmp`."""
    return f".phaze-{secrets.token_hex(8)}.tmp"


def prepare(move: Move, roots: Roots, log: ItemLog) -> Item | None:
    """Everything up to the point of no return; an Item if there is nothing to do. Raises Refused and OSError."""
    with ExitStack() as stack:
        source = stack.enter_context(roots.existing(move.source))
        fd = _opened(stack, source)
        if source is None or fd is None:
            return _there_already(move, roots)
        if sha256_of(fd) != move.sha256:
            raise Refused("source-changed", "its content is not what was approved")
        missing = roots.missing(move.destination)
        alias = not missing and is_alias(move, roots, source)
        made = [*dict.fromkeys([*made_by(log), *missing])]
        intent = log.last("intent") or log.append("intent", temporary=temporary_name(), made=made)
        target = stack.enter_context(roots.place(move.destination, make=intent["made"]))
        temporary = target.beside(intent["temporary"].encode())
        fields: Record = {"source": identity(os.fstat(fd)), "alias": alias, "copy": None, "lost": []}
        if log.ever("cross-device") or os.fstat(fd).st_dev != os.fstat(target.folder).st_dev:
            temporary.unlink()  # half of a copy, from a run that was killed
            fields["lost"] = copy(fd, temporary, move.sha256)
            fields["copy"] = identity(os.stat(temporary.name, dir_fd=target.folder, follow_symlinks=False))
        log.append("ready", **fields)
    return None


def _opened(stack: ExitStack, source: Place | None) -> int | None:
    with suppress(FileNotFoundError):
        if source is not None:
            fd = open_file(source)
            stack.callback(os.close, fd)
            return fd
    return None


def _there_already(move: Move, roots: Roots) -> Item:
    """The source is gone: fine if the destination has what was approved, as after a run whose journal was lost."""
    with roots.existing(move.destination) as target:
        if target is None or not holds(target, move.sha256):
            raise Refused("vanished", "there is no such file (any more)")
        return _item(move, target, [], ["it was there already"])


def made_by(log: ItemLog) -> list[str]:
    """The folders that the item has made, or was about to make, in this run or one that was killed."""
    return [folder for intent in log.ever("intent") for folder in intent["made"]]


def is_alias(move: Move, roots: Roots, source: Place) -> bool:
    """Whether the destination is the source under another spelling. Raises Refused if it is anything else."""
    with roots.place(move.destination) as target:
        if target.stat() is None:
            return False
        if os.path.samestat(os.fstat(target.folder), os.fstat(source.folder)):
            if target.name == source.name:
                raise Refused("same-path", "source and destination are one")
            if same_but_case(source.name, target.name) and not target.is_listed():
                return True
        raise Refused("destination-exists", "it is never overwritten")


def same_but_case(one: bytes, other: bytes) -> bool:
    """Whether two names differ in case and normalisation at most."""

    def folded(name: bytes) -> str:
        text = unicodedata.normalize("NFD", os.fsdecode(name)).casefold()
        return unicodedata.normalize("NFD", text)

    return folded(one) == folded(other)


def commit(move: Move, roots: Roots, log: ItemLog) -> Item:
    """Publish, then remove the source; as far as it was not done yet. Raises Refused, CrossDevice and OSError."""
    ready, intent = log.last("ready"), log.last("intent")
    assert ready is not None
    assert intent is not None
    with ExitStack() as stack:
        source = stack.enter_context(roots.existing(move.source))
        target = stack.enter_context(roots.place(move.destination, make=intent["made"]))
        temporary = target.beside(intent["temporary"].encode())
        if not _arrived(move, ready, source, target, temporary, log):
            _arrive(move, ready, source, target, temporary, log)
        target.sync()
        if is_still(temporary, ready["copy"] or ready["source"], move.sha256):
            temporary.unlink()
        notes = [f"{what} was not kept" for what in ready["lost"]]
        if source is not None and not ready["alias"]:
            if _one_file(source, target) or is_still(source, ready["source"], move.sha256):
                source.unlink()
                source.sync()
            elif source.stat() is not None:
                if ready["copy"] is not None:
                    raise Refused("source-changed", "it changed while it was copied")
                notes.append("another file has got the old name meanwhile; it was left alone")
        target.sync()
        item = _item(move, target, intent["made"], notes)
    roots.remove_empty(list(reversed(move.prune)))
    return item


def _arrived(move: Move, ready: Record, source: Place | None, target: Place, temporary: Place, log: ItemLog) -> bool:
    """Whether the destination is our file, from a run that was killed."""
    found = target.stat()
    if found is None:
        return False
    claimed = log.ever("claim") and found.st_size == 0 and move.sha256 != EMPTY
    if claimed and (not ready["alias"] or temporary.stat() is not None):
        target.unlink()  # the empty file that took the name for us
        return False
    if ready["alias"]:  # under either spelling; done only once it is listed under the new one
        return target.is_listed() and holds(target, move.sha256)
    if _is_ours(found, ready):
        return True
    origin = source if ready["copy"] is None else temporary
    gone = origin is None or origin.stat() is None
    return gone and holds(target, move.sha256)


def _is_ours(found: os.stat_result, ready: Record) -> bool:
    """Whether it is the verified file or its copy, by inode: `prepare` had seen no such name."""
    was = ready["copy"] or ready["source"]
    return identity(found)[:2] == list(was[:2])


def _one_file(one: Place, other: Place) -> bool:
    mine, theirs = one.stat(), other.stat()
    return mine is not None and theirs is not None and os.path.samestat(mine, theirs)


EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing."""


def _arrive(move: Move, ready: Record, source: Place | None, target: Place, temporary: Place, log: ItemLog) -> None:
    origin, was = (source, ready["source"]) if ready["copy"] is None else (temporary, ready["copy"])
    if ready["alias"]:
        if temporary.stat() is None and source is not None and is_still(source, was, move.sha256):
            move_name(source, temporary)
            temporary.sync()
        origin = temporary
    if origin is None or not is_still(origin, was, move.sha256):
        raise Refused("source-changed", "it changed after it was verified")
    fd = open_file(origin)
    try:
        publish(fd, origin, target, claim=lambda: log.append("claim"))
        if identity(os.fstat(fd))[2:] != list(was)[2:]:
            raise Refused("source-changed", "it was written to while it was moved")
        if ready["alias"]:
            temporary.unlink()
    finally:
        os.close(fd)


def abandon(move: Move, roots: Roots, log: ItemLog) -> bool:
    """Leave nothing of a move that is not done: no temporary file, no folder, and the file under its old name alone.

    False where the file is at its destination already, and no longer under its old name.
    """
    intent = log.last("intent")
    if intent is None:
        return True
    ready = log.last("ready")
    with suppress(FileNotFoundError, Refused), ExitStack() as stack:
        source = stack.enter_context(roots.existing(move.source))
        target = stack.enter_context(roots.place(move.destination))
        temporary = target.beside(intent["temporary"].encode())
        if ready is None:
            temporary.unlink()
        elif source is not None:
            _take_back(move, ready, source, target, temporary, log)
        found = target.stat()
        if ready is not None and found is not None and _is_ours(found, ready) and not ready["alias"]:
            return False
    roots.remove_empty(intent["made"])
    return True


def _take_back(move: Move, ready: Record, source: Place, target: Place, temporary: Place, log: ItemLog) -> None:
    if ready["alias"]:
        if temporary.stat() is not None and source.stat() is None:
            _rename_back(temporary, source, log)
        return
    found = target.stat()
    if found is not None and _is_ours(found, ready) and source.stat() is not None:
        # Under both names: what was published is taken away again.
        target.unlink()
        target.sync()
    if ready["copy"] is not None and is_still(temporary, ready["copy"], move.sha256):
        temporary.unlink()


def _rename_back(temporary: Place, source: Place, log: ItemLog) -> None:
    fd = open_file(temporary)
    try:
        publish(fd, temporary, source, claim=lambda: log.append("claim"))
        temporary.unlink()
    finally:
        os.close(fd)


def _item(move: Move, target: Place, made: Sequence[str], notes: Sequence[str]) -> Item:
    found = os.stat(target.name, dir_fd=target.folder, follow_symlinks=False)
    return Item(
        proposal_id=move.proposal_id,
        action="move",
        source=move.source,
        path=move.destination,
        sha256_before=move.sha256,
        sha256=move.sha256,
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        made=list(made),
        detail="; ".join(notes),
    )
