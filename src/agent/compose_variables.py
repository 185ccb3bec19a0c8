"""What only the Compose files make use of, with its default there: the end of `.env.example`."""

from __future__ import annotations

import os
import re

SERVICES = {
    "VALKEY": "1g",
    "HUB": "1g",
    "ANALYZE": "8g",
    "FINGERPRINT": "4g",
    "META": "2g",
    "IO": "1g",
    "ROUTER": "4g",
    "PARSER": "2g",
    "GROUPER": "2g",
    "WATCHER": "1g",
    "DRAIN": "8g",
    "FINGERPRINT_ENGINE": "2g",
    "PROMETHEUS": "1g",
}
"""Service, as in PHAZE_<service>_MEMORY -> its memory limit."""

_ONE_BY_ONE = {
    "PHAZE_MUSIC_DIR": ("./music", "The folder of music, relative to compose/; it is /music in the containers."),
    "PHAZE_DOCUMENTS_DIR": ("./documents", "The folder of local documents; it is /documents in the containers."),
    "PHAZE_KEYS_DIR": ("./keys", "The folder of keys that settings name, such as PHAZE_PUSH_KEY_FILE=/keys/push."),
    "PHAZE_SCRATCH_DIR": ("scratch", "The compute agent's scratch folder: a path, or a volume's name."),
    "PHAZE_UID": ("1000", "The user as whom everything of ours runs: whoever owns the music, if it is to be moved."),
    "PHAZE_GID": ("1000", "That user's group."),
    "PHAZE_IMAGE": ("phaze-agent:0.1.0", "Name and version of the images; -light, -music and -documents follow it."),
    "PHAZE_VALKEY_IMAGE": ("valkey/valkey:8.1", "The queue server's image."),
    "PHAZE_PROMETHEUS_IMAGE": ("prom/prometheus:v2.53.3", "Prometheus' image (profile metrics)."),
    "PHAZE_FINGERPRINT_ENGINE_IMAGE": ("phaze-fingerprint-engine:1", "The engine of profile sidecars; none is ours."),
    "PHAZE_FINGERPRINT_ENGINE_CHECK": (
        "curl -fsS -m 4 http://127.0.0.1:8000/health",
        "The engine's health check: a command that its image has.",
    ),
    "PHAZE_PUBLISH_HOST": ("127.0.0.1", "The address of this machine on which hub and Prometheus are reached."),
    "PHAZE_PROMETHEUS_PORT": ("9090", "The port of Prometheus on it; PHAZE_HUB_PORT is the hub's."),
    "PHAZE_PROMETHEUS_RETENTION": ("15d", "How long Prometheus keeps what it has scraped."),
    "PHAZE_VALKEY_MAXMEMORY": ("512mb", "What the queue may hold; half of PHAZE_VALKEY_MEMORY, as it copies itself."),
    "PHAZE_LOCAL_VALKEY": ("1", "0 starts no queue server here: PHAZE_REDIS_URL names another one."),
    "PHAZE_LOCAL_HUB": ("1", "0 starts no hub here: PHAZE_HUB_URL names another control plane."),
    "PHAZE_STOP_GRACE": ("40s", "Until a stopping worker is killed: 30 s more than PHAZE_SHUTDOWN_GRACE."),
    "PHAZE_DRAIN_MUSIC_MODE": ("ro", "rw lets the drain carry out approved moves that are still on the base queue."),
}  # fmt: skip

COMPOSE = _ONE_BY_ONE | {
    f"PHAZE_{service}_{what}": (default, said)
    for service, memory in SERVICES.items()
    for what, default, said in (
        ("MEMORY", memory, "Memory limit of that service."),
        ("CPUS", "0", "Its share of the processor in cores; 0: no limit."),
    )
}
"""Variable -> (its default in the Compose files, its meaning)."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)")


def stop_grace() -> float | None:
    """Seconds until Compose kills a stopping worker: PHAZE_STOP_GRACE (`40s`, `1m30s`), as its file hands it on; None:
    we run without it."""
    given = os.environ.get("PHAZE_STOP_GRACE", "")
    if not re.fullmatch(f"(?:{_PART.pattern})+", given):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(given))
