"""`phaze approve`, `phaze undo`, `phaze batches`: files moved, renamed and tagged, and all of it taken back."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

import click

from agent.display import plural
from agent.errors import WrongUse
from agent.operator.hub import Hub
from agent.settings import load_settings
from pipelines.errors import InputRejected
from pipelines.files.proposals import BatchPayload, Item, Move, Proposal, TagWrite
from pipelines.payload import display_path

POLL = 0.3
"""Seconds between two looks at a batch."""

LEFT_OVER = 3
"""Exit code where something was not done."""

_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would happen.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.command()
@click.argument("file", type=click.File("r", encoding="utf-8"))
@_YES
@_DRY_RUN
@_JSON
def approve(file: TextIO, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Do the proposals in FILE (- for standard input): moves, renames, tags.

    Shows what will happen, asks, and reports each. Nothing is ever overwritten. docs/approved-moves.md says more.
    """
    try:
        document = json.load(file)
    except ValueError as error:
        raise WrongUse(f"{file.name} is not JSON ({error})") from None
    if isinstance(document, list):
        document = {"proposals": document}
    if not isinstance(document, dict):
        raise WrongUse(f'{file.name} must hold {{"proposals": [...]}}')
    request = {name: document[name] for name in ("proposals", "roots") if name in document}
    _go("/api/batches", request, yes=yes, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("batch")
@_YES
@_DRY_RUN
@_JSON
def undo(batch: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Take back what BATCH did: files go back to their old names, old tags are put back.

    A file that changed since, or whose old name is taken, is left alone. Undoing twice changes nothing.
    """
    if not batch.isalnum():
        raise WrongUse(f"{batch} is not a batch; `phaze batches list` shows them")
    _go(f"/api/batches/{batch}/undo", {}, yes=yes, dry_run=dry_run, as_json=as_json)


def _go(path: str, request: dict[str, Any], *, yes: bool, dry_run: bool, as_json: bool) -> None:
    hub = Hub(load_settings())
    payload = BatchPayload.model_validate(hub.post(path, {**request, "dry_run": True})["payload"])
    if dry_run or not yes:
        preview = _look(payload)
        if dry_run and as_json:
            click.echo(json.dumps({"dry_run": True, "items": preview}, indent=2))
        else:
            for proposal in payload.proposals:
                said = preview.get(proposal.proposal_id) or "would be done"
                click.echo(line(proposal, said), err=as_json)
    if dry_run:
        return
    if not yes:
        click.confirm(f"Do {plural(len(payload.proposals), 'proposal')}?", abort=True, err=as_json)
    batch_id = hub.post(path, request)["batch"]
    _follow(hub, batch_id, payload, as_json)


def _look(payload: BatchPayload) -> dict[str, str]:
    """What can be seen from here; the agent looks again, and its word counts."""
    from pipelines.files.checking import look

    try:
        return look(payload)
    except InputRejected as error:
        raise WrongUse(str(error)) from None


def _follow(hub: Hub, batch_id: str, payload: BatchPayload, as_json: bool) -> None:
    if not as_json:
        click.echo(f"batch {batch_id}; `phaze why execute_approved_batch:{batch_id}` says where it is")
    while (batch := hub.get(f"/api/batches/{batch_id}"))["state"] == "open":
        time.sleep(POLL)
    items = {item.proposal_id: item for item in map(Item.model_validate, batch["details"])}
    if as_json:
        click.echo(json.dumps(batch, indent=2))
    else:
        _tell(batch, payload, items)
    if any(item.outcome != "done" for item in items.values()) or len(items) < len(payload.proposals):
        sys.exit(LEFT_OVER)


def _tell(batch: dict[str, Any], payload: BatchPayload, items: dict[str, Item]) -> None:
    for proposal in payload.proposals:
        item = items.get(proposal.proposal_id)
        click.echo(line(proposal, "not done" if item is None else ending(item)))
    said = f"batch {batch['id']}: {batch['done']} of {plural(batch['proposals'], 'proposal')} done"
    if not items and batch["reason"]:
        said += f" ({batch['reason']})"
    if batch["done"]:
        said += f"; `phaze undo {batch['id']}` takes it back"
    click.echo(said)


def line(proposal: Proposal, said: str) -> str:
    """One proposal for people: `1: /m/a.mp3 -> /m/b.mp3: done`."""
    what = display_path(proposal.source)
    if isinstance(proposal, Move):
        what += f" -> {display_path(proposal.destination)}"
    elif isinstance(proposal, TagWrite):
        what += f": {', '.join(sorted(proposal.tags))}"
    else:
        what += ": its old tags"
    return "".join(c if c.isprintable() else " " for c in f"{proposal.proposal_id}: {what}: {said}")


def ending(item: Item) -> str:
    """`done`, `destination-exists (it is never overwritten)`."""
    return (item.reason or item.outcome) + (f" ({item.detail})" if item.detail else "")


@click.group()
def batches() -> None:
    """Approved batches: list them, show one."""


@batches.command("list")
@_JSON
def list_(as_json: bool) -> None:
    """The last hundred, the newest first."""
    found = Hub(load_settings()).get("/api/batches")["batches"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for batch in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(batch["requested_at"]))
        undoes = f", undoes {batch['undoes']}" if batch["undoes"] else ""
        click.echo(f"{batch['id']}  {when}  {batch['state']}: {batch['done']} of {batch['proposals']} done{undoes}")
    click.echo(plural(len(found), "batch").replace("batchs", "batches"))


@batches.command()
@click.argument("batch")
def show(batch: str) -> None:
    """Everything that is known of one, as JSON."""
    click.echo(json.dumps(Hub(load_settings()).get(f"/api/batches/{batch}"), indent=2))
