"""`phaze documents`: folders, files and addresses of PDFs; a table of what was found, without key or server."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.display import plural
from agent.documents.libraries import libraries_are_there
from agent.errors import StartError, WrongUse
from agent.names import clean
from pipelines.saying import Listener

if TYPE_CHECKING:
    from agent.documents.table import Findings

LEFT_OVER = 3
"""Exit code: some documents were not read, or not all of one."""

WIDE = 160
"""Width of the table where there is no terminal."""

MOST_LINES = 20
"""Of what was not read, and of names without an analyte, under the table."""


@click.command()
@click.argument("sources", nargs=-1, metavar="DIR_OR_URL...", type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="All facts and groups as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="A result a line.")
@click.option("--samples", is_flag=True, help="Use a small set of reports that is printed on the spot.")
@click.option("--send", is_flag=True, help="Hand them to the lanes of a running `phaze up --documents`, and end.")
@click.option("--user", metavar="ID", help="With --send: for whom, and at whose cost. With --recorded: whose.")
@click.option("--recorded", is_flag=True, help="Show what those lanes have recorded; read nothing.")
def documents(
    sources: tuple[str, ...], as_json: bool, as_csv: bool, samples: bool, send: bool, user: str | None, recorded: bool
) -> None:
    """Read lab reports (PDF) and show their results over time, each analyte in one unit; a star is the report's flag.

    Folders are searched for *.pdf. Addresses must be public (PHAZE_DOCUMENT_NETWORKS allows others). Everything is done
    on this machine, by rules, without a model. Exit code 3: some documents were not read, or not whole.
    """
    if as_json and as_csv:
        raise click.UsageError("give one of --json and --csv")
    if recorded and (sources or samples or send):
        raise click.UsageError("--recorded shows what is in the catalogue; give it no documents, --samples or --send")
    if send and (samples or as_json or as_csv):
        raise click.UsageError("--send hands documents in and shows nothing; `phaze documents --recorded` does")
    if user is not None and not (send or recorded):
        raise click.UsageError("--user goes with --send or --recorded")
    if not sources and not samples and not recorded:
        raise click.UsageError("nothing to do: give a folder of PDFs, files or addresses, or --samples")
    if not send:  # whoever hands in need not be able to read
        libraries_are_there()
    from agent import budget
    from agent.documents.reading import Document, read_all
    from agent.documents.table import Findings
    from agent.settings import load_settings

    settings = load_settings()
    if recorded:
        from agent.documents import service

        _show(Findings(service.recorded(settings, user)), as_json=as_json, as_csv=as_csv)
        return
    with ExitStack() as stack:
        found, unread = _found(sources)
        if send and found:
            _send(found, user, unread)
            return
        if samples:
            found += _sample_set(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phaze-samples-"))))
        if not found:
            raise WrongUse("there is no PDF (*.pdf) in what was given; give a file by its name, or another folder")
        begun, ended = _shown(stack, len(found))
        read: list[Document] = asyncio.run(
            read_all(
                found,
                at_once=max(1, int(budget.cores())),
                memory_mb=settings.child_memory_mb,
                begun=begun,
                ended=ended,
            )
        )
    _show(Findings(read), as_json=as_json, as_csv=as_csv, unread=unread)


def _send(found: list[str], user: str | None, unread: list[str]) -> None:
    from agent.documents import service
    from agent.settings import load_settings

    broken = service.send(load_settings(), found, service.LOCAL if user is None else user)
    count = plural(len(found) - len(broken), "document")
    click.echo(
        f"{count} handed in; `phaze documents --recorded` shows what came of them, the page /records how far each is"
    )
    _end([*broken, *(f"{folder}: it cannot be looked into" for folder in unread)])


def _show(findings: Findings, *, as_json: bool, as_csv: bool, unread: Sequence[str] = ()) -> None:
    """Print it as asked for, and end."""
    if as_json:
        click.echo(findings.json())
    elif as_csv:
        click.echo(findings.csv(shown=sys.stdout.isatty()).encode(), nl=False)
    else:
        _print(findings)
    broken = [f"{one.source}: {one.outcome}: {one.reason}" for one in findings.documents if one.outcome != "done"]
    if several := findings.several_persons():
        broken.append(several)
    _end([*broken, *(f"{folder}: it cannot be looked into" for folder in unread)])


def _end(broken: list[str]) -> None:
    """Say what is left over, and exit."""
    for line in _cut(broken):
        click.echo(clean(line), err=True)
    sys.exit(LEFT_OVER if broken else 0)


def _found(sources: tuple[str, ...]) -> tuple[list[str], list[str]]:
    from agent.documents.reading import is_address, pdfs_below

    found: list[str] = []
    unread: list[str] = []
    for source in sources:
        if is_address(source):
            found.append(source)
            continue
        path = Path(source or ".").expanduser().absolute()
        if not source or not path.exists():
            raise WrongUse(f"{source or 'an empty path'} does not exist; give a folder of PDFs, a file, or an address")
        if path.is_dir():
            below, not_read = pdfs_below(path)
            found += below
            unread += not_read
        else:
            found.append(str(path))
    return _once(found), _once(unread)


def _once(sources: list[str]) -> list[str]:
    """Each file by the first name that was given for it, however many lead there."""
    from agent.documents.reading import is_address

    by_place: dict[str, str] = {}
    for source in sources:
        by_place.setdefault(source if is_address(source) else os.path.realpath(source), source)
    return list(by_place.values())


def _sample_set(folder: Path) -> list[str]:
    from pipelines.documents.samples import write_samples
    from pipelines.errors import ToolMissing

    try:
        return [str(sample.path) for sample in write_samples(folder)]
    except ToolMissing as error:
        raise StartError(str(error)) from None


def _shown(stack: ExitStack, total: int) -> tuple[Callable[..., Listener], Callable[..., None]]:
    """Who hears of a document's progress: bars on a terminal, else a line for each that has ended."""
    from agent.documents.reading import Document

    done = 0

    def line(document: Document) -> str:
        nonlocal done
        done += 1
        return clean(f"[{done}/{total}] {document.name}: {document.said}")

    if not sys.stderr.isatty():
        return lambda document: lambda fraction, note: None, lambda document: click.echo(line(document), err=True)

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, TaskID

    progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
    whole = progress.add_task("documents", total=total)
    bars: dict[int, TaskID] = {}

    def begun(document: Document) -> Listener:
        bars[id(document)] = bar = progress.add_task(escape(clean(document.name)), total=1.0)
        return lambda fraction, note: progress.update(bar, completed=fraction)

    def ended(document: Document) -> None:
        progress.remove_task(bars.pop(id(document)))
        progress.console.print(escape(line(document)), highlight=False)
        progress.advance(whole)

    return begun, ended


