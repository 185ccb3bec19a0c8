"""What is supervised runs until it is stopped, and never outlives its supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from agent import supervisor
from agent.supervisor import Supervised, describe_exit


def script(tmp_path: Path, body: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(body), "utf-8")
    return [sys.executable, str(path)]


async def until(condition: object, within: float = 30) -> None:
    assert callable(condition)
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_program_that_dies_is_started_again_with_growing_waits_and_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF", 0.1)
    said: list[str] = []
    argv = script(tmp_path, "print('hello', flush=True); raise SystemExit(3)")
    program = Supervised("worker-x", argv, os.environ, tmp_path / "log", said.append)
    await program.start()
    await until(lambda: program.restarts >= 3)
    await program.stop(5)
    assert said[0] == f"worker-x ended with exit code 3; starting it again in 0 s (log: {tmp_path / 'log'})"
    assert (tmp_path / "log").read_text("utf-8").count("hello") >= 3
    assert program.log_tail(1) == "hello"


async def test_stop_asks_first_and_kills_after_the_grace(tmp_path: Path) -> None:
    said: list[str] = []
    argv = script(
        tmp_path,
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(600)
        """,
    )
    program = Supervised("deaf", argv, os.environ, tmp_path / "log", said.append)
    await program.start()
    await until(lambda: program.log_tail(1) == "deaf")
    pid = program.pid
    assert pid is not None
    await program.stop(0.3)
    assert not psutil.pid_exists(pid)
    assert said == ["deaf did not end within 0 s; killing it"]
    assert program.restarts == 0


async def test_a_log_is_set_aside_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_LIMIT", 10)
    log = tmp_path / "x.log"
    log.write_text("a long story", "utf-8")
    program = Supervised("x", script(tmp_path, "import time; time.sleep(600)"), os.environ, log, print)
    await program.start()
    await program.stop(5)
    assert (tmp_path / "x.1.log").read_text("utf-8") == "a long story"


def test_a_supervised_program_dies_with_its_supervisor(tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(
        textwrap.dedent(
            """
            import subprocess, sys, time
            from pipelines import lifeline
            child = subprocess.Popen(lifeline.command("/bin/sleep", "600"))
            time.sleep(0.5)
            print(child.pid, flush=True)
            time.sleep(600)
            """
        ),
        "utf-8",
    )
    process = subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert "sleep" in psutil.Process(child).cmdline()[0]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_exits_are_told_in_words() -> None:
    assert describe_exit(3) == "ended with exit code 3"
    assert describe_exit(-9) == "was ended by SIGKILL"
    assert describe_exit(-200) == "was ended by signal 200"
