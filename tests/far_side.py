"""Another machine to push to: a real sshd on the loopback address, with its own keys."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SSHD = "/usr/sbin/sshd"


@dataclass
class FarSide:
    """`key`: a private key that it takes; `host_key`: its public key; `path`: what its PATH is."""

    port: int
    user: str
    key: str
    host_key: str
    folder: Path

    def set_path(self, path: str) -> None:
        """Give its programs another PATH, as if some were not installed."""
        (self.folder / "path").write_text(path, "utf-8")


@contextlib.contextmanager
def far_side(folder: Path) -> Iterator[FarSide]:
    """Runs until the block ends. Skipped where there is no sshd, failed where CI is set."""
    if not (os.access(SSHD, os.X_OK) and shutil.which("rsync") and shutil.which("ssh")):
        message = "no sshd, ssh or rsync here; see tests/system-packages"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    shell = folder / "shell"
    shell.write_text(f'#!/bin/sh\nPATH=$(cat {folder}/path) exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n', "utf-8")
    shell.chmod(0o755)
    (folder / "path").write_text(os.environ["PATH"], "utf-8")
    lines = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/mine.pub",
        f"ForceCommand {shell}", "StrictModes no", "UsePAM no", "PidFile none", "PermitRootLogin prohibit-password",
        "MaxStartups 100",
    ]  # fmt: skip
    (folder / "sshd_config").write_text("\n".join(lines) + "\n", "utf-8")
    with (folder / "log").open("wb") as log:
        argv = [SSHD, "-D", "-e", "-f", folder / "sshd_config"]
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
        public = (folder / "host.pub").read_text("ascii")
        yield FarSide(port, getpass.getuser(), (folder / "mine").read_text("ascii"), public, folder)
    finally:
        server.terminate()
        server.wait()
