"""`phaze up`: folders of music in, a table of tracks out, with everything in between started and ended."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import httpx
import psutil

from agent import profile_models
from agent.display import plural
from agent.documents.libraries import libraries_are_there
from agent.embedded import Fleet, said_last
from agent.errors import ConfigError, StartError, UserError, WrongUse
from agent.lanes import FILE_LANES, lanes_for
from agent.names import clean
from agent.progress import JsonView, PlainView, TerminalView, View
from agent.roots import outermost
from agent.settings import Settings, load_settings, unknown_variables
from agent.throttle import OncePer
from pipelines.payload import encode_path

POLL = 0.25
"""Seconds between two looks at the hub's status."""

IDLE_POLL = 2.0
"""The same while there is nothing to do: looking costs a little each time."""

HUB_SILENCE = 600.0
"""Seconds without an answer from the hub after which a run with `--once` gives up."""

TABLE_ROWS = 200
"""Most tracks printed at the end; `phaze tracks` shows all."""

ALL_WELL, INTERRUPTED, LEFT_OVER = 0, 130, 3


@click.command()
@click.argument("paths", nargs=-1, type=click.UNPROCESSED)
@click.option("--once", is_flag=True, help="End when every job is settled, past its third retry, or held.")
@click.option("--reread", is_flag=True, help="Read every file again, also those that have not changed since.")
@click.option("--json", "as_json", is_flag=True, help="One JSON event a line, for machines.")
@click.option("--samples", is_flag=True, help="Use a small sample set that is synthesised on the spot.")
@click.option("--documents", is_flag=True, help="Run router, parser and grouper too; alone, where no music is given.")
def up(paths: tuple[str, ...], once: bool, reread: bool, as_json: bool, samples: bool, documents: bool) -> None:
    """Take folders (or files) of music through all lanes.

    Starts a queue server (unless PHAZE_REDIS_URL names one), the hub with its page, and a worker per lane; without
    --once it goes on and watches the folders. Ctrl-C ends all of it; what is done stays done, and the next start goes
    on. Exit code 3: some files were rejected or are left. Held is what is paused, or waits for a circuit that stays
    open.

    With --documents it also serves whoever asks for documents by the stream phoenix:router:input.
    """
    settings = load_settings()
    roots = [_root(path) for path in paths]
    files = bool(roots) or samples or not documents
    if files:
        _tools_are_there(settings)
    if documents:
        libraries_are_there()
    if not roots and once and not samples:
        raise click.UsageError("nothing to do: give a folder of music, or --samples")
    view = _view(as_json)
    try:
        for name, near in unknown_variables():
            view.note(f"warning: {name} is not a variable that phaze reads{f'; did you mean {near}?' if near else ''}")
        if samples:
            roots.append(_sample_set(settings, view))
        given, roots = roots, outermost(roots)
        for root in given:
            if root not in roots:
                view.note(f"{clean(str(root))} is scanned with another of the given folders, in which it lies")
        lanes = lanes_for(files=files, documents=documents)
        code = asyncio.run(Run(settings, roots, once=once, reread=reread, view=view, lanes=lanes).go())
    finally:
        view.close()
    sys.exit(code)


def _tools_are_there(settings: Settings) -> None:
    """What every file would fail for is said once, before anything starts."""
    from pipelines.errors import ToolMissing
    from pipelines.music.ffmpeg import ffmpeg_path

    try:
        ffmpeg_path()
    except ToolMissing as error:
        raise StartError(f"{error} (`phaze doctor` looks at everything)") from None
    if (wanted := profile_models.missing(settings)) is not None:
        raise StartError(f"{wanted}; {profile_models.REMEDY}")
    if importlib.util.find_spec("essentia") is None:
        raise StartError(
            "essentia is not installed; pip install 'phaze-agent[music]' (`phaze doctor` looks at everything)"
        )


def _view(as_json: bool) -> View:
    if as_json:
        return JsonView()
    return TerminalView() if sys.stderr.isatty() else PlainView()


def _root(text: str) -> Path:
    if not text:
        raise WrongUse("an empty path was given; give a folder of music, or one file ('.' for this folder)")
    absolute = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 - resolve() would follow a linked folder
    try:
        absolute.stat()
    except FileNotFoundError:
        raise WrongUse(f"{text} does not exist; give a folder of music, or one file") from None
    except OSError as error:
        raise WrongUse(f"{text} cannot be reached ({error.strerror}); give a folder of music, or one file") from None
    if not os.access(absolute, os.R_OK):
        raise WrongUse(f"{text} cannot be read by this user; change its permissions, or run as another user")
    return absolute


def _sample_set(settings: Settings, view: View) -> Path:
    from pipelines.music.samples import write_samples

    folder = settings.data_dir / "samples"
    made = write_samples(folder)
    view.note(f"sample set: {plural(len(made), 'file')} in {folder}")
    return folder


