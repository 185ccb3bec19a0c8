"""The tasks that every file in the catalogue is owed, and what their results stand for."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import get_args
from urllib.parse import urlsplit

from pipelines.files.proposals import BatchPayload
from pipelines.music import analyze, fingerprint, ingest, live_set, metadata, scan
from pipelines.music.profiles import Profile, profile_name
from pipelines.payload import FilePayload, Outcome, Payload

METADATA = "extract_file_metadata"
FINGERPRINT = "fingerprint_file"
ANALYSIS = "process_file"
INGEST = "ingest_file"
SCAN = "scan_directory"
BATCH = "execute_approved_batch"
SET = "scan_live_set"

OUTCOMES: tuple[str, ...] = get_args(Outcome)

FOUND = frozenset({"done", "partial"})
"""Outcomes that found something out about the content, not only about the one file."""


@dataclass(frozen=True)
class FileTask:
    """One task that every file is owed, once for each content and profile."""

    profile: str
    """Second half of the version: a new one owes every file the task again."""
    payload: Callable[..., FilePayload]
    """Built from `version`, `path` and `root` (percent-encoded), `size` (bytes) and `mtime_ns`."""
    shortest: float = 0.0
    """Seconds of sound, as fingerprinted, from which a file is owed it; for those of SET_TASKS."""


FILE_TASKS: dict[str, FileTask] = {
    METADATA: FileTask("3", metadata.MetadataPayload),
    FINGERPRINT: FileTask("2", fingerprint.FingerprintPayload),
    ANALYSIS: FileTask(profile_name("default"), analyze.AnalyzePayload),
}

SET_TASKS: dict[str, FileTask] = {SET: FileTask("1", live_set.LiveSetPayload, 20 * 60.0)}
"""What a file that is long enough is owed once it has a fingerprint."""

OWED_TASKS: Mapping[str, FileTask] = ChainMap(FILE_TASKS, SET_TASKS)

ABOUT_FILES = frozenset({*FILE_TASKS, INGEST, SET, "s3_upload", "push_file"})
"""Tasks whose record id is a file's id in the catalogue; that of any other, another package's too, may be any text."""


def use_profile(profile: Profile) -> None:
    """Owe every file the analysis of this profile (PHAZE_PROFILE); before a catalogue is opened for writing."""
    FILE_TASKS[ANALYSIS] = FileTask(profile_name(profile), analyze.AnalyzePayload)


def use_engine(url: str | None) -> None:
    """Owe every file to this fingerprint engine as well, or (None) to none. Before the catalogue is opened."""
    FILE_TASKS.pop(INGEST, None)
    if url is not None:
        FILE_TASKS[INGEST] = FileTask(urlsplit(url).netloc, partial(ingest.IngestPayload, engine=url))


def use_sets(minutes: float) -> None:
    """Owe files of so many minutes and more their tracklist, or (0) none. Before the catalogue is opened."""
    SET_TASKS.clear()
    if minutes:
        SET_TASKS[SET] = FileTask("1", live_set.LiveSetPayload, minutes * 60)


def version_for(service: str, sha256: str) -> str:
    """`<sha256>:<profile>`: what a result of that task stands for."""
    return f"{sha256}:{OWED_TASKS[service].profile}"


def file_payload(service: str, *, version: str, path: str, size: int, mtime_ns: int, root: str) -> Payload:
    """What goes into one of the file tasks."""
    return OWED_TASKS[service].payload(version=version, path=path, size=size, mtime_ns=mtime_ns, root=root)


def batch_payload(*, version: str, request: str) -> Payload:
    """What goes into execute_approved_batch; `request` is JSON of roots and proposals."""
    return BatchPayload.model_validate({"version": version, **json.loads(request)})


def scan_payload(*, version: str, root: str, paths: str, mounts: str, reread: bool) -> Payload:
    """What goes into scan_directory; `paths` and `mounts` are JSON lists, or empty."""
    lists = {"paths": json.loads(paths or "[]"), "mounts": json.loads(mounts or "[]")}
    return scan.ScanPayload(version=version, root=root, **lists, reread=reread)
