"""What leaves this program as a file's name is that file's name, and commands no terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hub.catalogue import Catalogue
from agent.names import json_text
from pipelines.payload import decode_path, encode_path
from tests.hub.deliveries import AGENT, scan, seen

PLAIN = [
    b"a.mp3",
    b"\xff\xfe.mp3",
    b"\x1b[31mred.mp3",
    b"t\tab.mp3",
    b"r\rn.mp3",
    "\N{REPLACEMENT CHARACTER}.mp3".encode(),
]
BROKEN = b"a.mp3\n/etc/passwd"


@pytest.fixture
def music(tmp_path: Path) -> Path:
    """A catalogue in the data folder, of files with such names."""
    folder = tmp_path / "music"
    folder.mkdir()
    paths = [os.path.join(os.fsencode(folder), name.replace(b"/", b"_")) for name in [*PLAIN, BROKEN]]  # noqa: PTH118 - bytes
    for path in paths:
        with open(path, "wb"):  # noqa: PTH123 - bytes
            pass
    with Catalogue(Path(os.environ["PHAZE_DATA_DIR"])) as catalogue:
        catalogue.register_agent(AGENT, "t0ken")
        scan(catalogue, encode_path(folder), [seen(encode_path(path), str(n)) for n, path in enumerate(paths)])
    return folder


def tracks(*options: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "agent.cli", "tracks", *options]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def test_every_path_in_a_pipe_is_a_file_and_every_file_is_there(music: Path) -> None:
    there = set(map(bytes, music.iterdir()))
    said = tracks("--null")
    assert (said.returncode, said.stderr) == (0, b"")
    assert set(said.stdout.split(b"\0")) == {*there, b""}

    said = tracks("--paths")
    assert set(said.stdout.removesuffix(b"\n").split(b"\n")) == {path for path in there if b"\n" not in path}
    assert said.returncode == 3, "one is left out, and this is told"
    assert said.stderr == b"phaze: 1 path left out, with a newline in the name; --null prints all\n"


def test_a_path_in_json_and_csv_has_all_characters_that_text_can_say(music: Path) -> None:
    said = tracks("--json").stdout
    assert said.replace(b"\n", b" ").decode().isprintable(), "a terminal may show it"
    for rows in (json.loads(said), list(csv.DictReader(io.StringIO(tracks("--csv").stdout.decode(), newline="")))):
        assert len(rows) == len(PLAIN) + 1
        assert all(decode_path(row["encoded_path"]).exists() for row in rows)
        missing = [row["path"] for row in rows if not os.path.exists(row["path"])]  # noqa: PTH110 - text
        assert missing == [f"{music}/\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}.mp3"], "no text names this one"


@pytest.mark.parametrize("option", ["--paths", "--csv"])
def test_a_terminal_is_given_no_control_character(music: Path, option: str) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        command = [sys.executable, "-m", "agent.cli", "tracks", option]
        with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE) as program:
            os.close(theirs)
            said = b""
            while True:
                try:
                    said += (some := screen.read(4096))
                except OSError:  # the other end is closed: Linux says EIO
                    break
                if not some:
                    break
            assert program.wait(60) == 0
    text = said.decode()
    assert "[31mred.mp3" in text
    assert all(c.isprintable() for c in text.replace("\r\n", ""))


@given(st.dictionaries(st.text(), st.lists(st.text())))
def test_json_is_printable_and_says_the_same(value: object) -> None:
    text = json_text(value)
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value
