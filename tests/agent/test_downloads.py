"""A file is had whole and proved, or not at all, whatever the server does."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent import downloads
from agent.downloads import DownloadError, Wanted, download, sole_user
from tests.agent.file_server import FileServer, serve

BODY = bytes(range(256)) * 400
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    with serve() as running:
        running.files["/m.pb?signature=hidden"] = BODY
        yield running


def fetch(server: FileServer, folder: Path, size: int | None = len(BODY), sha256: str | None = None) -> Path:
    with httpx.Client() as client:
        wanted = Wanted(f"{server.url}/m.pb?signature=hidden", folder / "m.pb", size, sha256)
        download(client, wanted, lambda here, total: None)
    return folder / "m.pb"


@pytest.mark.parametrize(("size", "sha256"), [(len(BODY), None), (None, None), (None, DIGEST), (len(BODY), DIGEST)])
def test_a_file_is_had(server: FileServer, tmp_path: Path, size: int | None, sha256: str | None) -> None:
    assert fetch(server, tmp_path, size, sha256).read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["m.pb"]


def test_what_broke_off_goes_on_where_it_was(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = [10_000, 20_000]
    assert fetch(server, tmp_path, sha256=DIGEST).read_bytes() == BODY
    assert [wanted for _, wanted in server.asked] == [None, "bytes=10000-", "bytes=30000-"]


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = [10_000, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match="broke off 5 times"):
        fetch(server, tmp_path)
    assert not (tmp_path / "m.pb").exists()
    server.asked.clear()
    assert fetch(server, tmp_path).read_bytes() == BODY
    assert [wanted for _, wanted in server.asked] == ["bytes=10000-"]


def test_a_server_that_ignores_ranges_is_taken_from_the_start(server: FileServer, tmp_path: Path) -> None:
    server.cut_after, server.ignores_ranges = [10_000], True
    assert fetch(server, tmp_path, sha256=DIGEST).read_bytes() == BODY


def test_a_file_that_changed_meanwhile_is_not_glued_together(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = [10_000, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(server, tmp_path)
    server.etag = '"2"'
    server.files["/m.pb?signature=hidden"] = BODY[::-1]
    assert fetch(server, tmp_path).read_bytes() == BODY[::-1]


def test_a_server_without_names_for_versions_is_asked_for_all_of_it(server: FileServer, tmp_path: Path) -> None:
    server.etag, server.cut_after = "", [10_000]
    assert fetch(server, tmp_path, sha256=DIGEST).read_bytes() == BODY
    assert {wanted for _, wanted in server.asked} == {None}


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_refusal_is_told_at_once_with_the_remedy_and_without_secrets(
    server: FileServer, tmp_path: Path, status: int
) -> None:
    server.status = [status]
    with pytest.raises(DownloadError, match=rf"/m\.pb answered HTTP {status}; check PHAZE_MODELS_URL") as error:
        fetch(server, tmp_path)
    assert len(server.asked) == 1
    assert "hidden" not in str(error.value)


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.status = [503, 429, 500]
    assert fetch(server, tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_of_another_size_is_refused(server: FileServer, tmp_path: Path, announced: bool) -> None:
    server.announces_length = announced
    server.files["/m.pb?signature=hidden"] = BODY[:-7]
    with pytest.raises(DownloadError, match="check PHAZE_MODELS_URL" if announced else "broke off"):
        fetch(server, tmp_path)
    assert not (tmp_path / "m.pb").exists()


def test_a_file_of_another_content_is_refused_and_dropped(server: FileServer, tmp_path: Path) -> None:
    server.files["/m.pb?signature=hidden"] = BODY[::-1]
    with pytest.raises(DownloadError, match="another content"):
        fetch(server, tmp_path, sha256=DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_nobody_there_is_told_with_the_remedy(tmp_path: Path, server: FileServer) -> None:
    server.url = "http://127.0.0.1:1"
    with pytest.raises(DownloadError, match="try again later"):
        fetch(server, tmp_path)


def test_a_server_that_drips_is_given_up(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "GRACE", 0.5)
    monkeypatch.setattr(downloads, "LEAST_RATE", 1_000_000)
    server.pause = 0.1
    with pytest.raises(DownloadError, match="too slow"):
        fetch(server, tmp_path)


def _hold(folder: str, log: str) -> None:
    with sole_user(Path(folder), lambda: None):
        with Path(log).open("a") as file:
            file.write("in\n")
        time.sleep(0.2)
        with Path(log).open("a") as file:
            file.write("out\n")


def test_only_one_of_four_processes_installs_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    processes = [context.Process(target=_hold, args=(str(tmp_path / "models"), str(log))) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert log.read_text().split() == ["in", "out"] * 4
