"""What the Compose files promise, read off them; no Docker needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from agent.compose_variables import COMPOSE
from agent.errors import ConfigError
from agent.health import STALE
from agent.hub.app import known_names
from agent.lanes import CPU_LANES, DOCUMENT_LANES, LANES
from agent.settings import ACCEPTED, FROM_FILES, VARIABLES, WORKER_MARGIN, Settings, load_settings
from agent.watching.command import watch
from agent.worker import THREAD_PINS
from tests.compose.files import FILES, environment, services, text, variables, with_defaults
from tests.conftest import REPO

AGENT = services("agent.yml")
CLOUD = services("cloud-agent.yml")
EVERY = [pytest.param(service, id=f"{file}-{name}") for file in FILES for name, service in services(file).items()]
WORKERS = {name: service for name, service in AGENT.items() if name.startswith("worker-")}
OURS = [service for service in (*AGENT.values(), *CLOUD.values()) if "build" in service]

THE_HUBS = {"PHAZE_HUB_USER", "PHAZE_HUB_PASSWORD", "PHAZE_HUB_PASSWORD_FILE"}


def settings_of(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment(service).items():
        if not name.endswith("_FILE") or name == "PHAZE_HEALTH_FILE":
            monkeypatch.setenv(name, value)
    return load_settings()


@pytest.mark.parametrize("service", EVERY)
def test_every_service_is_confined_checked_bounded_and_started_again(service: dict[str, Any]) -> None:
    assert service["restart"] == "unless-stopped"
    assert service["init"] is True
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["healthcheck"]["test"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert re.fullmatch(r"\$\{PHAZE_\w+_MEMORY:-\d+g\}", service["mem_limit"])
    assert re.fullmatch(r"\$\{PHAZE_\w+_CPUS:-0\}", service["cpus"])
    assert service["pids_limit"]


@pytest.mark.parametrize("service", EVERY)
def test_no_image_is_without_a_version(service: dict[str, Any]) -> None:
    name, _, version = with_defaults(service["image"]).rpartition(":")
    assert name
    assert version.split("-")[0].strip("v") not in ("", "latest", "light", "music", "documents")


def test_our_images_have_the_packages_version() -> None:
    version = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert {with_defaults(service["image"]) for service in OURS} == {
        f"phaze-agent:{version}-light",
        f"phaze-agent:{version}-music",
        f"phaze-agent:{version}-documents",
    }


def test_every_lane_has_one_worker_and_one_of_them_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    beating = []
    for name, service in WORKERS.items():
        with monkeypatch.context() as patch:
            settings = settings_of(service, patch)
        found.append(settings.agent_lane)
        if settings.beats:
            beating.append(name)
        if settings.agent_lane is not None:
            assert name == f"worker-{settings.agent_lane}"
            assert settings.concurrency(settings.agent_lane) == load_settings().concurrency(settings.agent_lane)
            assert service.get("profiles") == (["documents"] if settings.agent_lane in DOCUMENT_LANES else None)
    assert sorted(filter(None, found)) == sorted(LANES)
    assert beating == ["worker-analyze"]
    drain = AGENT["worker-drain"]
    assert drain["profiles"] == ["drain"]
    assert environment(drain)["PHAZE_AGENT_LANE"] == ""
    assert environment(drain)["PHAZE_AGENT_HEARTBEAT"] == "false"


def test_the_compute_agent_is_one_worker_without_music(monkeypatch: pytest.MonkeyPatch) -> None:
    (service,) = CLOUD.values()
    settings = settings_of({**service, "environment": {**service["environment"], **ADDRESSES}}, monkeypatch)
    assert settings.agent_lane == "analyze"
    assert settings.concurrency("analyze") == 1
    assert settings.beats
    assert "PHAZE_AGENT_HEARTBEAT" not in service["environment"]
    assert settings.child_memory_mb == 8192
    assert with_defaults(service["mem_limit"]) == "12g"
    assert not any("/music" in volume for volume in service["volumes"])


ADDRESSES = {"PHAZE_REDIS_URL": "redis://elsewhere", "PHAZE_HUB_URL": "https://elsewhere"}


def test_light_lanes_run_without_essentia_and_the_cpu_lanes_with_pins() -> None:
    for service in OURS:
        lane = environment(service).get("PHAZE_AGENT_LANE")
        heavy = lane in CPU_LANES or lane == ""
        target = "documents" if lane in DOCUMENT_LANES else "music" if heavy else "light"
        assert service["build"]["target"] == target
        assert service["image"].endswith(f"-{service['build']['target']}")
        assert (THREAD_PINS.items() <= environment(service).items()) == heavy
        assert service.get("cpu_shares", 1024) == (128 if heavy and service not in CLOUD.values() else 1024)


IN_THE_IMAGE = {"PHAZE_DATA_DIR", "PHAZE_FFMPEG", "PHAZE_AGENT_LANE", "PHAZE_AGENT_HEARTBEAT"}
"""What the image or the file itself has decided."""

READS = {"worker-router"}
ASKS_A_MODEL = {"worker-router", "worker-parser"}

WHO_NEEDS = {
    "PHAZE_SET_MINUTES": {"hub"},
    "PHAZE_S3_": {"hub"},
    "PHAZE_HUB_NAMES": {"hub"},
    "PHAZE_HUB_PROXIES": {"hub"},
    "PHAZE_HUB_DRAIN": {"hub"},
    "PHAZE_FINGERPRINT_ENGINE": {"hub"},
    "PHAZE_PUSH_KEY": {"worker-io", "worker-drain"},
    "PHAZE_PUSH_TO": {"hub", "worker-io", "worker-drain"},
    "PHAZE_PUSH_HOST_KEYS": {"hub", "worker-io", "worker-drain"},
    "PHAZE_MOVE_ROOTS": {"worker-meta", "worker-drain"},
    "PHAZE_DOCUMENT_ROOTS": READS,
    "PHAZE_DOCUMENT_NETWORKS": READS,
    "PHAZE_DOCUMENT_MAX_": READS,
    "PHAZE_DOCUMENT_MODEL": ASKS_A_MODEL,
    "PHAZE_MINERU_": READS,
    "PHAZE_LLM_URL": ASKS_A_MODEL,
    "PHAZE_BILLING_": ASKS_A_MODEL,
    "PHAZE_KEY_": ASKS_A_MODEL,
    "PHAZE_PROFILE": {"hub", "worker-analyze", "worker-drain"},
    "PHAZE_MODELS_": {"worker-analyze", "worker-drain"},
}
"""Variables, by how they begin -> the services that get them; secrets reach nobody else."""


@pytest.mark.parametrize("name", sorted(set(VARIABLES) - IN_THE_IMAGE))
def test_a_setting_reaches_who_reads_it_and_secrets_nobody_else(name: str) -> None:
    got = {service for service, facts in AGENT.items() if name in facts.get("environment", {})}
    assert got, f"{name} in .env changes nothing in a container"
    for begins, who in WHO_NEEDS.items():
        if name.startswith(begins):
            assert got == who
    if VARIABLES[name] in FROM_FILES:
        assert {service for service in got if f"{name}_FILE" in AGENT[service]["environment"]} == got - {
            service for service in got if name == "PHAZE_REDIS_URL"
        }
        for service in got if name != "PHAZE_REDIS_URL" else ():
            file = AGENT[service]["environment"][f"{name}_FILE"]
            assert file is None or file.startswith(f"${{{name}_FILE:-"), "what .env names is read"


def test_the_queue_servers_address_is_the_variables_the_files_or_the_own_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Compose reads the line, in this order."""
    said = {service["environment"]["PHAZE_REDIS_URL"] for service in OURS if service in AGENT.values()}
    assert said == {"${PHAZE_REDIS_URL:-${PHAZE_REDIS_URL_FILE:-redis://valkey:6379/0}}"}
    file = tmp_path / "address"
    file.write_text("rediss://user:secret@elsewhere:6379\n", "utf-8")
    monkeypatch.setenv("PHAZE_REDIS_URL", str(file))
    assert load_settings().redis_address == "rediss://user:secret@elsewhere:6379"
    monkeypatch.setenv("PHAZE_REDIS_URL", "/nowhere")
    with pytest.raises(ConfigError, match=r"PHAZE_REDIS_URL_FILE=/nowhere cannot be read \(No such file"):
        load_settings()


