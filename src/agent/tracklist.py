"""`phaze tracklist FILE`: the tracks of a set, found in the library, as a table, a cue sheet and JSON; without FILE the
sets that have been listened to already."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import ValidationError

from agent.display import duration_text, plural
from agent.errors import UserError

if TYPE_CHECKING:
    from agent.settings import Settings
    from pipelines.music.live_set import Hearing, SetTrack, Tracklist

RULES = """Tracks are looked for in the catalogue's fingerprints, at 92 to 108 % of their tempo (with kept pitch). A cue
sheet or text of the same name beside FILE is read as well: what is written fills in what is not heard. Written are
NAME.phaze.cue and NAME.phaze.json; no other file is touched. A running hub has sets (PHAZE_SET_MINUTES and longer)
listened to by itself, and what it recorded of FILE is shown; with --again FILE is listened to now."""


class NoTracklist(UserError):
    """The file gives no tracklist; the message says why."""


@click.command(epilog=RULES)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--tracklist", "given", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="A cue sheet or text to read instead of those beside FILE.")  # fmt: skip
@click.option("--to", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None,
              help="Write into this folder instead of beside FILE.")  # fmt: skip
@click.option("--again", is_flag=True, help="Listen to FILE now, whatever is recorded of it.")
@click.option("--show", is_flag=True, help="Write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The JSON on standard output instead of a table.")
def tracklist(
    file: Path | None, given: Path | None, folder: Path | None, again: bool, show: bool, as_json: bool
) -> None:
    """Find the tracks of a set, and write them beside it as cue sheet and JSON. Without FILE: list the sets."""
    from agent.settings import load_settings
    from pipelines.errors import TaskError

    settings = load_settings()
    if file is None:
        show_sets(settings, as_json)
        return
    try:
        found = None if again or given is not None else recorded(settings, file.absolute())
        found = found or find(settings, file.absolute(), given)
    except (TaskError, OSError) as error:
        raise NoTracklist(f"{file} gives no tracklist: {error}") from None
    text = found.model_dump_json(indent=2)
    if as_json:
        click.echo(text)
    else:
        for line in lines(found):
            click.echo(line)
    if show:
        return
    try:
        written = write(found, file, folder or file.absolute().parent, text)
    except OSError as error:
        raise NoTracklist(f"nothing was written ({error}); give another folder with --to, or --show") from None
    for path in written:
        click.echo(f"wrote {path}", err=as_json)


def show_sets(settings: Settings, as_json: bool) -> None:
    """Print the sets that have a tracklist, a line each."""
    from agent.hub.catalogue import Catalogue

    with Catalogue(settings.data_dir, read_only=True) as catalogue:
        found, waiting = catalogue.live_sets(), catalogue.count_live_sets()[1]
    if as_json:
        click.echo(json.dumps([one.as_json() for one in found], indent=2))
        return
    for one in found:
        said = plural(len(one.result.get("tracks", [])), "track")
        why = "" if one.outcome == "done" else f"  {one.outcome}: {one.reason}"
        click.echo(f"{duration_text(one.duration or 0.0):>8}  {said:>10}  {one.path}{why}")
    click.echo(plural(len(found), "set") + (f"; {waiting:,} more to be listened to" if waiting else ""))


def recorded(settings: Settings, file: Path) -> Tracklist | None:
    """What a worker found in the file as it is; None if nothing is recorded, or there is no catalogue."""
    from agent.hub.catalogue import Catalogue
    from agent.hub.database import CatalogueError
    from pipelines.music.live_set import Tracklist
    from pipelines.payload import encode_path

    seen = file.stat()
    try:
        with Catalogue(settings.data_dir, read_only=True) as catalogue:
            found = catalogue.tracklist_of(settings.agent_id, encode_path(file), seen.st_size, seen.st_mtime_ns)
        return None if found is None else Tracklist.model_validate(found)
    except (CatalogueError, ValidationError):
        return None


def find(settings: Settings, file: Path, given: Path | None) -> Tracklist:
    """The tracks of one set. Raises TaskError, OSError, CatalogueError."""
    from pipelines.music.live_set import Hearing, read_set, tracklist_of

    if settings.ffmpeg is not None:
        os.environ["PHAZE_FFMPEG"] = settings.ffmpeg
    print_, written, used = read_set(file, given)
    hearing, own = hear(settings, print_.raw, print_.sha256) if print_.items else (Hearing(heard=[]), "")
    return tracklist_of(hearing, written, print_, used=used, file_id=own)


def hear(settings: Settings, raw: str, sha256: str) -> tuple[Hearing, str]:
    """What the catalogue's index hears in a print, asked in this process; and the file's own id, if it has one."""
    from agent.hub.catalogue import Catalogue
    from agent.hub.library import items_of
    from pipelines.music.live_set import Hearing

    with Catalogue(settings.data_dir, read_only=True) as catalogue:
        library = catalogue.library()
        heard = catalogue.named(library.find(items_of({"raw": raw})))
    hearing = Hearing.model_validate({"heard": heard, "indexed": len(library.index), "waiting": library.waiting})
    return hearing, library.file_of(sha256)


def lines(found: Tracklist) -> list[str]:
    """A line a track and a gap, in order, and one that sums up."""
    rows = [(track.start, _line(track.start, track.end, _name(track))) for track in found.tracks]
    rows += [(gap.start, _line(gap.start, gap.end, "-")) for gap in found.gaps]
    known = f"{plural(len(found.tracks), 'track')} in {duration_text(found.duration)}"
    said = [line for _, line in sorted(rows)]
    return [*said, f"{known}, of {found.indexed:,} in the library", *found.warnings]


def _line(start: float, end: float, text: str) -> str:
    return f"{duration_text(start):>8} {duration_text(end):>8}  {text}"


def _name(track: SetTrack) -> str:
    name = f"{track.artist or 'ID'} - {track.title or 'ID'}"
    if track.source == "written":
        return f"{name}  (written, not heard)"
    speed = "" if track.tempo in (None, 1.0) else f", {track.tempo:.1%} of its tempo"
    return f"{name}  ({track.confidence:.0%}{speed})"


def write(found: Tracklist, file: Path, folder: Path, text: str) -> list[Path]:
    """NAME.phaze.cue and NAME.phaze.json, both whole, or neither is touched. Raises OSError."""
    from pipelines.music.tracklists import OURS, Written, cue_sheet

    rows = [Written(track.start, track.artist, track.title) for track in found.tracks]
    name = os.fsencode(file.name).decode("utf-8", "replace")
    cue = folder / f"{file.stem}{OURS}"
    contents = {cue: cue_sheet(name, rows), cue.with_suffix(".json"): f"{text}\n"}
    drafts = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        for path, draft in drafts.items():  # what does not fit on the disk shows here
            draft.write_text(contents[path], "utf-8")
        for path, draft in drafts.items():
            draft.replace(path)
    finally:
        for draft in drafts.values():
            with contextlib.suppress(OSError):
                draft.unlink()
    return list(drafts)
