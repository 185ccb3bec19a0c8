"""`phaze dlq` and `phaze quarantine`: list, show, replay, drop; by key, by task or all, with a dry run."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator

import click

from agent.display import plural
from agent.errors import WrongUse
from agent.lanes import AGENT_TASKS
from agent.operator.server import run, server
from agent.phoenix import keys
from agent.phoenix.letters import Letter, Letters, places
from agent.redaction import redact_text
from agent.settings import load_settings

SHOWN = 300
"""Characters of one argument."""


def _group(name: str, place_of: Callable[[str], str], about: str) -> click.Group:
    @click.group(name=name, help=about)
    def group() -> None:
        """Filled below."""

    choose = (
        click.argument("wanted", metavar="[KEY]...", nargs=-1),
        click.option("--task", help="All of one task; `unknown`: the jobs of no task."),
        click.option("--all", "everything", is_flag=True, help="All of them."),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
    )

    @group.command("list", help="One line each: key, age, attempts, error.")
    @click.option("--task", help="Only one task's; `unknown`: the jobs of no task.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON list.")
    def list_(task: str | None, as_json: bool) -> None:
        found = run(_all(place_of, task))
        if as_json:
            click.echo(json.dumps([letter.said for letter in found], indent=2))
            return
        for letter in found:
            attempts = plural(int(letter.said.get("attempts") or 0), "attempt")
            click.echo(f"{letter.key}  {_age(letter)}  {attempts}  {letter.error}")
        click.echo(plural(len(found), "job"))

    @group.command("show", help="What one was asked to do, and why it is here; --json has the traceback too.")
    @click.argument("key")
    @click.option("--json", "as_json", is_flag=True, help="Everything that is known, as one JSON object.")
    def show(key: str, as_json: bool) -> None:
        for letter in run(_chosen(place_of, (key,), None, False)):
            click.echo(json.dumps(letter.said, indent=2) if as_json else "\n".join(_described(letter)))

    def act(command: str, doing: str, how: Callable[[Letters, Letter], Awaitable[str]], text: str) -> None:
        def action(wanted: tuple[str, ...], task: str | None, everything: bool, dry_run: bool) -> None:
            run(_act(place_of, wanted, task, everything, dry_run, doing, how))

        for decorate in reversed(choose):
            action = decorate(action)
        group.command(command, help=text)(action)

    async def replay(letters: Letters, letter: Letter) -> str:
        return await letters.replay(letter)

    async def drop(letters: Letters, letter: Letter) -> str:
        return "dropped" if await letters.drop(letter) else "gone"

    act("replay", "would be queued", replay, "Queue them again, as if they were new.")
    act("drop", "would be dropped", drop, "Throw them away for good.")
    return group


async def _all(place_of: Callable[[str], str], task: str | None) -> list[Letter]:
    async with server(load_settings()) as client:
        known = await places(client, AGENT_TASKS)
        found = await Letters(client, place_of, known).all(task)
    if task is not None and task not in known and not found:
        raise WrongUse(f"there is no task {task}; there are {', '.join(known)}")
    return found


async def _chosen(
    place_of: Callable[[str], str], wanted: tuple[str, ...], task: str | None, everything: bool
) -> list[Letter]:
    if bool(wanted) + bool(task) + everything != 1:
        raise WrongUse("name the jobs by key, or give --task, or --all")
    found = await _all(place_of, task)
    if not wanted:
        return found
    chosen = [letter for letter in found if letter.key in wanted]
    if missing := set(wanted) - {letter.key for letter in chosen}:
        raise WrongUse(f"there is no {', '.join(sorted(missing))}; `list` shows what there is")
    return chosen


async def _act(
    place_of: Callable[[str], str],
    wanted: tuple[str, ...],
    task: str | None,
    everything: bool,
    dry_run: bool,
    doing: str,
    how: Callable[[Letters, Letter], Awaitable[str]],
) -> None:
    chosen = await _chosen(place_of, wanted, task, everything)
    async with server(load_settings()) as client:
        letters = Letters(client, place_of, ())
        for letter in chosen:
            click.echo(f"{letter.key}: {doing if dry_run else await how(letters, letter)}")
    click.echo(plural(len(chosen), "job"))


def _described(letter: Letter) -> Iterator[str]:
    """One letter as people read it; its arguments without secrets."""
    said = letter.said
    yield f"{letter.key} on {letter.queue}"
    yield f"  {letter.error}"
    attempts = plural(int(said.get("attempts") or 0), "attempt")
    yield f"  {attempts}, the last {_age(letter)} by {said.get('worker') or '?'}"
    for name, value in letter.arguments.items():
        yield f"  {name} = {redact_text(str(value))[:SHOWN]}"


def _age(letter: Letter) -> str:
    last = letter.said.get("last")
    if not isinstance(last, int | float):
        return ""
    minutes = int(time.time() - last) // 60
    return (
        f"{minutes // 1440} d ago"
        if minutes >= 1440
        else f"{minutes // 60} h ago"
        if minutes >= 60
        else f"{minutes} min ago"
    )


dlq = _group("dlq", keys.dead_letters_key, "Dead letters: jobs whose record was not there.")
quarantine = _group(
    "quarantine", keys.quarantine_key, "Quarantine: jobs that cannot run as they are, or that kill what runs them."
)