def test_who_must_remember_has_a_volume_for_it() -> None:
    """The root is read-only: the data folder, models and keys are where the settings say."""
    for name in ("hub", "worker-meta", "worker-drain"):  # the catalogue; how far each approved move is
        assert any(volume.endswith(":/var/lib/phaze") for volume in AGENT[name]["volumes"]), name
    assert "journal:/var/lib/phaze" in AGENT["worker-meta"]["volumes"]
    assert "journal:/var/lib/phaze" in AGENT["worker-drain"]["volumes"], "one may end what the other began"
    for service in [*AGENT.values(), *CLOUD.values()]:
        places = [with_defaults(volume) for volume in service.get("volumes", [])]
        assert ("models:/models" in places) == (environment(service).get("PHAZE_MODELS_DIR") == "/models")
        given = service.get("environment", {})
        assert ("./keys:/keys:ro" in places) == any(
            name in given for name in ("PHAZE_PUSH_HOST_KEYS", "PHAZE_S3_BUCKET", "PHAZE_BILLING_TOKEN_FILE")
        )
        assert ("./documents:/documents:ro" in places) == (
            environment(service).get("PHAZE_DOCUMENT_ROOTS") == "/documents"
        )


@pytest.mark.parametrize("service", [WORKERS["worker-io"], CLOUD["worker-analyze"]], ids=FILES)
@pytest.mark.parametrize(("age", "healthy"), [(0.0, True), (STALE - 4, True), (STALE + 4, False), (None, False)])
def test_a_workers_check_says_what_phaze_health_says(
    service: dict[str, Any], age: float | None, healthy: bool, tmp_path: Path
) -> None:
    file = tmp_path / "healthy"
    if age is not None:
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    check = [part.replace("$$", "$") for part in service["healthcheck"]["test"]]
    assert check.pop(0) == "CMD"
    env = {**os.environ, "PHAZE_HEALTH_FILE": str(file)}
    for command in (check, [sys.executable, "-m", "agent.cli", "health"]):
        done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=False)
        assert (done.returncode == 0) == healthy


