"""Router, parser and grouper as services: entries on a stream in, results in the hub's catalogue out; nothing faked but
the web site and the model."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis.asyncio import Redis

from agent.errors import ConfigError
from agent.hub.catalogue import Catalogue
from agent.lanes import DOCUMENT_LANES, queue_name
from agent.phoenix import keys
from agent.redis_client import connect
from agent.settings import load_settings
from agent.worker import THREAD_PINS, AgentWorker
from pipelines.documents.samples import Sample, write_samples
from pipelines.payload import encode_path
from tests.agent.test_up import Up
from tests.chaos.harness import Member
from tests.conftest import REPO
from tests.hub.conftest import catalogue, serving
from tests.hub.deliveries import AGENT, TOKEN
from tests.pipelines.documents import site
from tests.pipelines.documents.endpoint import endpoint, says
from tests.pipelines.documents.site import ok

__all__ = ["catalogue"]

PATIENCE = 150.0
NOTHING: dict[str, Any] = {"biomarkers": [], "diagnoses": [], "procedures": [], "variants": []}

pytestmark = pytest.mark.timeout(PATIENCE + 60)


class Service:
    """The workers of the three lanes, and what they left on the server and in the catalogue."""

    def __init__(self, redis: Redis, catalogue: Catalogue, folder: Path, **env: str) -> None:
        self.redis = redis
        self.catalogue = catalogue
        self.trail = folder / "trail"
        self.trail.touch()
        environment = {
            **os.environ,
            "PHAZE_AGENT_ID": AGENT,
            "PHAZE_AGENT_TOKEN": TOKEN,
            "PHAZE_LOG_FORMAT": "json",
            "PYTHONPATH": str(REPO),
            "TRAIL": str(self.trail),
            **env,
        }
        self.members = {
            lane: Member(
                folder / f"{lane}.log", {**environment, "PHAZE_AGENT_LANE": lane}, "tests.agent.document_workers"
            )
            for lane in DOCUMENT_LANES
        }

    async def ask(self, record_id: str, user_id: str = "u1", **fields: str) -> None:
        """What a producer of any language does."""
        said: Any = {"record_id": record_id, "user_id": user_id, **fields}
        await self.redis.xadd("phoenix:router:input", said)

    def begun(self, lane: str) -> list[str]:
        """The records whose bodies began, in order."""
        rows = map(json.loads, self.trail.read_text("utf-8").splitlines())
        return [row["record"] for row in rows if row["service"] == lane]

    def recorded(self, lane: str) -> dict[str, dict[str, Any]]:
        """record id -> its row in the catalogue."""
        rows = self.catalogue.results(lane, limit=1000)
        assert len({row["record_id"] for row in rows}) == len(rows), f"recorded twice by {lane}"
        return {row["record_id"]: row for row in rows}

    async def letters(self, place: Callable[[str], str], lane: str) -> dict[str, dict[str, Any]]:
        """record id -> its letter."""
        found = [json.loads(row) for row in await self.redis.lrange(place(lane), 0, -1)]
        return {letter["record_id"]: letter for letter in found}

    async def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            said = "\n".join(member.log.read_text("utf-8", "replace")[-2000:] for member in self.members.values())
            assert time.monotonic() < deadline, said
            await asyncio.sleep(0.05)

    async def nothing_is_left(self) -> None:
        for lane in DOCUMENT_LANES:
            assert await self.redis.xlen(keys.stream_key(lane)) == 0
            assert await self.redis.zcard(keys.incomplete_key(queue_name(AGENT, lane))) == 0
        assert [key async for key in self.redis.scan_iter("pages:*")] == [], "pages that nobody deleted"
        assert [key async for key in self.redis.scan_iter("lock:*")] == [], "locks are left"


@contextlib.asynccontextmanager
async def service(redis: Redis, url: str, catalogue: Catalogue, folder: Path, **env: str) -> AsyncIterator[Service]:
    """At work, with a hub on a real socket."""
    async with serving(catalogue, redis) as hub_url:
        found = Service(redis, catalogue, folder, PHAZE_REDIS_URL=url, PHAZE_HUB_URL=hub_url, **env)
        try:
            await asyncio.gather(*(member.start() for member in found.members.values()))
            await found.until(lambda: all(member.at_work for member in found.members.values()))
            yield found
        finally:
            for member in found.members.values():
                if member.running:
                    await member.end()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return write_samples(tmp_path_factory.mktemp("all my reports"))


async def test_a_document_goes_from_the_stream_through_three_stages_into_the_catalogue(
    redis: Redis, valkey_url: str, catalogue: Catalogue, tmp_path: Path, reports: list[Sample]
) -> None:
    pdf = reports[0].path.read_bytes()
    asked_again: list[float] = []

    async def busy_once(writer: asyncio.StreamWriter) -> None:
        asked_again.append(time.monotonic())
        busy = ok(b"", "Retry-After: 5", status="503 Service Unavailable")
        writer.write(busy if len(asked_again) == 1 else ok(pdf))

    folder = reports[0].path.parent
    variables = {"PHAZE_DOCUMENT_NETWORKS": "127.0.0.0/8", "PHAZE_DOCUMENT_ROOTS": str(folder)}
    async with site.serving() as there, service(redis, valkey_url, catalogue, tmp_path, **variables) as lanes:
        there.answers |= {"/report.pdf": ok(pdf), "/busy.pdf": busy_once, "/page": ok(b"<html>log in</html>")}
        await lanes.ask("busy", url=there.url("/busy.pdf"))
        await lanes.ask("by url", url=there.url("/report.pdf?token=s3cret"))
        await lanes.ask("by path", path=encode_path(reports[1].path))
        await lanes.ask("gone", url=there.url("/gone.pdf"))
        await lanes.ask("a page", url=there.url("/page"))
        await lanes.ask("nowhere", note="neither url nor path")
        done = {"busy", "by url", "by path"}
        await lanes.until(lambda: lanes.recorded("grouper").keys() == done)
        await lanes.until(lambda: len(lanes.recorded("router")) == 6)

        for record, report in (("by url", reports[0]), ("by path", reports[1])):
            row = lanes.recorded("router")[record]
            assert (row["outcome"], row["attempts"]) == ("done", 1)
            assert row["result"]["data"]["categories"] == {"lab_results": 1}
            facts = lanes.recorded("parser")[record]["result"]["data"]["facts"]["biomarkers"]
            printed = {(fact["name"], fact["value"]["printed"], fact["unit"]) for fact in facts}
            assert printed == {(result.name, result.value, result.unit) for result in report.results}
            groups = lanes.recorded("grouper")[record]["result"]["data"]["groups"]
            assert {"hemoglobin", "glucose"} <= {group["slug"] for group in groups}
        assert lanes.recorded("router")["busy"]["attempts"] == 2
        assert asked_again[1] - asked_again[0] >= 5, "as it had asked for"
        rejected = lanes.recorded("router")["a page"]
        assert (rejected["outcome"], rejected["reason"].partition(":")[0]) == ("rejected", "not-a-pdf")
        assert "404" in (await lanes.letters(keys.dead_letters_key, "router"))["gone"]["error"]
        assert "give either url or path" in (await lanes.letters(keys.quarantine_key, "router"))["nowhere"]["error"]
        await lanes.nothing_is_left()

        stored = [row["result"] for lane in DOCUMENT_LANES for row in lanes.recorded(lane).values()]
        logs = [member.log.read_text("utf-8") for member in lanes.members.values()]
        assert "s3cret" not in json.dumps(stored) + "".join(logs)
        pinned = [
            psutil.Process(child.pid).environ()
            for member in lanes.members.values()
            for child in psutil.Process(member.pid).children(recursive=True)
            if "forkserver" not in " ".join(child.cmdline())
        ]
        assert pinned, "what is read is read in child processes"
        assert all(THREAD_PINS.items() <= environment.items() for environment in pinned)


async def test_whoever_is_killed_in_whichever_stage_each_document_is_recorded_once_and_paid_by_its_user(
    redis: Redis, valkey_url: str, catalogue: Catalogue, tmp_path: Path, reports: list[Sample]
) -> None:
    stuck = {lane: f"stuck in {lane}" for lane in DOCUMENT_LANES}
    users = {f"r{number}": f"u{number % 3}" for number in range(6)} | dict.fromkeys(stuck.values(), "u0")
    for user in set(users.values()):
        await redis.set(keys.api_key_key(user), f"key-of-{user}")
    folder = reports[0].path.parent
    with endpoint(says(NOTHING)) as model:
        variables = {
            "PHAZE_DOCUMENT_ROOTS": str(folder),
            "PHAZE_DOCUMENT_MODEL": "small",
            "PHAZE_LLM_URL": model.url,
        }
        async with service(redis, valkey_url, catalogue, tmp_path, **variables) as lanes:
            for number, (record, user) in enumerate(users.items()):
                await lanes.ask(record, user, path=encode_path(reports[number % 3].path))
            for lane, record in stuck.items():
                await lanes.until(lambda lane=lane, record=record: record in lanes.begun(lane))
                await lanes.members[lane].end()
                await lanes.members[lane].start()
            await lanes.until(lambda: lanes.recorded("grouper").keys() == users.keys())
            for lane in DOCUMENT_LANES:
                rows = lanes.recorded(lane)
                assert rows.keys() == users.keys()
                assert {row["outcome"] for row in rows.values()} == {"done"}
                (added,) = [(await redis.xinfo_stream(keys.stream_key(lane)))["entries-added"]]
                assert added == len(users), f"sent to {lane} more than once"
                for record, row in rows.items():
                    marker = json.loads(await redis.get(keys.marker_key(lane, record)) or b"{}")
                    assert (marker["worker"], marker["result"]) == (row["worker"], row["result"]), "another run's"
                assert lanes.begun(lane).count(stuck[lane]) == 2, "it was killed over it"
            await lanes.nothing_is_left()
            spent = {row.user: row for row in catalogue.usage(by=("user",))}
            assert {user: row.records for user, row in spent.items()} == Counter(users.values())
            assert set(model.keys) == {f"Bearer key-of-{user}" for user in set(users.values())}


def test_a_lane_without_its_libraries_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"PHAZE_AGENT_LANE=parser wants pypdfium2, .*pip install 'phaze-agent\[doc"):
        AgentWorker(load_settings(agent_lane="parser", redis_url="redis://127.0.0.1:1", agent_token="t"))


def test_up_with_documents_alone_takes_a_folder_through_its_lanes_and_goes_on_after_kill_9(
    tmp_path: Path, reports: list[Sample]
) -> None:
    folder = reports[0].path.parent
    (folder / "broken.pdf").write_bytes(b"no PDF at all")

    def phaze(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PHAZE_DATA_DIR": str(tmp_path / "data")}
        argv = [sys.executable, "-m", "agent.cli", "documents", *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    def start() -> Up:
        return Up(tmp_path / "data", "--documents", PHAZE_DOCUMENT_ROOTS=str(folder))

    assert "no `phaze up` runs" in phaze("--send", str(folder)).stderr
    up = start()
    try:
        up.until((up.data / "redis.url").exists)
        assert phaze("--send", str(folder)).stdout.startswith("5 documents handed in")
        up.until(lambda: bool(up.results("router")))
        for process in up.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        up.clean()
        up = start()
        up.until(lambda: len(up.results("grouper")) == 4)
        up.until(lambda: len(up.results("router")) == 5)
        logs = {path.name for path in up.data.glob("logs/worker-*.log")}
        assert logs == {f"worker-{lane}.log" for lane in DOCUMENT_LANES}, "no lane for files"

        shown = phaze("--recorded", "--csv")
        assert shown.returncode == 3
        assert "broken.pdf-" in shown.stderr
        assert "rejected: not-a-pdf" in shown.stderr
        rows = list(csv.DictReader(io.StringIO(shown.stdout)))
        truth = {(result.name, result.value, result.unit) for sample in reports for result in sample.results}
        assert {(row["printed_name"], row["printed_value"], row["printed_unit"]) for row in rows} == truth
        assert {row["document"] for row in rows} == {str(sample.path) for sample in reports}
        assert len(json.loads(phaze("--recorded", "--json").stdout)["documents"]) == 5

        before = [tuple(row) for row in up.results()]
        assert phaze("--send", str(folder)).returncode == 0
        up.until(lambda: not _entries(up))
        assert [tuple(row) for row in up.results()] == before, "what is done is not read again"

        assert phaze("--send", str(reports[0].path), "--user", "ann").returncode == 0
        up.until(lambda: len(up.results("grouper")) == 5)
        several = phaze("--recorded")
        assert (several.returncode, several.stdout) == (2, ""), "two users' results are in one table"
        assert "documents of 2 users" in several.stderr
        assert "--user (ann, local)" in several.stderr
        rows = list(csv.DictReader(io.StringIO(phaze("--recorded", "--csv", "--user", "ann").stdout)))
        assert {row["document"] for row in rows} == {str(reports[0].path)}
        assert len(json.loads(phaze("--recorded", "--json", "--user", "local").stdout)["documents"]) == 5
        assert json.loads(phaze("--recorded", "--json", "--user", "bob").stdout)["groups"] == []
        up.process.send_signal(signal.SIGINT)
        assert up.end() == 130
        assert up.nobody_left()
    finally:
        up.clean()
        (folder / "broken.pdf").unlink()


def test_a_stop_is_heard_though_nobody_reads_any_more_what_is_said(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--documents")
    try:
        assert up.process.stdout is not None
        assert up.process.stderr is not None
        while "documents are read" not in up.process.stderr.readline():
            assert up.process.poll() is None
        up.process.stdout.close()
        up.process.stderr.close()
        up.process.send_signal(signal.SIGTERM)
        up.process.wait(60)
        assert up.nobody_left()
    finally:
        up.ended = True  # its pipes are closed
        up.clean()


def _entries(up: Up) -> int:
    """How many entries of the router's stream are not over."""

    async def look() -> int:
        client = connect((up.data / "redis.url").read_text("utf-8").strip())
        try:
            return int(await client.xlen(keys.stream_key("router")))
        finally:
            await client.aclose()

    return asyncio.run(look())


def test_their_workers_leave_all_that_is_heavy_to_their_children() -> None:
    code = "import sys, agent.worker; from agent.lanes import *; [load_checked(lane) for lane in DOCUMENT_LANES]"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True, timeout=60, check=True
    )
    modules = set(done.stdout.split())
    assert "agent.processors.grouper" in modules
    assert not modules & {"numpy", "pint", "rapidfuzz", "pypdfium2", "rapidocr", "mutagen", "essentia"}
