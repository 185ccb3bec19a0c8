"""Fingerprint engines: one Protocol; an outage is no fault of a file; what is acknowledged is read back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from agent.phoenix.breaker import outcome_of
from pipelines.context import InlineContext, policy_of
from pipelines.errors import InputRejected
from pipelines.music.engines import ChromaprintEngine, EngineDown, FingerprintEngine, NotStored, ingest_checked
from pipelines.music.ingest import IngestPayload, ingest_file
from pipelines.music.samples import Sample
from pipelines.music.sidecar import SidecarEngine
from pipelines.payload import decode_path, encode_path
from tests.pipelines.conftest import Make


class Sidecar:
    """A small engine on a real socket, which really fingerprints; `fault` spoils its answers."""

    def __init__(self) -> None:
        self.engine = ChromaprintEngine()
        self.fault: Callable[[str], Response | None] = lambda _path: None
        self.forgets = False
        self.url = ""
        self.asked: list[str] = []

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        self.asked.append(path)
        if (spoilt := self.fault(path)) is not None:
            return spoilt
        if path == "/health":
            return JSONResponse({"engine": "toy", "items": await self.engine.health()})
        body = json.loads(await request.body())
        try:
            file = decode_path(body["path"])
            if path == "/ingest":
                engine = ChromaprintEngine() if self.forgets else self.engine
                return JSONResponse({"hashes": await engine.ingest(body["item"], file)})
            found = await self.engine.query(file, body["start"], body["seconds"])
        except InputRejected as error:
            return JSONResponse({"error": str(error)}, 422)
        return JSONResponse({"matches": [match._asdict() for match in found]})


@pytest.fixture
async def sidecar() -> AsyncIterator[Sidecar]:
    found = Sidecar()
    routes = [Route(path, found.answer, methods=["GET", "POST"]) for path in ("/health", "/ingest", "/query")]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", lifespan="off"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]  # signals are the test runner's
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    found.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield found
    server.should_exit = True
    await running


@pytest.fixture(params=["sidecar", "chromaprint"])
async def engine(request: pytest.FixtureRequest, sidecar: Sidecar) -> AsyncIterator[FingerprintEngine]:
    found: FingerprintEngine = SidecarEngine(sidecar.url) if request.param == "sidecar" else ChromaprintEngine()
    yield found
    await found.close()


def payload(path: Path, url: str) -> IngestPayload:
    return IngestPayload(version="1", path=encode_path(path), size=path.stat().st_size, engine=url)


async def test_every_engine_stores_and_finds_again(engine: FingerprintEngine, samples: list[Sample]) -> None:
    assert await engine.health() == 0
    for sample in samples[:2]:
        assert await ingest_checked(engine, sample.path.name, sample.path, 20.0) > 50
    assert await engine.health() == 2
    assert await engine.ingest(samples[0].path.name, samples[1].path) > 50
    assert await engine.ingest(samples[0].path.name, samples[0].path) > 50
    assert await engine.health() == 2, "stored again is stored once"
    [match] = await engine.query(samples[1].path, 5.0, 15.0)
    assert match.item == samples[1].path.name
    assert match.score > 0.9
    assert match.offset == pytest.approx(5.0, abs=1)
    assert await engine.query(samples[5].path) == []


async def test_a_file_at_fault_is_rejected_by_every_engine(engine: FingerprintEngine, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(b"no sound at all" * 99)
    with pytest.raises(InputRejected, match="not-audio"):
        await ingest_checked(engine, "a", tmp_path / "a.mp3")


async def test_a_file_is_stored_and_read_back(sidecar: Sidecar, samples: list[Sample]) -> None:
    done = await ingest_file(InlineContext("7"), payload(samples[0].path, sidecar.url))
    assert (done.outcome, done.item, done.engine) == ("done", "7", sidecar.url.removeprefix("http://"))
    assert done.hashes > 50
    assert sidecar.asked == ["/ingest", "/query"]
    assert policy_of(ingest_file).dependency(payload(samples[0].path, sidecar.url)) == f"engine:{done.engine}"  # type: ignore[misc]


async def test_an_engine_that_acknowledges_and_stores_nothing_is_found_out(
    sidecar: Sidecar, samples: list[Sample]
) -> None:
    sidecar.forgets = True
    with pytest.raises(NotStored, match="acknowledged 7 and does not find it") as caught:
        await ingest_file(InlineContext("7"), payload(samples[0].path, sidecar.url))
    assert outcome_of(caught.value) == "failed"
    sidecar.fault = lambda path: JSONResponse({"hashes": 0}) if path == "/ingest" else None
    with pytest.raises(NotStored, match="no hash at all"):
        await ingest_file(InlineContext("7"), payload(samples[0].path, sidecar.url))


async def test_a_silence_that_nobody_can_find_again_is_no_outage(sidecar: Sidecar, make: Make) -> None:
    path = make("silence.flac", "-f", "lavfi", "-i", "anullsrc", "-t", "60")
    with pytest.raises(InputRejected, match="monotonous"):
        await ingest_file(InlineContext("7"), payload(path, sidecar.url))


FAULTS: dict[str, Callable[[str], Response | None]] = {
    "broken": lambda _path: PlainTextResponse("Traceback ...", 500),
    "busy": lambda _path: JSONResponse({"error": "later"}, 503),
    "too many": lambda _path: JSONResponse({}, 429),
    "another server": lambda _path: PlainTextResponse("<html>", 200),
    "no such route": lambda _path: JSONResponse({"error": "?"}, 404),
    "odd": lambda _path: JSONResponse({"hashes": "many", "items": None, "matches": 7}),
    "a list": lambda _path: JSONResponse([]),
    "odd matches": lambda path: JSONResponse({"matches": [{"item": 1}]}) if path == "/query" else None,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_an_engine_says_but_422_is_its_own_fault(
    sidecar: Sidecar, samples: list[Sample], fault: str
) -> None:
    sidecar.fault = FAULTS[fault]
    with pytest.raises(EngineDown) as caught:
        await ingest_file(InlineContext("7"), payload(samples[0].path, sidecar.url))
    assert outcome_of(caught.value) == "failed"
    if fault != "odd matches":
        engine = SidecarEngine(sidecar.url)
        with pytest.raises(EngineDown):
            await engine.health()
        await engine.close()


async def test_422_is_the_files_fault_and_the_engine_works(sidecar: Sidecar, samples: list[Sample]) -> None:
    sidecar.fault = lambda _path: JSONResponse({"error": "too short"}, 422)
    with pytest.raises(InputRejected, match=r"engine-rejected: .*too short") as caught:
        await ingest_file(InlineContext("7"), payload(samples[0].path, sidecar.url))
    assert outcome_of(caught.value) == "ok"


async def test_an_engine_that_is_away_or_hangs_is_down(make: Make, samples: list[Sample]) -> None:
    async def silent(_reader: Any, writer: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        writer.close()

    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    away = SidecarEngine(f"http://127.0.0.1:{port}")
    with pytest.raises(EngineDown, match=f"127.0.0.1:{port} does not answer /ingest"):
        await away.ingest("a", samples[0].path)
    await away.close()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    hanging = SidecarEngine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=0.3)
    with pytest.raises(EngineDown, match="does not answer"):
        await hanging.ingest("a", samples[0].path)
    await hanging.close()
    server.close()


@pytest.mark.parametrize("url", ["", "engine:1", "ftp://a", "http://u:p@a", "http://a?k=1", "http://"])
def test_an_address_with_a_secret_or_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        IngestPayload(version="1", path="/a", size=1, engine=url)
