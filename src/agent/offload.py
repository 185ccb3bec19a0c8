"""`phaze offload TARGET` sends files of the catalogue to an object store or another machine; `phaze transfers` tells
what became of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from agent.display import AT_MOST, plural
from agent.errors import ConfigError, WrongUse
from agent.operator.server import run, server
from agent.redaction import redact_text
from agent.settings import Settings, load_settings
from pipelines.errors import InputRejected
from pipelines.files.ssh_target import ssh_target
from pipelines.payload import FilePayload, display_path, encode_path

if TYPE_CHECKING:
    from agent.hub.transfers import Chosen, Transfer

SHOWN = 50

Make = Callable[[dict[str, Any]], FilePayload]
"""Completes the fields of a file to a payload."""


@click.command()
@click.argument("target")
@click.argument("paths", nargs=-1, type=click.UNPROCESSED)
@click.option("--bpm", default="", metavar="RANGE", help="As in `phaze tracks`.")
@click.option("--key", default="", metavar="KEY", help="As in `phaze tracks`.")
@click.option("--text", default="", metavar="WORDS", help="As in `phaze tracks`.")
@click.option("--all", "everything", is_flag=True, help="Every file in the catalogue.")
@click.option("--dry-run", is_flag=True, help="Say which, and send nothing.")
def offload(
    target: str, paths: tuple[str, ...], bpm: str, key: str, text: str, everything: bool, dry_run: bool
) -> None:
    """Send files to TARGET: `s3` (PHAZE_S3_*), `ssh` (PHAZE_PUSH_*), or ssh://USER@HOST[:PORT]/FOLDER.

    Which: files and folders by PATH, and the filters of `phaze tracks`; they are in the catalogue already (`phaze up`).
    The io lane does it; nothing is deleted here. What is there already is not sent again.
    """
    from agent.hub.catalogue import Catalogue
    from agent.hub.tracks import BadFilter, TrackFilter

    if not (paths or bpm or key or text or everything):
        raise WrongUse("say which files: by path, --text, --bpm or --key, or --all")
    settings = load_settings()
    service, make, version = target_of(target, settings)
    try:
        wanted = TrackFilter.parse(bpm=bpm, key=key, text=text)
    except BadFilter as error:
        raise click.UsageError(str(error)) from None
    encoded = [encode_path(os.path.abspath(Path(path).expanduser())) for path in paths]  # noqa: PTH100 - links stay
    with Catalogue(settings.data_dir, read_only=True) as catalogue:
        chosen = catalogue.choose_files(settings.agent_id, wanted, encoded)
    if not chosen:
        raise WrongUse("the catalogue has no such file; take its folder through `phaze up` first, see `phaze tracks`")
    jobs = [(str(file.id), make(_fields(file, version))) for file in chosen]
    if dry_run:
        for _, payload in jobs:
            click.echo(f"{service}  {payload.size:>14,}  {display_path(payload.path)}")
        click.echo(f"{plural(len(jobs), 'file')}, {sum(payload.size for _, payload in jobs) / 1e6:,.1f} MB")
        return
    queued = run(_enqueue(settings, service, jobs))
    waiting = f"; {plural(len(jobs) - queued, 'file')} waited already" if queued < len(jobs) else ""
    click.echo(f"{plural(queued, 'file')} queued for {service}{waiting} (`phaze transfers` shows what becomes of them)")


def _fields(file: Chosen, target: str) -> dict[str, Any]:
    return {
        "version": f"{file.sha256}:{target}",
        "path": file.path,
        "size": file.size,
        "mtime_ns": file.mtime_ns,
        "root": file.root,
    }


async def _enqueue(settings: Settings, service: str, jobs: list[tuple[str, FilePayload]]) -> int:
    from agent.producer import Producer

    async with server(settings) as client:
        producer = Producer(client)
        return sum([await producer.enqueue(settings.agent_id, service, record_id, job) for record_id, job in jobs])


def target_of(target: str, settings: Settings) -> tuple[str, Make, str]:
    """(task, what completes a payload, what the version says of the target). Raises ConfigError and WrongUse.

    Another target is another version: the file is sent there too.
    """
    fields: dict[str, Any]
    if target == "s3":
        from pipelines.files.s3_signer import store_host
        from pipelines.files.s3_upload import S3UploadPayload

        if settings.s3_bucket is None:
            raise ConfigError("PHAZE_S3_BUCKET is not set; name the bucket (docs/transfers.md)")
        fields = {"store": store_host(settings.s3_endpoint, settings.s3_region)}
        named = [*fields.values(), settings.s3_bucket, settings.s3_prefix]
        return "s3_upload", lambda file: S3UploadPayload(**file, **fields), _digest(named)
    from pipelines.files.push_file import PushPayload
    from pipelines.files.ssh import known_hosts

    if target == "ssh":
        if settings.push_to is None:
            raise ConfigError("PHAZE_PUSH_TO is not set; give ssh://USER@HOST[:PORT]/FOLDER (docs/transfers.md)")
        target = settings.push_to
    fields = target_fields(target)
    fields["host_keys"] = host_keys(settings, fields["host"], fields["port"])
    try:
        PushPayload(version="-", path="/-", size=0, **fields)
        known_hosts(fields["host_keys"])
    except ValidationError as error:
        raise WrongUse(f"{target} cannot be pushed to: {error.errors()[0]['msg']}") from None
    except InputRejected as error:
        raise ConfigError(f"PHAZE_PUSH_HOST_KEYS={settings.push_host_keys}: {error.detail}") from None
    return "push_file", lambda file: PushPayload(**file, **fields), _digest([str(value) for value in fields.values()])


def target_fields(url: str) -> dict[str, Any]:
    """Of ssh://USER@HOST[:PORT]/FOLDER: host, port, user, destination. Raises WrongUse."""
    try:
        target = ssh_target(url)
    except ValueError as error:
        raise WrongUse(f"{redact_text(url)} is no target; give s3, ssh, or an address, which {error}") from None
    return {"host": target.host, "port": target.port, "user": target.user, "destination": encode_path(target.folder)}


