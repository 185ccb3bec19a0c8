"""Containers for tests: skipped where no Docker engine answers, failed where CI is set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import docker_engine
from tests.compose.stack import BUILD, Stack, checkout
from tests.pipelines.files.conftest import moto_port as moto_port  # an object store


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout, its images built from it."""
    docker_engine.must_answer()
    folder = checkout(tmp_path_factory.mktemp("clone") / "phaze-agent")
    Stack(folder)("build", "worker-io", "worker-drain", within=BUILD)
    return folder
