"""`phaze`: the commands. Each is imported only when it is called, so that `--help` answers at once."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("agent.up:up", "Take folders of music through all lanes, with everything started for you."),
    "tracks": ("agent.tracks:tracks", "Show the tracks in the catalogue."),
    "duplicates": ("agent.duplicates:duplicates", "Show the files that are one recording, and the best of each."),
    "tracklist": ("agent.tracklist:tracklist", "Find the tracks of a set, and write them as cue and JSON."),
    "approve": ("agent.operator.batches:approve", "Move, rename and tag files, from a file of proposals."),
    "undo": ("agent.operator.batches:undo", "Take back what a batch of approved proposals did."),
    "batches": ("agent.operator.batches:batches", "Approved batches: list them, show one."),
    "offload": ("agent.offload:offload", "Send files of the catalogue to an object store or another machine."),
    "transfers": ("agent.offload:transfers", "Show what became of files that were sent."),
    "new": ("agent.new_command:new", "Write the skeleton of a pipeline of your own."),
    "models": ("agent.models_command:models", "Pretrained models: list, install, verify."),
    "documents": ("agent.documents.command:documents", "Read lab reports (PDF): a table of results over time."),
    "watch": ("agent.watching.command:watch", "Watch folders, and scan what changes in them."),
    "doctor": ("agent.doctor:doctor", "Say what is missing or misfit on this machine, and the remedy."),
    "settings": ("agent.settings_command:settings", "Show every setting and its value."),
    "lanes": ("agent.operator.lanes:lanes", "Show what waits and runs on each lane."),
    "drain": ("agent.operator.drain:drain", "The base queue from before lanes: status, wait until it is empty."),
    "agents": ("agent.operator.agents:agents", "Who may report to the hub: list, add, rotate, revoke."),
    "why": ("agent.operator.why:why", "Say where a job is and what it waits for."),
    "dlq": ("agent.operator.letters:dlq", "Dead letters: list, show, replay, drop."),
    "quarantine": ("agent.operator.letters:quarantine", "Quarantined jobs: list, show, replay, drop."),
    "stream": ("agent.operator.streams:stream", "A service's stream: what waits, who has taken what."),
    "breaker": ("agent.operator.holds:breaker", "Circuit breakers: list, open, close, reset."),
    "pause": ("agent.operator.holds:pause", "Take no more jobs of a lane or a task."),
    "resume": ("agent.operator.holds:resume", "Let a paused lane or task go on."),
    "forget": ("agent.operator.why:forget", "Forget that a record is done."),
    "usage": ("agent.operator.usage:usage", "Show the tokens that calls to models came to, by user or record."),
    "backup": ("agent.operator.backup:backup", "Copy the catalogue while it is in use."),
    "restore": ("agent.operator.backup:restore", "Put a copy of the catalogue in its place."),
    "health": ("agent.health:health", "Say in the exit code whether a worker is healthy, for a container's check."),
    "worker": ("agent.worker:worker", "Run one lane's worker (PHAZE_AGENT_LANE)."),
    "hub": ("agent.hub.server:hub", "Run the hub: catalogue, reconciler, pages."),
}
"""name -> ("module:command", one line of help)."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="phaze-agent", prog_name="phaze")
def phaze() -> None:
    """Lanes of work for machines that hold files: analysis, fingerprints, tags, transfers.

    `phaze up ~/Music` starts all that is needed, does the job, and shows a table.
    """


def main(args: list[str] | None = None) -> Any:
    """Entry point. Expected errors end as one line.

    Exit codes: 0 all well, 1 failed, 2 wrong use, 3 some files were rejected or are unfinished.
    """
    from agent.errors import UserError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # one name of a file that is no text hides no other lines
    try:
        return phaze.main(args=args, prog_name="phaze")
    except UserError as error:
        from agent.names import clean

        click.echo(f"phaze: {clean(str(error))}", err=True)
        sys.exit(error.exit_code)
    except OSError:
        if (trouble := _lost_output()) is None:
            raise
        click.echo(f"phaze: the output could not be written ({trouble}); is its disk full?", err=True)
        sys.exit(1)


def _lost_output() -> str | None:
    """Why nothing more can be written to standard output; None if it can."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else Python would try once more at its end
        return error.strerror or type(error).__name__
    return None


if __name__ == "__main__":
    main()
