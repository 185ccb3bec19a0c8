"""File names as they leave this program: their bytes for programs, no control characters for people."""

from __future__ import annotations

import csv
import io
import json
import sys
import unicodedata
from collections.abc import Iterable

import click

from agent.display import plural
from pipelines.payload import decode_path, display_path

LEFT_OVER = 3
"""Exit code: some names could not be printed."""


def clean(text: str) -> str:
    """One line for people, of whatever a name, a document or an error holds: no control characters, no stray bytes."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    return " " if unicodedata.category(char) == "Zs" else "\N{REPLACEMENT CHARACTER}"


def json_text(value: object) -> str:
    """Indented JSON that any terminal may show: what is not printable is escaped, all else is readable."""
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(line if line.isprintable() else "".join(map(_escaped, line)) for line in lines)


def _escaped(char: str) -> str:
    return char if char.isprintable() else json.dumps(char)[1:-1]


def csv_line(cells: Iterable[object]) -> str:
    """One row of CSV; what holds a quote, a comma or any end of a line is quoted."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)  # it quotes the characters of its own line's end only
    return out.getvalue().removesuffix("\r\n") + "\n"


def print_paths(encoded: Iterable[str], *, null: bool) -> None:
    """Percent-encoded paths on standard output, each ended by a newline, or with `null` by a NUL.

    A pipe is given the bytes that find the file; a terminal what people can read. A newline within a name would make
    two other names of it: without `null` such a path is left out, one line tells so, and the program ends with 3.
    """
    if not null and sys.stdout.isatty():
        click.echo("".join(f"{display_path(path)}\n" for path in encoded), nl=False)
        return
    names = [bytes(decode_path(path)) for path in encoded]
    said = [name for name in names if null or b"\n" not in name]
    end = b"\0" if null else b"\n"
    click.echo(b"".join(name + end for name in said), nl=False)
    if left_out := len(names) - len(said):
        click.echo(
            f"phaze: {plural(left_out, 'path')} left out, with a newline in the name; --null prints all", err=True
        )
        sys.exit(LEFT_OVER)
