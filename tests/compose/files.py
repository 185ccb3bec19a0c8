"""The Compose files as data: read as YAML, with the defaults of their variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.conftest import REPO

FILES = ("agent.yml", "cloud-agent.yml")

_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])((?:[^${}]|\$\{[^{}]*\})*))?\}")


def text(name: str) -> str:
    """The file without its comments."""
    lines = (REPO / "compose" / name).read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def variables(name: str) -> Iterator[tuple[str, str]]:
    """(variable, its default as written) of every ${...}."""
    for match in _VARIABLE.finditer(text(name)):
        yield match[1], (match[3] or "") if match[2] == "-" else ""
        if inner := _VARIABLE.fullmatch(match[3] or ""):
            yield inner[1], inner[3] or ""


def with_defaults(value: str) -> str:
    """The value where none of its variables is set; one that must be set becomes `set`."""
    while (match := _VARIABLE.search(value)) is not None:
        replaced = "set" if match[2] == "?" else match[3] or ""
        value = value[: match.start()] + replaced + value[match.end() :]
    return value


def services(name: str) -> dict[str, dict[str, Any]]:
    """Service -> what the file says, its anchors merged."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(text(name))["services"]
    return found


def environment(service: dict[str, Any]) -> dict[str, str]:
    """The variables that its process gets where nobody sets any."""
    return {
        name: with_defaults(str(value)) for name, value in service.get("environment", {}).items() if value is not None
    }