def test_the_slot_for_an_engine_is_used_once_it_is_healthy() -> None:
    assert AGENT["fingerprint-engine"]["profiles"] == ["sidecars"]
    found = AGENT["worker-fingerprint"]["depends_on"]
    assert found["fingerprint-engine"] == {"condition": "service_healthy", "required": False}
    assert found.items() >= AGENT["worker-io"]["depends_on"].items()


def test_every_volume_is_named_and_only_known_profiles_hold_services_back() -> None:
    for file in FILES:
        data = yaml.safe_load(text(file))
        for service in data["services"].values():
            named = {place.split(":")[0] for place in map(with_defaults, service.get("volumes", []))}
            assert {name for name in named if not name.startswith((".", "/"))} <= set(data["volumes"])
    held = {name: service["profiles"] for name, service in AGENT.items() if "profiles" in service}
    documents = {f"worker-{lane}": ["documents"] for lane in DOCUMENT_LANES}
    others = {"worker-drain": ["drain"], "fingerprint-engine": ["sidecars"], "prometheus": ["metrics"]}
    assert held == documents | others


def test_only_meta_may_write_to_the_music() -> None:
    for name, service in AGENT.items():
        for volume in service.get("volumes", []):
            _, _, place = with_defaults(volume).partition(":")
            if place.startswith("/music"):
                assert place == ("/music" if name == "worker-meta" else "/music:ro"), name


