"""ingest_file: one file into another fingerprint engine, read back before it counts as stored."""

from __future__ import annotations

from urllib.parse import urlsplit

from pipelines.context import Policy, TaskContext, task
from pipelines.errors import InputRejected
from pipelines.music.engines import NotStored, ingest_checked
from pipelines.music.fingerprint import fingerprint
from pipelines.music.limits import decode_seconds
from pipelines.music.on_file import on_file
from pipelines.music.prints import decode_items, is_telling
from pipelines.music.probe import Probe, probe
from pipelines.payload import FilePayload, PlainAddress, TaskResult, decode_path


class IngestPayload(FilePayload):
    """One audio file for an engine. `version` is its sha256 plus the engine's name."""

    engine: PlainAddress
    """http(s) address of the engine, without user or password: it is shown."""


class Ingested(TaskResult):
    """What an engine stored, and found again when it was asked for it."""

    engine: str = ""
    item: str = ""
    """The name under which the engine holds it: the record's id."""
    hashes: int = 0


def engine_of(payload: IngestPayload) -> str:
    """The dependency: `engine:<host>`, so that an engine's outage holds up nothing but its own work."""
    return f"engine:{urlsplit(payload.engine).netloc}"


@task(Policy(timeout=decode_seconds, dependency=engine_of))
async def ingest_file(ctx: TaskContext, payload: IngestPayload) -> Ingested:
    """Raises EngineDown (retried; the circuit counts it), InputRejected (the file), and what `probe` raises."""
    from pipelines.music.sidecar import SidecarEngine

    path = decode_path(payload.path)
    found: Probe = await ctx.child(on_file, payload, probe, path)
    engine = SidecarEngine(payload.engine, timeout=decode_seconds(payload))
    try:
        hashes = await ingest_checked(engine, ctx.record_id, path, None if found.estimated else found.duration)
    except NotStored:
        # Silence and test tones are like all others of their kind: nothing finds them again, and no engine is to blame.
        own = await ctx.child(on_file, payload, fingerprint, path)
        if not is_telling(decode_items(own.raw)):
            raise InputRejected("monotonous", "too short or too monotonous to be found again") from None
        raise
    finally:
        await engine.close()
    return Ingested(engine=engine.name, item=ctx.record_id, hashes=hashes)
