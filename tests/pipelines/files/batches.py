"""Batches as tests ask for them, run in this process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.context import InlineContext
from pipelines.files.execute_approved_batch import BatchPayload, BatchReport, Move, TagWrite, execute_approved_batch
from pipelines.files.proposals import Proposal
from pipelines.payload import encode_path


def sha(content: bytes | Path) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.read_bytes()).hexdigest()


def move(source: Path | bytes, destination: Path | bytes, *, name: str = "1", **fields: Any) -> Move:
    """A move of what is there now."""
    given = {"source": encode_path(source), "destination": encode_path(destination), **fields}
    if "sha256" not in given:
        given["sha256"] = sha(Path(source)) if isinstance(source, Path) and source.is_file() else "0" * 64
    return Move(proposal_id=name, **given)


def tag(source: Path, *, name: str = "1", **tags: list[str]) -> TagWrite:
    return TagWrite(proposal_id=name, source=encode_path(source), sha256=sha(source), tags=tags)


def run(*proposals: Proposal, roots: Sequence[Path], batch: str = "batch", token: str = "0") -> BatchReport:
    payload = BatchPayload(version="1", roots=[encode_path(root) for root in roots], proposals=list(proposals))
    context = InlineContext(batch)
    context.token = token
    return asyncio.run(execute_approved_batch(context, payload))


def tree(*folders: Path) -> dict[str, bytes | None]:
    """Every file with its content and every folder, by path; links by where they lead."""
    found: dict[str, bytes | None] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            link = path.is_symlink()
            found[str(path)] = bytes(path.readlink()) if link else path.read_bytes() if path.is_file() else None
    return found