def test_a_stopping_worker_has_time_for_its_own_grace() -> None:
    needed = load_settings().shutdown_grace + WORKER_MARGIN
    for service in [*WORKERS.values(), *CLOUD.values()]:
        assert float(with_defaults(service["stop_grace_period"]).removesuffix("s")) >= needed
        if service["command"] == ["worker"]:
            assert service["environment"]["PHAZE_STOP_GRACE"] == service["stop_grace_period"], "it warns of a misfit"


def test_no_file_holds_a_secret() -> None:
    for service in [*AGENT.values(), *CLOUD.values()]:
        for name, value in service.get("environment", {}).items():
            if re.search("TOKEN|PASSWORD|SECRET|KEY", name) and value is not None:
                assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", str(value)) or name.endswith("_FILE"), name
    for file in FILES:
        assert not re.search(r"://[^/\s]*:[^/\s@]+@(?!host)", text(file))


@pytest.mark.parametrize("file", FILES)
def test_every_variable_is_a_known_one_with_its_default(file: str) -> None:
    for name, default in variables(file):
        assert name in ACCEPTED, name
        if name in COMPOSE and not (file == "cloud-agent.yml" and name == "PHAZE_ANALYZE_MEMORY"):
            assert default == COMPOSE[name][0], name
    for service in services(file).values():
        names = {name for name in service.get("environment", {}) if name.startswith("PHAZE_")}
        assert names <= ACCEPTED | THE_HUBS


def test_every_compose_variable_is_read() -> None:
    read = {name for file in FILES for name, _ in variables(file)}
    assert set(COMPOSE) <= read


def test_the_watcher_watches_the_music_and_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = AGENT["watcher"]
    assert "profiles" not in watcher
    command = click.Group(commands={"watch": watch}).resolve_command(click.Context(watch), watcher["command"])
    assert command[1] is watch
    folders = watcher["command"][1:]
    assert folders == ["/music"]
    assert all(any(f":{folder}:ro" in volume for volume in watcher["volumes"]) for folder in folders)
    with monkeypatch.context() as patch:
        settings = settings_of(watcher, patch)
    assert watcher["healthcheck"] == WORKERS["worker-meta"]["healthcheck"]
    assert settings.health_file is not None
    assert any(place.split(":")[0] == str(settings.health_file.parent) for place in watcher["tmpfs"])
    assert {name for name in Settings.model_fields if name.startswith("watch_")} == {
        name.removeprefix("PHAZE_").lower() for name in watcher["environment"] if name.startswith("PHAZE_WATCH_")
    }
    assert set(watcher["depends_on"]) >= {"hub"}


def test_prometheus_asks_every_worker_and_the_hub() -> None:
    config = yaml.safe_load((REPO / "compose/prometheus.yml").read_text("utf-8"))
    hub, workers = config["scrape_configs"]
    assert hub["static_configs"][0]["targets"] == ["hub:8080"]
    own = environment(AGENT["hub"])
    behind_a_proxy = load_settings(hub_url="https://hub.example.org", hub_names=own["PHAZE_HUB_NAMES"])
    assert "hub" in known_names(behind_a_proxy), "also where workers elsewhere know it by another name"
    (found,) = workers["dns_sd_configs"]
    assert set(found["names"]) == set(WORKERS)
    for service in WORKERS.values():
        assert environment(service)["PHAZE_METRICS_PORT"] == str(found["port"])
        assert environment(service)["PHAZE_METRICS_HOST"] == "0.0.0.0"


def test_the_queue_server_keeps_what_it_acknowledged_and_evicts_nothing() -> None:
    command = " ".join(AGENT["valkey"]["command"])
    assert "--appendonly yes --appendfsync always" in command
    assert command.endswith("--maxmemory-policy noeviction")
    assert AGENT["valkey"]["volumes"] == ["valkey:/data"]


def test_the_hub_is_published_on_this_machine_alone() -> None:
    assert with_defaults(AGENT["hub"]["ports"][0]) == "127.0.0.1:8080:8080"
    assert not [name for name, service in AGENT.items() if "ports" in service and name not in ("hub", "prometheus")]