def host_keys(settings: Settings, host: str, port: int) -> list[str]:
    """The lines of PHAZE_PUSH_HOST_KEYS that are that host's, or name none. Raises ConfigError."""
    file = settings.push_host_keys
    if file is None:
        raise ConfigError(f"PHAZE_PUSH_HOST_KEYS is not set; ssh-keyscan -p {port} {host} >FILE, look at it, name it")
    try:
        lines = [line.strip() for line in file.expanduser().read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"PHAZE_PUSH_HOST_KEYS={file} cannot be read; give the path of a readable file") from None
    names = {host, f"[{host}]:{port}"}
    own = [line for line in lines if line and not line.startswith(("#", "@", "|"))]
    found = [
        line
        for line in own
        if line.startswith(("ssh-", "ecdsa-", "sk-")) or names & set(line.split()[0].lower().split(","))
    ]
    if not found:
        raise ConfigError(
            f"PHAZE_PUSH_HOST_KEYS={file} has no key of {host} (hashed names are not looked into); "
            f"ssh-keyscan -p {port} {host} writes it"
        )
    return found


def _digest(named: list[str]) -> str:
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:16]


@click.command()
@click.option("--limit", type=AT_MOST, default=SHOWN, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
def transfers(limit: int, as_json: bool) -> None:
    """Show the last transfers that have ended, the newest first; `phaze why push_file:17` tells of one that has not."""
    from agent.hub.catalogue import Catalogue

    with Catalogue(load_settings().data_dir, read_only=True) as catalogue:
        found = catalogue.transfers(limit)
    if as_json:
        click.echo(json.dumps([transfer.as_json() for transfer in found], indent=2))
        return
    for transfer in found:
        click.echo(line_of(transfer))
    click.echo(plural(len(found), "transfer"))


def line_of(transfer: Transfer) -> str:
    """One line: key, outcome, and how it is known or why not."""
    result = transfer.result
    if transfer.outcome != "done":
        said = transfer.reason or ""
    else:
        where = f"s3://{result['bucket']}/{result['key']}" if result.get("bucket") else f"{result.get('host')}"
        megabytes, rate = result.get("bytes", 0) / 1e6, result.get("rate", 0.0) / 1e6
        said = f"{megabytes:,.1f} MB at {rate:.1f} MB/s to {where}, verified: {result.get('verified')}"
    return f"{transfer.service}:{transfer.record_id}  {transfer.outcome}  {transfer.path}  {said}"
