"""Containers for tests: skipped where no Docker engine answers, failed where CI is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.stack import BUILD, Stack, checkout, docker_up, why_not
from tests.pipelines.files.conftest import moto_port as moto_port  # an object store

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run side by side (JOBS), those in containers are one after another: they share the images."""
    for item in items:
        if item.get_closest_marker("compose"):
            item.add_marker(pytest.mark.xdist_group("containers"))


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout, its images built from it."""
    if (reason := why_not()) is not None:
        said = f"no Docker engine with Compose answers ({reason}); {docker_up()} starts one, where it is there"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    folder = checkout(tmp_path_factory.mktemp("clone") / "phaze-agent")
    Stack(folder)("build", "worker-io", "worker-drain", within=BUILD)
    return folder


@pytest.fixture
def agent(clone: Path) -> Iterator[Stack]:
    """compose/agent.yml, not yet up, on volumes of its own."""
    stack = Stack(clone)
    yield stack
    stack.down()