class Run:
    """One `phaze up`, from start to exit code."""

    def __init__(
        self, settings: Settings, roots: list[Path], *, once: bool, reread: bool, view: View, lanes: Sequence[str]
    ) -> None:
        self.settings = settings
        self.roots = roots
        self.once = once
        self.reread = reread
        self.view = view
        self.started = time.time()
        self._stop = asyncio.Event()
        self._fleet = Fleet(settings, view.note, lanes)
        self._lanes = lanes

    async def go(self) -> int:
        """Start, scan, follow, report."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        fleet = self._fleet
        try:
            if not await self._until_stopped(fleet.start()):
                return INTERRUPTED
            slots = ", ".join(f"{lane} {count}" for lane, count in fleet.slots.items())
            self.view.note(f"hub on {fleet.hub_url} · slots: {slots} · data in {fleet.data}")
            if "router" in self._lanes:
                self.view.note(
                    "documents are read that are asked for on the stream phoenix:router:input (see /records)"
                )
            headers = {"Authorization": f"Bearer {fleet.token}"}
            async with httpx.AsyncClient(base_url=fleet.hub_url, headers=headers, timeout=10.0) as client:
                if self.roots:
                    await self._request_scans(client)
                folders = [root for root in self.roots if root.is_dir()]
                if folders and not self.once:
                    await fleet.watch(folders)
                    self.view.note(
                        f"watching {plural(len(folders), 'folder')}: what changes is scanned when it has settled"
                    )
                status = await self._follow(client)
        finally:
            await fleet.stop()
            self.view.close()
        return await asyncio.to_thread(self._report, status)

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`, unless Ctrl-C comes first; whether it was done."""
        doing = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait([doing, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait([doing])
            return False
        await doing
        return True

    def _interrupt(self) -> None:
        if self._stop.is_set():
            self.view.note("ending everything now")
            self._fleet.kill()
            return
        self._stop.set()  # first: whoever would read what is said may be gone
        grace = self.settings.shutdown_grace
        self.view.note(f"stopping; running jobs get {grace:.0f} s to finish (once more to end at once)")

    async def _request_scans(self, client: httpx.AsyncClient) -> None:
        """Ask for them until the hub has taken them: it may just be started again. Asking twice scans once."""
        roots = [encode_path(root) for root in self.roots]
        body = {"agent_id": self.settings.agent_id, "roots": roots, "reread": self.reread}
        deadline = time.monotonic() + HUB_SILENCE
        while not self._stop.is_set():
            try:
                response = await client.post("/api/scans", json=body)
                if response.status_code == httpx.codes.OK:
                    return
                problem = f"{response.status_code}: {response.text[:300]}"
                if response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    raise UserError(f"the hub did not take the scan ({problem})")
            except httpx.HTTPError as error:
                problem = str(error) or repr(error)
            if time.monotonic() > deadline:
                raise UserError(f"the hub did not take the scan within {HUB_SILENCE:.0f} s ({problem})")
            await asyncio.sleep(POLL)

    async def _follow(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """Show progress until stopped, or with `once` until nothing is left to wait for. Returns the last status."""
        status: dict[str, Any] = {}
        told = not set(self._lanes) & set(FILE_LANES)
        held: set[str] = set()
        answered = time.monotonic()
        complain = OncePer(60.0)
        while not self._stop.is_set():
            if (program := self._fleet.misconfigured()) is not None:
                raise ConfigError(f"{program.name}: {said_last(program)} (log: {program.log})")
            if self.once and (program := self._fleet.hopeless()) is not None:
                raise UserError(f"{program.name} dies at every start: {said_last(program)} (log: {program.log})")
            try:
                response = await client.get("/api/status", params={"agent": self.settings.agent_id})
                response.raise_for_status()
                status = response.json()
                self.view.update(status)
                answered = time.monotonic()
                for name in status["held"].keys() - held:
                    self.view.note(f"jobs wait: {status['held'][name]}")
                held = set(status["held"])
            except httpx.HTTPStatusError as error:
                if complain():
                    self.view.note(f"the hub cannot say how far it is: {error.response.text[:300]}")
            except (httpx.HTTPError, ValueError):
                pass  # it is being started again, and the supervisor has said so
            else:
                if status["settled_or_retrying"] and self.once:
                    break
                if status["idle"] and not told and not self.once:
                    told = True
                    self.view.note("all done; the page stays up until Ctrl-C (`phaze tracks` shows the table)")
                told = told and bool(status["idle"])
            if self.once and time.monotonic() - answered > HUB_SILENCE:
                raise UserError(
                    f"the hub has not answered for {HUB_SILENCE:.0f} s; see {self.settings.data_dir / 'logs'}"
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_POLL if status.get("idle") and not self.once else POLL):
                    await self._stop.wait()
        return status

    def _report(self, status: dict[str, Any]) -> int:
        """Print the table and what the run did; the exit code."""
        from agent.summary import Summary

        summary = Summary.of(self.settings, self.roots, since=self.started, status=status)
        if isinstance(self.view, JsonView):
            for track in summary.tracks:
                self.view.emit("track", **track.as_json())
            self.view.emit("summary", **summary.as_json())
        elif self.once or self._stop.is_set():
            summary.print(TABLE_ROWS, psutil.cpu_count() or 1)
        if self._stop.is_set():
            return INTERRUPTED
        return LEFT_OVER if summary.left_over else ALL_WELL
