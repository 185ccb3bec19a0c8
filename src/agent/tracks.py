"""`phaze tracks`: the catalogue's tracks as a table, JSON or CSV."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from agent.display import AT_MOST, duration_text, plural
from agent.names import csv_line, json_text, print_paths

if TYPE_CHECKING:
    from rich.table import Table

    from agent.hub.tracks import Track

CSV_COLUMNS = (
    "id", "artist", "title", "duration", "bpm", "bpm_confidence", "key", "scale", "camelot",
    "loudness", "danceability", "duplicates", "problems", "pending", "path", "encoded_path",
)  # fmt: skip

SERVICE_WORDS = {
    "process_file": "analysis",
    "fingerprint_file": "fingerprint",
    "extract_file_metadata": "tags",
    "ingest_file": "engine",
}
"""How a task is called in a sentence about its result."""

SURE = 1.5
"""Confidence of a tempo below which it is a guess."""

PROBLEMS = 50
"""Most lines of what did not end well under a table."""

RULES = """BPM (confidence 0 to 5.3: over 3.5 is sure, under 1.5 a guess). Key with its Camelot code. LUFS: EBU R128
integrated loudness. Dance: 0 to about 3. Dup: files with the same label are the same recording."""


@click.command(epilog=RULES)
@click.option("--bpm", default="", metavar="RANGE", help="120..128, 120.., ..128, or 128 (rounded).")
@click.option("--key", default="", metavar="KEY", help="A Camelot code (8A) or a key (Am, F# major).")
@click.option("--text", default="", metavar="WORDS", help="Words that must occur in artist, title, album or path.")
@click.option("--problems", is_flag=True, help="Only tracks with something that did not end well.")
@click.option(
    "--sort", default="", metavar="COLUMN", help="artist, title, duration, bpm, key, loudness ...; -bpm descends."
)
@click.option("--limit", type=AT_MOST, default=None, help="At most so many.")
@click.option("--paths", is_flag=True, help="Only the files' paths, one a line; into a pipe byte for byte.")
@click.option("--null", "-0", is_flag=True, help="Only the files' paths, each ended by a NUL, as xargs -0 takes them.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header.")
def tracks(
    bpm: str,
    key: str,
    text: str,
    problems: bool,
    sort: str,
    limit: int | None,
    paths: bool,
    null: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show the tracks in the catalogue; works while `phaze up` runs, and after it."""
    from agent.hub.catalogue import Catalogue
    from agent.hub.tracks import BadFilter, TrackFilter
    from agent.settings import load_settings

    if (paths or null) + as_json + as_csv > 1:
        raise click.UsageError("give one of --paths, --json and --csv")
    folder = load_settings().data_dir
    try:
        chosen = TrackFilter.parse(bpm=bpm, key=key, text=text, problems=problems)
        with Catalogue(folder, read_only=True) as catalogue:
            catalogue.compare_prints(at_once=True)
            found = catalogue.tracks(chosen, sort=sort, limit=limit)
            total = catalogue.count_tracks(chosen)
            unread = [line for scan in catalogue.last_scans() for line in scan.unread]
    except BadFilter as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(as_json_text(found))
    elif as_csv:
        text = as_csv_text(found, shown=sys.stdout.isatty())
        click.echo(text.encode(), nl=False)  # of text, click takes out what looks like a colour
    elif paths or null:
        print_paths([track.encoded_path for track in found], null=null)
    else:
        print_table(found)
        rest = f" of {total:,}" if len(found) != total else ""
        click.echo(f"{plural(len(found), 'track')}{rest}")
        for line in (*problem_lines(found, PROBLEMS), *unread_lines(unread, PROBLEMS)):
            click.echo(line)


def as_json_text(found: Sequence[Track]) -> str:
    """A JSON list of all fields."""
    return json_text([track.as_json() for track in found])


def as_csv_text(found: Sequence[Track], *, shown: bool = False) -> str:
    """CSV with a header; cells that a spreadsheet would run as a formula are quoted with an apostrophe.

    `shown`: on a terminal, which a control character in a path could command.
    """
    lines = [csv_line(CSV_COLUMNS)]
    for track in found:
        row = {**track.as_json(), "problems": problem_text(track), "pending": " ".join(track.pending)}
        if shown:
            row["path"] = track.path
        lines.append(csv_line(safe_cell(row[name]) for name in CSV_COLUMNS))
    return "".join(lines)


