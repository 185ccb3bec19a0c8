"""`phaze duplicates`: files that are one recording, and which copy is the best. It deletes nothing."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from agent.display import duration_text, plural
from agent.names import json_text, print_paths

if TYPE_CHECKING:
    from rich.table import Table

    from agent.hub.copies import Group, Member, Pair

RULES = """The best copy is the one that decodes whole; then a lossless one; then the longest (by more than a second);
then the one of the highest bit rate; then the first by path. Nothing is deleted: --json names what to keep."""

WIDE = 140
"""Width where there is no terminal."""


@click.command(epilog=RULES)
@click.option("--related", is_flag=True, help="Also what is no duplicate: parts of others, and other tempos.")
@click.option("--paths", is_flag=True, help="Only the paths of all but the best copies, one a line; bytes into a pipe.")
@click.option("--null", "-0", is_flag=True, help="Only these paths, each ended by a NUL, as xargs -0 takes them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: groups and pairs.")
def duplicates(related: bool, paths: bool, null: bool, as_json: bool) -> None:
    """Show the files that are one recording, the best copy first; works while `phaze up` runs, and after it."""
    from agent.hub.catalogue import Catalogue
    from agent.settings import load_settings

    if (paths or null) and as_json:
        raise click.UsageError("give one of --paths and --json")
    with Catalogue(load_settings().data_dir, read_only=True) as catalogue:
        catalogue.compare_prints(at_once=True)
        groups, pairs = catalogue.groups(), catalogue.relatives()
    if as_json:
        lists = {"groups": [group.as_json() for group in groups], "pairs": [pair.as_json() for pair in pairs]}
        click.echo(json_text(lists))
        return
    if paths or null:
        print_paths([member.encoded_path for group in groups for member in group.members[1:]], null=null)
        return
    _print(table_of(groups, _width()))
    spare = sum(group.spare for group in groups)
    files = sum(len(group.members) for group in groups)
    click.echo(f"{plural(len(groups), 'recording')} in {plural(files, 'file')}; {spare / 1e6:,.1f} MB to spare")
    if related:
        for line in map(sentence, pairs):
            click.echo(line)
    elif pairs:
        click.echo(f"and {plural(len(pairs), 'pair')} of related files: --related")


def table_of(groups: Sequence[Group], width: int) -> Table:
    """A rich table `width` characters wide; cells are plain text, so that no tag can style or break it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", width=width)
    table.add_column("dup", no_wrap=True, min_width=4)
    table.add_column("", no_wrap=True, min_width=9)
    table.add_column("codec", no_wrap=True, min_width=6)
    for name, size in (("kbit/s", 6), ("time", 7), ("MB", 7)):
        table.add_column(name, justify="right", no_wrap=True, min_width=size)
    table.add_column("path", overflow="fold", ratio=1)
    for group in groups:
        for place, member in enumerate(group.members):
            cells = [member.codec or "", rate(member), duration_text(member.duration), f"{member.size / 1e6:.1f}"]
            label = Text(group.label if place == 0 else "", style="magenta")
            mark = Text(f"best: {group.reason}" if place == 0 else _what(member, group), style="" if place else "green")
            table.add_row(label, mark, *map(Text, cells), Text(member.path))
    return table


def _what(member: Member, group: Group) -> str:
    return "same bytes" if member.sha256 == group.members[0].sha256 else "breaks off" if not member.whole else ""


def rate(member: Member) -> str:
    """kbit/s; empty if not known."""
    return "" if member.bit_rate is None else f"{member.bit_rate / 1000:.0f}"


def sentence(pair: Pair) -> str:
    """What two related files have to do with each other."""
    where = f"{duration_text(pair.start)} to {duration_text(pair.end)}"
    if pair.kind == "tempo":
        return f"{pair.file.path} is {pair.of.path} at {pair.tempo:.1%} of its tempo"
    return f"{pair.file.path} is {where} of {pair.of.path}"


def _width() -> int:
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else WIDE


def _print(table: Table) -> None:
    from rich.console import Console

    out = io.StringIO()
    terminal = sys.stdout.isatty()
    Console(file=out, width=_width(), highlight=False, force_terminal=terminal).print(table)
    click.echo("\n".join(line.rstrip() for line in out.getvalue().splitlines()))
