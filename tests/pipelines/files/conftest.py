"""Real file systems that the moves have to cope with, mounted where that may be done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _run(*argv: object) -> str:
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", "size=1m", "none", place)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount")
    yield place
    _run("umount", "--lazy", place)


@pytest.fixture
def exfat(tmp_path: Path) -> Iterator[Path]:
    """exFAT by FUSE: names are one whatever their case, no hard links, no flags to rename, inodes as it likes."""
    place, image = tmp_path / "exfat", tmp_path / "exfat.img"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    device = ""
    try:
        _run("mkfs.exfat", image)
        device = _run("losetup", "--find", "--show", image)
        _run("mount.exfat-fuse", device, place)
    except (OSError, subprocess.CalledProcessError):
        if device:
            _run("losetup", "--detach", device)
        pytest.skip("no exfat-fuse here, or this is not root")
    assert os.path.ismount(place)
    yield place
    _run("umount", "--lazy", place)
    _run("losetup", "--detach", device)
