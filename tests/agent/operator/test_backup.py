"""`phaze backup` while the catalogue is written: the copy is whole, of one moment, and opens as any catalogue."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.errors import UserError
from agent.hub.catalogue import Catalogue
from agent.operator.backup import backup
from agent.phoenix.outbox import Entry


def phaze(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "agent.cli", *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)


@pytest.fixture
def data() -> Path:
    return Path(os.environ["PHAZE_DATA_DIR"])


def entries(batch: int) -> list[Entry]:
    """Ten results that are recorded in one transaction."""
    about = {"service": "rank", "version": "v1", "outcome": "done", "worker": "w", "attempts": 1, "result": {}}
    times = {"started_at": 1.0, "finished_at": 2.0}
    return [Entry.model_validate({**about, **times, "record_id": f"{batch}-{n}", "token": 1}) for n in range(10)]


def filled(data: Path) -> None:
    with Catalogue(data) as catalogue:
        catalogue.register_agent("local", "t0ken")
        catalogue.record("local", entries(0))


def test_a_copy_made_while_results_are_recorded_is_of_one_moment(data: Path, tmp_path: Path) -> None:
    filled(data)
    with Catalogue(data) as catalogue:
        over = threading.Event()

        def write() -> None:
            batch = 1
            while not over.wait(0.01):
                catalogue.record("local", entries(batch))
                batch += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            said = phaze("backup", str(tmp_path / "copy.sqlite"))
        finally:
            over.set()
            writer.join()
    assert said.returncode == 0, said.stderr
    assert stat.S_IMODE((tmp_path / "copy.sqlite").stat().st_mode) == 0o600
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy:
        (count,) = copy.execute("SELECT count(*) FROM results").fetchone()
    assert count >= 10
    assert count % 10 == 0, "no transaction is there by half"
    assert f" {count:,} results" in said.stdout.decode()


def test_it_goes_to_the_output_as_well(data: Path, tmp_path: Path) -> None:
    filled(data)
    (tmp_path / "copy.sqlite").write_bytes(phaze("backup", "-").stdout)
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy:
        assert copy.execute("SELECT count(*) FROM results").fetchone() == (10,)
    assert {path.suffix for path in data.iterdir()} <= {".sqlite"}, "nothing is left behind"


def results(data: Path) -> int:
    with closing(sqlite3.connect(data / "catalogue.sqlite")) as catalogue:
        return int(catalogue.execute("SELECT count(*) FROM results").fetchone()[0])


@pytest.mark.parametrize("name", ["copy.sqlite", "-"])
def test_a_copy_is_restored_and_what_was_there_is_kept(data: Path, tmp_path: Path, name: str) -> None:
    filled(data)
    copy = phaze("backup", "-").stdout
    (tmp_path / "copy.sqlite").write_bytes(copy)
    with Catalogue(data) as catalogue:
        catalogue.record("local", entries(1))
    (data / "prints").mkdir()
    said = phaze("restore", name, given=copy)
    assert said.returncode == 0, said.stderr
    assert b": 10 results" in said.stdout
    assert sorted(path.name for path in data.iterdir()) == ["catalogue.sqlite", "catalogue.sqlite.before"]
    with Catalogue(data) as catalogue:
        assert catalogue.knows("local", "t0ken")
    assert results(data) == 10
    (data / "catalogue.sqlite.before").replace(data / "catalogue.sqlite")
    assert results(data) == 20


def test_whoever_restores_again_and_again_loses_no_catalogue(data: Path, tmp_path: Path) -> None:
    filled(data)
    copy = phaze("backup", "-").stdout
    with Catalogue(data) as catalogue:
        catalogue.record("local", entries(1))
    for name in (".before", ".before.2", ".before.3"):
        said = phaze("restore", "-", given=copy).stdout.decode()
        assert said.endswith(f": 10 results; what was there is kept as {data / 'catalogue.sqlite'}{name}\n")
    (data / "catalogue.sqlite.before").replace(data / "catalogue.sqlite")
    assert results(data) == 20


def test_nothing_is_restored_under_a_running_hub_or_from_what_is_no_whole_catalogue(data: Path, tmp_path: Path) -> None:
    filled(data)
    copy = bytearray(phaze("backup", "-").stdout)
    newer = bytearray(copy)
    newer[60:64] = (99).to_bytes(4, "big")  # user_version: https://www.sqlite.org/fileformat.html#user_version_number
    with Catalogue(data) as catalogue:
        catalogue.record("local", entries(1))
        said = phaze("restore", "-", given=bytes(copy))
        assert (said.returncode, b"stop it first" in said.stderr) == (1, True)
        catalogue.record("local", entries(2))
    copy[4096:8192] = b"\xff" * 4096
    for given, reason in (
        (b"hello", b"no catalogue"),
        (bytes(newer), b"upgrade first"),
        (bytes(copy), b"copy.sqlite is"),
    ):
        (tmp_path / "copy.sqlite").write_bytes(given)
        said = phaze("restore", str(tmp_path / "copy.sqlite"))
        assert said.returncode == 2
        assert reason in said.stderr
    assert results(data) == 30


def test_what_cannot_be_done_is_one_line_and_leaves_nothing(data: Path, tmp_path: Path) -> None:
    def refused(*arguments: str, code: int) -> str:
        said = phaze("backup", *arguments)
        assert said.returncode == code, said.stderr
        assert said.stderr.count(b"\n") == 1
        return said.stderr.decode()

    target = tmp_path / "copy.sqlite"
    assert "PHAZE_DATA_DIR" in refused(str(target), code=1)
    filled(data)
    assert "folder of yours" in refused(str(tmp_path / "nowhere/copy.sqlite"), code=1)
    target.write_bytes(b"an older one")
    assert "--force" in refused(str(target), code=2)
    page = bytearray((data / "catalogue.sqlite").read_bytes())
    page[4096:8192] = b"\xff" * 4096
    (data / "catalogue.sqlite").write_bytes(page)
    refused(str(target), "--force", code=1)
    assert target.read_bytes() == b"an older one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.sqlite", "data"]


def test_a_copy_for_which_there_is_no_folder_is_one_line(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(data)

    def refuse(**_where: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_a: refuse())
    said = CliRunner().invoke(backup, ["-"])
    assert isinstance(said.exception, UserError)
    assert str(said.exception) == f"{data} cannot be written (Read-only file system); the copy is made there first"
