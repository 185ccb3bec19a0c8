"""What is mounted below a folder, by the system's own table: bind mounts are in it, too."""

from __future__ import annotations

import os

import psutil


def table() -> dict[bytes, str]:
    """Mount point -> kind of file system; of several on one place the last."""
    return {os.fsencode(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}


def mounted_below(root: bytes) -> frozenset[bytes]:
    """Mount points below a folder (not itself), spelled as the folder is also where that is or holds a link."""
    real = os.path.realpath(root).rstrip(b"/") + b"/"
    return frozenset(root.rstrip(b"/") + b"/" + mount[len(real) :] for mount in table() if mount.startswith(real))
