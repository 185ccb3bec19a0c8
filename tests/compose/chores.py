"""What the hub and the lanes io and meta do, each once; test_light_image.py runs it in a container of that image.

It takes one JSON object and prints one: what became of each chore, or the error.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import pkgutil
import pwd
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

import agent
import pipelines
from pipelines.context import InlineContext
from pipelines.files.execute_approved_batch import BatchPayload, Move, TagWrite, execute_approved_batch
from pipelines.files.push_file import PushPayload, push_file
from pipelines.files.s3_signer import S3Signer
from pipelines.files.s3_upload import S3UploadPayload, s3_upload
from pipelines.music.fingerprint import fingerprint
from pipelines.music.live_set import Hearing, LiveSetPayload, scan_live_set
from pipelines.music.metadata import read_metadata
from pipelines.music.print_index import PrintIndex
from pipelines.music.prints import decode_items
from pipelines.music.scan import ScanPayload, scan_directory
from pipelines.payload import encode_path

Given = dict[str, Any]


def fields(path: Path) -> Given:
    found, digest = path.stat(), hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "version": f"{digest}:test",
        "path": encode_path(path),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "root": encode_path(path.parent),
    }


async def modules(_given: Given) -> list[str]:
    """Packages without which a module of ours cannot be imported."""
    missing = set()
    for package in (agent, pipelines):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:
                    missing.add((error.name or "").partition(".")[0])
    return sorted(missing)


async def who(_given: Given) -> list[Any]:
    return [os.getuid(), pwd.getpwuid(os.getuid()).pw_dir]


async def scan(given: Given) -> int:
    context = InlineContext("1")
    await scan_directory(context, ScanPayload(version="1", root=encode_path(Path(given["music"]))))
    return sum(len(getattr(part, "files", [])) for part in context.parts)


async def tags(given: Given) -> list[Any]:
    found = [read_metadata(Path(given[name])) for name in ("tagged", "untagged")]
    return [[facts.outcome, facts.title, facts.codec, facts.sample_rate] for facts in found]


async def index(given: Given) -> list[Any]:
    """The hub's index, kept, read again and asked; a set whose tracklist beside it is in an old code page."""
    folder = Path("/tmp/prints")
    items = np.array(decode_items(fingerprint(Path(given["tagged"])).raw), dtype=np.uint32)
    kept = PrintIndex(folder)
    kept.admit("song", items)
    kept.checkpoint()
    found = [span.track for span in PrintIndex(folder, read_only=True).find(items)]
    hears = InlineContext("9", {"prints": lambda _question: Hearing(heard=[], indexed=1).model_dump()})
    path = Path(given["set"])
    listed = await scan_live_set(hears, LiveSetPayload(**fields(path)))
    return [len(found), [[track.artist, track.title] for track in listed.tracks]]


async def s3(given: Given) -> list[Any]:
    signer = S3Signer(
        bucket="archive", access_key_id="AK", secret_access_key="SK", endpoint=given["store"], addressing="path"
    )
    path = Path(given["tagged"])
    sent = await s3_upload(
        InlineContext("3", {"s3": signer.answer_for("song")}), S3UploadPayload(**fields(path), store="moto")
    )
    return [sent.outcome, sent.verified, sent.bytes == path.stat().st_size]


async def push(given: Given) -> list[Any]:
    context = InlineContext("4", {"ssh-key": lambda _question: {"key": given["key"]}})
    sent = await push_file(context, PushPayload(**fields(Path(given["tagged"])), **given["far"]))
    return [sent.outcome, sent.verified]


async def approved(given: Given) -> list[Any]:
    """Tags written and a file moved."""
    source = Path(given["mine"])
    sha = hashlib.sha256(source.read_bytes()).hexdigest()
    retag = TagWrite(proposal_id="1", source=encode_path(source), sha256=sha, tags={"title": ["Anew"]})
    other = Path(given["moved"])
    sha = hashlib.sha256(other.read_bytes()).hexdigest()
    there = other.parent / "there" / other.name
    move = Move(proposal_id="2", source=encode_path(other), destination=encode_path(there), sha256=sha)
    payload = BatchPayload(version="1", roots=[encode_path(source.parent)], proposals=[retag, move])
    report = await execute_approved_batch(InlineContext("5"), payload)
    return [report.outcome, read_metadata(source).title, there.exists() and not other.exists()]


CHORES: tuple[Callable[[Given], Awaitable[Any]], ...] = (modules, who, scan, tags, index, s3, push, approved)


async def main(given: Given) -> Given:
    found: Given = {}
    for chore in CHORES:
        try:
            found[chore.__name__] = await chore(given)
        except Exception:
            found[chore.__name__] = traceback.format_exc()[-2000:]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
