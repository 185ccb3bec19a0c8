"""`phaze backup` while the catalogue is written: the copy is whole, of one moment, and opens as any catalogue."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.hub.catalogue import Catalogue
from agent.phoenix.outbox import Entry


def phaze(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "agent.cli", *arguments], capture_output=True, timeout=60, check=False)


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
    with sqlite3.connect(tmp_path / "copy.sqlite") as copy:
        (count,) = copy.execute("SELECT count(*) FROM results").fetchone()
    assert count >= 10
    assert count % 10 == 0, "no transaction is there by half"
    assert f" {count:,} results" in said.stdout.decode()
    (tmp_path / "restored").mkdir()
    (tmp_path / "copy.sqlite").rename(tmp_path / "restored/catalogue.sqlite")
    with Catalogue(tmp_path / "restored") as restored:
        assert restored.knows("local", "t0ken")


def test_it_goes_to_the_output_as_well(data: Path, tmp_path: Path) -> None:
    filled(data)
    (tmp_path / "copy.sqlite").write_bytes(phaze("backup", "-").stdout)
    with sqlite3.connect(tmp_path / "copy.sqlite") as copy:
        assert copy.execute("SELECT count(*) FROM results").fetchone() == (10,)
    assert {path.suffix for path in data.iterdir()} <= {".sqlite"}, "nothing is left behind"


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
