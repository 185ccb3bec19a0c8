"""Real files for the pipelines: the shared cases, the synthesised samples, and whatever ffmpeg is asked to make."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipelines.music.ffmpeg import ffmpeg_path
from pipelines.music.samples import Sample, write_samples

REPO = Path(__file__).resolve().parents[2]


def find_cases() -> Path | None:
    """The shared cases: PHAZE_TEST_CASES, else ../shared/cases beside the checkout; None where absent."""
    asked = os.environ.get("PHAZE_TEST_CASES")
    folder = Path(asked) if asked else REPO.parent / "shared" / "cases"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of shared cases; skipped where absent, failed where CI is set."""
    folder = find_cases()
    if folder is None:
        message = "no shared cases here; set PHAZE_TEST_CASES"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


DEBIAN_MUSIC = (Path("/usr/share/games/singularity/music"), Path("/usr/share/games/wesnoth/1.16/data/core/music"))


@pytest.fixture(scope="session")
def real_music() -> list[Path]:
    """Recordings of two minutes and more, the shortest first: of Debian's packages; skipped where absent."""
    found = [path for folder in DEBIAN_MUSIC for path in folder.glob("*.ogg") if path.stat().st_size > 2_500_000]
    found.sort(key=lambda path: (path.stat().st_size, path))
    if len(found) < 5:
        message = "no real music here: apt-get install singularity-music wesnoth-1.16-music"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """The synthesised set, written once."""
    return write_samples(tmp_path_factory.mktemp("samples"))


Make = Callable[..., Path]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """`make("name.flac", "-f", "lavfi", "-i", "sine", ...)`: one file, made by ffmpeg."""
    folder = tmp_path_factory.mktemp("made")

    def run(name: str, *arguments: str | Path) -> Path:
        path = folder / name
        argv = [ffmpeg_path(), "-nostdin", "-v", "error", "-y", *map(str, arguments), f"file:{path}"]
        subprocess.run(argv, check=True, timeout=60)
        return path

    return run


def ends(pid: int, within: float = 30) -> bool:
    """True once the process is gone (a zombie is: its parent is not ours), False if it outlives `within` seconds."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
