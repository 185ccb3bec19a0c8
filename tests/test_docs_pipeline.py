"""docs/adding-a-pipeline.md as it stands: its package is installed, its worker started, its commands typed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import consoles
from tests.agent.test_plugins import Workers
from tests.conftest import REPO

PAGE = REPO / "docs" / "adding-a-pipeline.md"
FILES = dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="session")
def genetics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which an installer has put the page's package."""
    source, target = tmp_path_factory.mktemp("phaze-genetics"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text, "utf-8")
    install = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--offline", "--no-cache"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(target), str(source)]
    done = subprocess.run([*install, *options], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    shutil.copytree(source / "tests", target / "tests_of_genetics")
    return target


def typing(url: str, *paths: Path) -> dict[str, str]:
    """An environment in which `phaze` and `python` are ours."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PHAZE_REDIS_URL": url, "PYTHONPATH": ":".join(map(str, paths))}


def test_its_wrapper_has_at_most_50_lines() -> None:
    assert len(FILES["phaze_genetics/processor.py"].splitlines()) <= 50


def test_its_own_test_passes(genetics: Path) -> None:
    file = next((genetics / "tests_of_genetics").glob("test_*.py"))
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={genetics}", str(file)],
        cwd=genetics,
        env=typing("", genetics),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed (tests/system-packages)")
async def test_its_commands_say_what_it_says(genetics: Path, start_server: object, tmp_path: Path) -> None:
    server = start_server()  # type: ignore[operator]  # a fixture that makes them
    workers = Workers(
        tmp_path, PYTHONPATH=str(genetics), PHAZE_REDIS_URL=server.url, PHAZE_HUB_URL="http://127.0.0.1:9"
    )
    try:
        started = await asyncio.to_thread(workers.start, "genetics", PHAZE_LANE_GENETICS_CONCURRENCY="3")
        assert (started["tasks"], started["concurrency"]) == (["genetics"], 3)
        await asyncio.to_thread(consoles.run, PAGE, typing(server.url, genetics))
    finally:
        await asyncio.to_thread(workers.end)
