"""Sending files away, from the command line to the far side and back into the catalogue: real processes, a real hub,
a real S3 API and a real sshd."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent import offload
from agent.errors import ConfigError, WrongUse
from agent.hub.catalogue import Catalogue
from agent.settings import load_settings
from tests.far_side import far_side
from tests.hub.deliveries import scan
from tests.pipelines.files.bucket import BUCKET
from tests.pipelines.files.conftest import free_port, moto_port
from tests.test_docs_transfers import commands

__all__ = ["moto_port"]

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6MDEyMzQ1"
TOKEN = "a-token"
NAMES = (b"plain.mp3", b"100% it's \xff\n[1].flac")


@pytest.fixture
def music(tmp_path: Path) -> Path:
    """Two files, which the catalogue knows."""
    folder = tmp_path / "music"
    folder.mkdir()
    found = []
    for name in NAMES:
        path = folder / os.fsdecode(name)
        path.write_bytes(os.urandom(2_000))
        size, mtime_ns = path.stat().st_size, path.stat().st_mtime_ns
        from pipelines.payload import encode_path

        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append({"path": encode_path(path), "size": size, "mtime_ns": mtime_ns, "sha256": sha256})
    with Catalogue(tmp_path / "data") as catalogue:
        catalogue.register_agent("local", TOKEN)
        scan(catalogue, encode_path(folder), found)
    return folder


Phaze = Callable[..., str]


@pytest.fixture
def phaze(valkey_url: str, tmp_path: Path) -> Iterator[Phaze]:
    """`phaze("offload", "s3", ...)` with everything set; `phaze.start(...)` keeps a program running."""
    running: list[subprocess.Popen[bytes]] = []
    env = {**os.environ, "PHAZE_REDIS_URL": valkey_url, "PHAZE_AGENT_TOKEN": TOKEN, "PHAZE_LOG_FORMAT": "json"}

    def call(*arguments: str | Path, start: bool = False, code: int = 0, **more: str) -> str:
        argv = [sys.executable, "-m", "agent.cli", *map(str, arguments)]
        if start:
            with (tmp_path / f"{arguments[0]}.log").open("ab") as log:
                running.append(subprocess.Popen(argv, env={**env, **more}, stdout=log, stderr=log))
            return ""
        done = subprocess.run(argv, env={**env, **more}, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    yield call
    for process in running:
        process.terminate()
    for process in running:
        process.wait(30)


def until_ended(phaze: Phaze, service: str, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [row for row in json.loads(phaze("transfers", "--json")) if row["service"] == service]
        if len(found) >= count:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not {count} transfers in time")


def test_chosen_files_go_to_both_places_and_the_catalogue_says_so(
    phaze: Phaze, music: Path, tmp_path: Path, moto_port: int
) -> None:
    store = f"http://127.0.0.1:{moto_port}"
    httpx.post(f"{store}/moto-api/reset")
    httpx.put(f"{store}/{BUCKET}")
    s3 = {
        "PHAZE_S3_BUCKET": BUCKET, "PHAZE_S3_ENDPOINT": store, "PHAZE_S3_ACCESS_KEY_ID": "AK",
        "PHAZE_S3_SECRET_ACCESS_KEY": "very-secret", "PHAZE_S3_PREFIX": "archive/",
    }  # fmt: skip
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "far").mkdir()
    with far_side(tmp_path / "far") as far:
        keys = tmp_path / "host_keys"
        keys.write_text(f"[127.0.0.1]:{far.port} {far.host_key}", "utf-8")
        target = f"ssh://{far.user}@127.0.0.1:{far.port}{there}"
        push = {"PHAZE_PUSH_TO": target, "PHAZE_PUSH_HOST_KEYS": str(keys)}
        port = free_port()
        phaze("hub", start=True, PHAZE_HUB_PORT=str(port), **s3)
        io = {"PHAZE_AGENT_LANE": "io", "PHAZE_HUB_URL": f"http://127.0.0.1:{port}"}
        phaze("worker", start=True, **io, PHAZE_PUSH_KEY_FILE=str(far.folder / "mine"))
        for name, more in (("s3", s3), ("ssh", push)):
            for line in commands(name):
                phaze(*line.replace("/srv/music", str(music)).split()[1:], **more)
        uploads, pushes = until_ended(phaze, "s3_upload", 2), until_ended(phaze, "push_file", 2)
        said = phaze("transfers")
    assert {row["outcome"] for row in uploads + pushes} == {"done"}, said
    for name in NAMES:
        assert (there / os.fsdecode(name)).read_bytes() == (music / os.fsdecode(name)).read_bytes()
    keys_there = sorted(row["result"]["key"] for row in uploads)
    prefix = f"archive/local{music}/"
    assert keys_there == sorted([f"{prefix}plain.mp3", f"{prefix}100%25 it's %FF%0A[1].flac"])
    assert {row["result"]["verified"] for row in pushes} == {"far-sha256"}
    assert "verified: far-sha256" in said
    log = (tmp_path / "worker.log").read_text() + (tmp_path / "hub.log").read_text() + said
    assert not [secret for secret in ("very-secret", "X-Amz-Signature", "PRIVATE KEY") if secret in log]


def test_asking_twice_queues_once_and_a_dry_run_nothing(phaze: Phaze, music: Path) -> None:
    s3 = {"PHAZE_S3_BUCKET": BUCKET}
    assert "plain.mp3" in phaze("offload", "s3", "--dry-run", music / "plain.mp3", **s3)
    assert "1 file queued" in phaze("offload", "s3", music / "plain.mp3", **s3)
    assert "1 file queued for s3_upload; 1 file waited already" in phaze("offload", "s3", "--all", **s3)
    assert "is queued" in phaze("why", "s3_upload:1")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["s3"], "say which files"),
        (["s3", "--all"], "PHAZE_S3_BUCKET is not set"),
        (["ssh", "--all"], "PHAZE_PUSH_TO is not set"),
        (["ssh://u@h/in", "--all"], "PHAZE_PUSH_HOST_KEYS is not set"),
        (["ftp://u@h/in", "--all"], "is no target"),
        (["ssh://h/in", "--all"], "is no target"),
        (["ssh://u@h:99999/in", "--all"], "port"),
    ],
)
def test_wrong_use_names_the_remedy(phaze: Phaze, music: Path, arguments: list[str], word: str) -> None:
    assert word in phaze("offload", *arguments, code=2)


def test_what_the_catalogue_does_not_know_is_not_sent(phaze: Phaze, music: Path, tmp_path: Path) -> None:
    (tmp_path / "musical").mkdir()
    for path in (tmp_path / "musical", tmp_path / "musi", music / "PLAIN.mp3"):
        assert "phaze up" in phaze("offload", "s3", path, code=2, PHAZE_S3_BUCKET=BUCKET)


def test_only_the_keys_of_that_host_are_taken_and_another_target_is_another_version(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(
        f"# mine\nother {KEY}\nnas,10.0.0.1 {KEY}\n[nas]:23 {KEY}x\n{KEY} comment\n|1|abc= {KEY}\n", "utf-8"
    )
    settings = load_settings(push_host_keys=file)
    assert offload.host_keys(settings, "nas", 22) == [f"nas,10.0.0.1 {KEY}", f"{KEY} comment"]
    file.write_text(f"other {KEY}\n", "utf-8")
    with pytest.raises(ConfigError, match="ssh-keyscan -p 22 nas"):
        offload.host_keys(settings, "nas", 22)
    file.write_text(f"nas {KEY}\n", "utf-8")
    versions = {offload.target_of(f"ssh://u@nas{folder}", settings)[2] for folder in ("/a", "/b", "/a")}
    assert len(versions) == 2
    with pytest.raises(WrongUse, match="pattern"):
        offload.target_of("ssh://u@nas/a%5B1%5D", settings)


def test_the_targets_folder_is_read_to_the_letter() -> None:
    found = offload.target_fields("ssh://phaze@nas.local:2222/vol%20ume/it's")
    assert found == {"host": "nas.local", "port": 2222, "user": "phaze", "destination": "/vol%20ume/it%27s"}
