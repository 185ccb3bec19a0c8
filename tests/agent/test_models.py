"""`phaze models`: what is installed is what its authors made, and its licence was accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent import downloads
from agent.cli import phaze
from agent.doctor import installed_models
from agent.errors import UserError
from agent.hub import file_tasks
from agent.models_command import ACCEPTED
from agent.settings import load_settings
from pipelines.music.models import catalogue
from pipelines.music.models.catalogue import MODELS, NON_COMMERCIAL, Model, ModelFile, is_installed
from tests.agent.file_server import FileServer, serve

GRAPH = b"\x0a\x00" * 5_000
SAID = {
    "classes": ["b", "a"],
    "schema": {"inputs": [{"name": "in"}], "outputs": [{"name": "out", "output_purpose": "predictions"}]},
    "inference": {"algorithm": "TensorflowPredictMusiCNN", "sample_rate": 16000},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    """Two models on a server: `base`, and `mood`, which needs it."""
    monkeypatch.setattr(downloads, "PAUSE", 0.01)
    described = json.dumps(SAID).encode()
    with serve() as running:
        running.files = {"/base.pb": GRAPH, "/base.json": described, "/mood.pb": GRAPH, "/mood.json": described}
        for name, needs in (("base", ""), ("mood", "base")):
            files = (ModelFile(f"{name}.pb", len(GRAPH)), ModelFile(f"{name}.json"))
            monkeypatch.setitem(MODELS, name, Model(name, "a test's", NON_COMMERCIAL, files, needs=needs))
        monkeypatch.setenv("PHAZE_MODELS_URL", f"{running.url}/")
        monkeypatch.setenv("PHAZE_MODELS_DIR", str(tmp_path / "models"))
        yield running


def run(*words: str) -> Result:
    return CliRunner().invoke(phaze, ["models", *words])


def test_a_licence_is_shown_and_accepted_once(server: FileServer, tmp_path: Path) -> None:
    refused = run("install", "base")
    assert isinstance(refused.exception, UserError)
    assert "--accept-licence" in str(refused.exception)
    assert "CC BY-NC-SA 4.0" in refused.output
    assert not server.asked
    accepted = run("install", "base", "--accept-licence")
    assert accepted.exit_code == 0
    assert "CC BY-NC-SA 4.0" in accepted.output
    again = run("install", "mood")
    assert again.exit_code == 0, again.exception
    assert "commercial" not in again.output
    assert list(json.loads((tmp_path / "models" / ACCEPTED).read_text())) == [NON_COMMERCIAL]


def test_what_a_model_needs_is_installed_with_it_and_nothing_twice(server: FileServer, tmp_path: Path) -> None:
    assert run("install", "mood", "--accept-licence").exit_code == 0
    assert [path for path, _ in server.asked] == ["/base.pb", "/base.json", "/mood.pb", "/mood.json"]
    assert run("install", "mood").exit_code == 0
    assert len(server.asked) == 4
    assert (tmp_path / "models" / "mood.pb").read_bytes() == GRAPH


def test_an_install_that_broke_off_goes_on(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = [6_000, 0, 0, 0, 0, 0]
    failed = run("install", "base", "--accept-licence")
    assert "what is here is kept" in str(failed.exception)
    assert not is_installed(MODELS["base"], tmp_path / "models")
    assert run("install", "base").exit_code == 0
    assert ("/base.pb", "bytes=6000-") in server.asked


def test_four_at_once_download_it_once(server: FileServer) -> None:
    assert run("install", "base", "--accept-licence").exit_code == 0
    for name in ("base.pb", "base.json"):
        (load_settings().models_folder / name).unlink()
    server.asked.clear()
    server.pause = 0.02
    from agent.models_command import install

    def one(_number: int) -> None:
        install.callback(("base",), accept_licence=False)  # type: ignore[misc]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert [path for path, _ in server.asked] == ["/base.pb", "/base.json"]


def test_a_description_that_describes_nothing_is_refused(server: FileServer, tmp_path: Path) -> None:
    server.files["/base.json"] = b"<html>not found</html>"
    failed = run("install", "base", "--accept-licence")
    assert "base.json: it does not describe a model" in str(failed.exception)
    assert not is_installed(MODELS["base"], tmp_path / "models")


def test_verify_tells_what_is_wrong(server: FileServer, tmp_path: Path) -> None:
    assert "phaze models install" in str(run("verify").exception)
    assert run("install", "base", "--accept-licence").exit_code == 0
    broken = run("verify")  # its files are right; its graph is none
    assert broken.exit_code == 1
    assert "base.pb cannot be run" in broken.output
    (tmp_path / "models" / "base.pb").write_bytes(GRAPH[:-1])
    assert "base.pb has 9999 bytes instead of 10000" in run("verify").output
    (tmp_path / "models" / "base.json").unlink()
    assert "base.json is missing" in run("verify", "base").output


def test_a_name_that_is_no_model_is_told_with_those_there_are(server: FileServer) -> None:
    assert "the models are musicnn, tempocnn" in str(run("install", "musicn").exception)


def test_the_list_says_licence_size_and_what_is_installed(server: FileServer) -> None:
    run("install", "base", "--accept-licence")
    rows = {row["name"]: row for row in json.loads(run("list", "--json").output)}
    assert rows["base"]["installed"]
    assert not rows["mood"]["installed"]
    assert (rows["musicnn"]["licence"], rows["tempocnn"]["licence"]) == ("ISC", "AGPL-3.0")
    assert rows["genre_discogs400"]["needs"] == "discogs-effnet"
    assert "base" in run("list").output


def test_every_model_that_listens_to_another_names_one_of_the_table() -> None:
    for model in MODELS.values():
        assert not model.needs or model.needs in MODELS
        assert [file.name.rpartition(".")[2] for file in model.files] == ["pb", "json"] * (len(model.files) // 2)
        assert model.must_be_accepted == (model.wheel is None)


def test_the_doctor_misses_models_only_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    assert list(installed_models(load_settings())) == []
    monkeypatch.setenv("PHAZE_PROFILE", "FULL")
    (finding,) = installed_models(load_settings())
    assert finding.verdict == "missing"
    assert "phaze models install" in finding.remedy
    run("install", "base", "--accept-licence")
    (finding,) = installed_models(load_settings())
    assert finding.verdict == "ok"


def test_a_profile_is_half_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(file_tasks.FILE_TASKS, file_tasks.ANALYSIS, file_tasks.FILE_TASKS[file_tasks.ANALYSIS])
    file_tasks.use_profile("fast")
    version = file_tasks.version_for(file_tasks.ANALYSIS, "0" * 64)
    assert version == f"{'0' * 64}:fast-2"
    payload = file_tasks.file_payload(file_tasks.ANALYSIS, version=version, path="/a", size=1, mtime_ns=0, root="")
    assert payload.profile == "fast"  # type: ignore[attr-defined]


def test_models_lie_in_the_data_folder_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load_settings().models_folder == load_settings().data_dir / "models"
    monkeypatch.setenv("PHAZE_MODELS_DIR", str(tmp_path / "elsewhere"))
    assert load_settings().models_folder == catalogue.folder() == tmp_path / "elsewhere"
