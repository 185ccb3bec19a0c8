"""The image without essentia: small, and all that the hub, io and meta do works in it, whoever PHAZE_UID is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.music.ffmpeg import ffmpeg_path
from pipelines.music.samples import write_samples
from pipelines.payload import encode_path
from tests.compose.stack import IMAGE
from tests.far_side import far_side

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

HERE = Path(__file__).resolve().parent
NOBODY = "4321:4321"


def in_image(target: str, *command: str, options: tuple[str, ...] = ()) -> str:
    """What a command wrote in a container of ours, confined as in compose/agent.yml."""
    confined = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--init"]
    room = [part for place in ("/tmp", "/run/phaze", "/var/lib/phaze") for part in ("--tmpfs", f"{place}:mode=1777")]
    argv = ["docker", "run", "--rm", *confined, *room, *options, f"{IMAGE}-{target}", *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_light_image_is_small_and_no_image_can_build_or_gain_rights(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {}
    for target in ("light", "music"):
        said = subprocess.run(
            ["docker", "image", "inspect", f"{IMAGE}-{target}"], capture_output=True, text=True, timeout=30, check=True
        )
        (facts,) = json.loads(said.stdout)
        sizes[target] = facts["Size"]
        assert facts["Config"]["User"] == "1000:1000"
        look = """command -v pip pip3 gcc cc apt-get perl su mount; python3 -c 'import pip' 2>/dev/null && echo pip
find / -xdev -type f -perm /6000 2>/dev/null; ls -d /opt/music 2>/dev/null; true"""
        found = in_image(target, "-c", look, options=("--entrypoint", "sh")).split()
        assert found == (["/opt/music"] if target == "music" else [])
    with capsys.disabled():
        sys.stdout.write(f"\nimages: {', '.join(f'{target} {size / 1e6:.0f} MB' for target, size in sizes.items())}\n")
    assert sizes["light"] < 250e6


def test_every_program_and_library_of_both_images_finds_what_it_is_linked_with(clone: Path) -> None:
    look = r"""find / -xdev -type f '(' -name '*.so*' -o -perm /111 ')' 2>/dev/null | while read -r file; do
/lib64/ld-linux-x86-64.so.2 --list "$file" 2>/dev/null | grep 'not found' | sed "s#^#$file #"; done; true"""
    assert in_image("light", "-c", look, options=("--entrypoint", "sh")) == ""


def test_all_that_hub_io_and_meta_are_for_works_in_the_light_image(clone: Path, tmp_path: Path, moto_port: int) -> None:
    music = tmp_path / "music"
    music.mkdir()
    songs = [sample.path for sample in write_samples(tmp_path / "samples")]
    tagged, mine, moved, long = (music / f"{name}{songs[0].suffix}" for name in ("song", "mine", "moved", "set"))
    for copy, song in zip((tagged, mine, moved, long), songs, strict=False):
        copy.write_bytes(song.read_bytes())
    untagged = music / "untagged.au"
    subprocess.run([ffmpeg_path(), "-loglevel", "error", "-i", tagged, untagged], timeout=60, check=True)
    listed = "0:00 Herbert Grönemeyer - Männer\n0:05 Die Ärzte - Für immer\n"
    long.with_suffix(".txt").write_bytes(listed.encode("cp1252"))
    subprocess.run(["chown", "-R", NOBODY, music], check=True)

    store = f"http://127.0.0.1:{moto_port}"
    assert httpx.put(f"{store}/archive", timeout=30).status_code == 200
    there = tmp_path / "there"
    there.mkdir()
    with far_side(tmp_path) as far:
        place = {"host": "127.0.0.1", "port": far.port, "user": far.user, "destination": encode_path(there)}
        named = {"tagged": tagged, "untagged": untagged, "mine": mine, "moved": moved, "set": long, "music": music}
        given: dict[str, Any] = {name: f"/music/{path.relative_to(music)}" for name, path in named.items()}
        given |= {"store": store, "key": far.key, "far": {**place, "host_keys": [far.host_key], "stall": 20.0}}
        mounts = ("-v", f"{music}:/music", "-v", f"{HERE / 'chores.py'}:/chores.py:ro")
        options = ("--network", "host", "--user", NOBODY, "--entrypoint", "entrypoint", *mounts)
        found = json.loads(in_image("light", "python3", "/chores.py", json.dumps(given), options=options))
    assert found == {
        "modules": [],
        "who": [4321, "/tmp"],
        "scan": 5,
        "tags": [["done", "Harbour Lights", "flac", 44100], ["partial", None, "pcm_s16be", 44100]],
        "index": [1, [["Herbert Grönemeyer", "Männer"], ["Die Ärzte", "Für immer"]]],
        "s3": ["done", "store-md5", True],
        "push": ["done", "far-sha256"],
        "approved": ["done", "Anew", True],
    }
    assert (there / tagged.name).read_bytes() == tagged.read_bytes()
