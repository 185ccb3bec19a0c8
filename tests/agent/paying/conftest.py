"""One billing service and provider for the whole run, as new for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.paying.service import Service, serving


@pytest.fixture(scope="session")
def running_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture
def service(running_service: Service) -> Service:
    running_service.reset()
    return running_service