def _print(findings: Findings) -> None:
    from rich.console import Console

    if not findings.grouped.groups:
        """No table of nothing."""
    elif sys.stdout.isatty():
        console = Console(highlight=False)
        console.print(findings.table(console.width))
    else:
        import io

        out = io.StringIO()
        Console(file=out, width=WIDE, highlight=False).print(findings.table(WIDE))
        click.echo("\n".join(text.rstrip() for text in out.getvalue().splitlines()))
    results = sum(len(group.results) for group in findings.grouped.groups)
    click.echo(f"{plural(results, 'result')} of {plural(len(findings.grouped.groups), 'analyte')} "
               f"in {plural(len(findings.documents), 'document')}")  # fmt: skip
    if unmapped := findings.grouped.unmapped:
        click.echo(f"{plural(len(unmapped), 'result')} of no analyte that is known (--csv and --json have them):")
        for text in _cut([f"  {one.name}: {one.value.printed} {one.unit}".rstrip() for one in unmapped]):
            click.echo(clean(text))
    for one, several in (("diagnosis", "diagnoses"), ("procedure", "procedures"), ("variant", "variants")):
        if count := sum(len(getattr(document.facts, several)) for document in findings.documents):
            click.echo(f"{count:,} {one if count == 1 else several} (--json has them)")


def _cut(lines: list[str]) -> list[str]:
    rest = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"... and {rest:,} more"] if rest > 0 else [])]