def safe_cell(value: object) -> object:
    """What a spreadsheet would run as a formula, quoted with an apostrophe; empty for None."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value


def problem_text(track: Track) -> str:
    """What did not end well, in words; what is still awaited, too."""
    by_reason: dict[str, list[str]] = {}
    for problem in track.problems:
        service = SERVICE_WORDS.get(problem["service"], problem["service"])
        by_reason.setdefault(f"{problem['outcome']}: {problem['reason']}", []).append(service)
    said = [f"{', '.join(services)} {reason}" for reason, services in by_reason.items()]
    if track.pending:
        said.append("waiting for " + ", ".join(SERVICE_WORDS.get(service, service) for service in track.pending))
    return "; ".join(said)


NUMBERS = (("time", 7), ("BPM", 5), ("conf", 4), ("key", 8), ("", 3), ("LUFS", 5), ("dance", 5), ("dup", 4))
"""Columns whose cells are never cut, with their widths in characters."""

NARROW = 100
"""Below so many characters a terminal shows no confidence and no danceability: names need the room."""

WIDE = 140
"""Width where there is no terminal."""


def table_of(found: Sequence[Track], width: int) -> Table:
    """A rich table `width` characters wide; cells are plain text, so that no tag can style or break it."""
    from rich.table import Table
    from rich.text import Text

    numbers = [(name, size) for name, size in NUMBERS if width >= NARROW or name not in ("conf", "dance")]
    names = max(20, width - sum(size + 2 for _, size in numbers))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name, share in (("artist", 0.4), ("title", 0.6)):
        longest = max((len(getattr(track, name) or "") for track in found), default=0)
        most = max(8, int(names * share) - 2)
        table.add_column(name, overflow="ellipsis", no_wrap=True, width=max(len(name), min(longest, most)))
    for name, size in numbers:
        table.add_column(name, justify="left" if name in ("key", "", "dup") else "right", no_wrap=True, min_width=size)
    for track in found:
        shown = {
            "time": Text(duration_text(track.duration)),
            "BPM": Text(_number(track.bpm, 1)),
            "conf": Text(_number(track.bpm_confidence, 1), style="" if (track.bpm_confidence or 0) >= SURE else "dim"),
            "key": Text(f"{track.key} {track.scale}" if track.key else ""),
            "": Text(track.camelot or "", style="cyan"),
            "LUFS": Text(_number(track.loudness, 1)),
            "dance": Text(_number(track.danceability, 2)),
            "dup": Text(track.duplicates or "", style="magenta"),
        }
        style = "red" if track.problems or track.pending else ""
        table.add_row(Text(track.artist or ""), Text(track.title, style=style), *(shown[name] for name, _ in numbers))
    return table


def print_table(found: Sequence[Track]) -> None:
    """The table on standard output, as wide as the terminal."""
    from rich.console import Console

    if sys.stdout.isatty():
        console = Console(highlight=False)
        console.print(table_of(found, console.width))
        return
    out = io.StringIO()
    Console(file=out, width=WIDE, highlight=False).print(table_of(found, WIDE))
    click.echo("\n".join(line.rstrip() for line in out.getvalue().splitlines()))


def problem_lines(found: Sequence[Track], most: int) -> list[str]:
    """`path: what did not end well`, a line a track."""
    rows = [f"  {track.path}: {problem_text(track)}" for track in found if track.problems or track.pending]
    return [*rows[:most], *([f"  ... and {len(rows) - most:,} more (--json has all)"] if len(rows) > most else [])]


def unread_lines(unread: Sequence[tuple[str, str]], most: int) -> list[str]:
    """`path: not read by the last scan: why`, a line each."""
    rows = [f"  {path}: not read by the last scan: {why}" for path, why in unread]
    return [*rows[:most], *([f"  ... and {len(rows) - most:,} more"] if len(rows) > most else [])]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
