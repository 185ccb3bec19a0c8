"""Every kind of address works for everything; what is wrong with one is a line with the remedy and without a secret."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from click.testing import CliRunner
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from agent import doctor
from agent.cli import phaze
from agent.errors import ConfigError
from agent.lanes import queue_name
from agent.phoenix.boot import wait_for_server
from agent.phoenix.queue import LaneQueue
from agent.phoenix.relay import Relay
from agent.phoenix.worker import LaneWorker
from agent.redis_client import connect, reply
from agent.redis_trouble import Trouble, trouble
from tests.conftest import REPO
from tests.control_plane import ControlPlane
from tests.servers import Certificates, Local, program

TASK = "push_file"
QUEUE = queue_name("local", "io")
SECRET = "s3cret/@#%41:"
ENCODED = "s3cret%2F%40%23%2541%3A"

Start = Callable[..., Local]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def address(start_server: Start, certificates: Certificates, tmp_path: Path) -> Callable[[str], str]:
    """Starts a server of some kind and tells its address."""
    ca, mine = f"ssl_ca_certs={certificates.ca}", certificates.client

    def start(kind: str) -> str:
        if kind.startswith("tls"):
            clients = "yes" if kind == "tls, both sides" else "no"
            settings = [*certificates.settings(clients=clients), "--requirepass", SECRET]
            port = start_server(*settings, program=program("tls"), tls=True).port
            host = f"rediss://:{ENCODED}@127.0.0.1:{port}"
            return {
                "tls": f"{host}?{ca}",
                "tls, both sides": f"{host}/1?{ca}&ssl_certfile={mine}&ssl_keyfile={mine}",
                "tls, another name": f"rediss://:{ENCODED}@127.0.0.2:{port}?{ca}&ssl_check_hostname=false",
                "tls, unverified": f"{host}?ssl_cert_reqs=none",
            }[kind]
        if kind == "unix":
            socket = tmp_path / "a b%.sock"
            start_server("--unixsocket", str(socket), "--requirepass", SECRET)
            return f"unix://:{ENCODED}@{quote(str(socket))}?db=3"
        port = start_server("--user", "me@work", "on", f">{SECRET}", "~*", "&*", "+@all").port
        return f"redis://me%40work:{ENCODED}@127.0.0.1:{port}/5"

    return start


@pytest.mark.parametrize(
    "kind", ["tls", "tls, both sides", "tls, another name", "tls, unverified", "unix", "user and database"]
)
async def test_every_kind_of_address_carries_a_job_its_renewals_its_result_and_the_commands(
    address: Callable[[str], str], plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    url = address(kind)
    redis = connect(url)
    queue = LaneQueue(redis, name=QUEUE, lease=1.0)

    async def body(context: Any) -> str:
        context["run"].outside_effects = True
        await asyncio.sleep(1.3)  # without renewals it would be stopped before
        return "well"

    worker = LaneWorker(queue, [(TASK, body)], lane="io", concurrency=1, outbox=True)
    relay = Relay(redis, QUEUE, hub_url=plane.url, agent_id="local", token="t0ken")
    assert await wait_for_server(queue) == 0
    running = asyncio.create_task(worker.start())
    try:
        async with asyncio.timeout(20):
            assert await queue.apply(TASK, key=f"{TASK}:1", poll_interval=0.1) == "well"
    finally:
        worker.event.set()
        await running
    assert await relay.drain(10)
    assert [entry["record_id"] for entry in plane.entries] == ["1"]
    monkeypatch.setenv("PHAZE_REDIS_URL", url)
    for line, said in (("breaker list", "0 circuits"), (f"why {TASK}:1", "it is over: complete")):
        done = await asyncio.to_thread(CliRunner().invoke, phaze, line.split())
        assert said in done.output, (done.output, done.exception)
    assert (await doctor.outside_server(url)).verdict != "missing"
    await relay.close()
    await queue.disconnect()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "give its CA's certificate: rediss://...?ssl_ca_certs=/path/to/ca.pem"),
        ("?ssl_ca_certs={other_ca}", "give its CA's certificate: rediss://...?ssl_ca_certs=/path/to/ca.pem"),
        ("?ssl_ca_certs={ca}", "name it in PHAZE_REDIS_URL as its certificate does, or add ?ssl_check_hostname=false"),
    ],
)
async def test_a_certificate_that_is_not_trusted_is_refused_with_the_remedy(
    start_server: Start, certificates: Certificates, query: str, said: str
) -> None:
    port = start_server(*certificates.settings(), program=program("tls"), tls=True).port
    assert said in await refusal(f"rediss://127.0.0.2:{port}" + query.format(**vars(certificates)))


async def test_a_server_that_wants_a_certificate_of_ours_is_told_with_the_remedy(
    start_server: Start, certificates: Certificates
) -> None:
    """It may close the line before its reason is read: then it is one of several remedies."""
    port = start_server(*certificates.settings(clients="yes"), program=program("tls"), tls=True).port
    found = await first_trouble(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates.ca}")
    assert "?ssl_certfile=/path/to/client.pem&ssl_keyfile=" in found.remedy


async def test_a_port_that_speaks_tls_is_told_from_one_that_does_not(
    start_server: Start, certificates: Certificates
) -> None:
    port = start_server(*certificates.settings(), program=program("tls"), tls=True).port
    found = await first_trouble(f"redis://127.0.0.1:{port}")
    assert "if its port speaks TLS, write rediss:// in PHAZE_REDIS_URL" in found.remedy
    assert not found.lasting


async def first_trouble(url: str) -> Trouble:
    """What the first attempt comes to, without those that a client makes by itself."""
    redis = connect(url)
    redis.set_retry(Retry(NoBackoff(), 0))
    try:
        with pytest.raises((RedisError, OSError)) as error:
            await reply(redis.ping())
    finally:
        await redis.aclose()
    return trouble(error.value)


async def refusal(url: str) -> str:
    """The one line with which a worker's start ends."""
    redis = connect(url)
    try:
        with pytest.raises(ConfigError) as error:
            async with asyncio.timeout(20):
                await wait_for_server(LaneQueue(redis, name=QUEUE))
    finally:
        await redis.aclose()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:hid/den@host:6379", "percent-encoded"),
        ("redis://:hid#den@host:6379", "percent-encoded"),
        ("redis://:hid?den@host:6379", "percent-encoded"),
        ("redis://:hid[den@host:6379", "percent-encoded"),
        ("redis://:hidden@host:port", "percent-encoded"),
        ("redis://:hidden@host:99999", "percent-encoded"),
        ("redis://:hidden@host/first", "percent-encoded"),
        ("redis://:hidden@host?db=first", "write ?db=0"),
        ("unix://", "names no socket"),
        ("redis://:hidden@host?decode_responses=True", "?decode_responses=, which is not an option"),
        ("redis://:hidden@host?ssl_ca_certs=ca.pem", "certificates are for rediss://"),
        ("rediss://:hidden@host?ssl_ca_cert=ca.pem", "?ssl_ca_cert=, which is not an option of it; there are db"),
        ("rediss://:hidden@host?ssl_ca_certs=missing.pem", "ssl_ca_certs=missing.pem: [Errno 2] No such file"),
        ("rediss://:hidden@host?ssl_ca_certs=/dev/null", "name readable PEM files"),
        ("rediss://:hidden@host?ssl_cert_reqs=never", "required or none for ssl_cert_reqs"),
    ],
)
def test_an_address_that_cannot_be_meant_is_told_without_any_of_it(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match="PHAZE_REDIS_URL") as error:
        connect(url)
    line = str(error.value)
    assert said in line
    assert "hid" not in line
    assert "\n" not in line


async def test_the_doctor_says_it_as_well() -> None:
    finding = await doctor.outside_server("redis://:hid/den@host:6379")
    assert (finding.verdict, finding.remedy) == ("missing", "correct PHAZE_REDIS_URL")
    assert "hid" not in finding.detail


class Phaze:
    """`phaze` in processes of its own, as people run it; what they said."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self._env = {
            **os.environ,
            "PHAZE_HUB_URL": plane.url,
            "PHAZE_HUB_PORT": "0",
            "PHAZE_AGENT_ID": "test",
            "PHAZE_AGENT_TOKEN": "t0ken",
            "PHAZE_AGENT_LANE": "meta",
            "PHAZE_LOG_FORMAT": "json",
            "PHAZE_DATA_DIR": str(folder / "data"),
            "PYTHONPATH": str(REPO),
        }
        self._folder = folder
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(
        self, url: str, *arguments: str, module: str = "agent.cli"
    ) -> tuple[asyncio.subprocess.Process, Path]:
        said = self._folder / f"said-{len(self._processes)}"
        with said.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments,
                env={**self._env, "PHAZE_REDIS_URL": url},
                stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        self._processes.append(process)
        return process, said

    async def end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()


@pytest.fixture
async def phaze_process(tmp_path: Path, plane: ControlPlane) -> AsyncIterator[Phaze]:
    processes = Phaze(tmp_path, plane)
    yield processes
    await processes.end()


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("worker", "authority"), ("up", "password"), ("hub", "address"), ("breaker list", "password"),
    ],
)  # fmt: skip
async def test_no_command_shows_the_password_or_a_traceback(
    start_server: Start, certificates: Certificates, phaze_process: Phaze, tmp_path: Path, command: str, wrong: str
) -> None:
    if wrong == "password":
        url = f"redis://:{ENCODED}@127.0.0.1:{start_server('--requirepass', 'another').port}"
    elif wrong == "address":
        url = f"redis://:{SECRET}@127.0.0.1:6379"
    else:
        port = start_server(*certificates.settings(), program=program("tls"), tls=True).port
        url = f"rediss://:{ENCODED}@127.0.0.1:{port}?ssl_ca_certs={certificates.other_ca}"
    process, said = await phaze_process.start(url, *command.split())
    async with asyncio.timeout(30):
        code = await process.wait()
    text = said.read_text("utf-8")
    assert code in (1, 2)
    assert text.startswith("phaze: ")
    assert text.count("\n") == 1
    assert "PHAZE_REDIS_URL" in text or "rediss://" in text
    everything = text + "".join(
        path.read_text("utf-8", "replace") for path in (tmp_path / "data").rglob("*") if path.is_file()
    )
    assert "s3cret" not in everything


async def test_a_worker_over_tls_rests_while_its_server_is_away_and_goes_on_when_it_is_back(
    address: Callable[[str], str],
    start_server: Start,
    certificates: Certificates,
    phaze_process: Phaze,
    plane: ControlPlane,
) -> None:
    server = start_server(*certificates.settings(), "--appendonly", "yes", program=program("tls"), tls=True)
    url = f"{server.url}?ssl_ca_certs={certificates.ca}"
    redis = connect(url)
    process, said = await phaze_process.start(url, module="tests.agent.tasks")

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                assert process.returncode is None, said.read_text("utf-8")
                await asyncio.sleep(0.05)

    def events() -> list[str]:
        return [json.loads(line)["event"] for line in said.read_text("utf-8").splitlines() if line.startswith("{")]

    await until(lambda: "worker.started" in events())
    queue = LaneQueue(redis, name=queue_name("test", "meta"))
    await queue.enqueue("wish", key="wish:1", version="v1")
    await until(lambda: len(plane.entries) == 1)
    server.kill()
    await asyncio.sleep(1.0)
    processor = psutil.Process(process.pid)
    before, started = sum(processor.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(10.0)
    used = (sum(processor.cpu_times()[:2]) - before) / (time.monotonic() - started)
    assert used < 0.05, f"{used:.1%} of a processor; usually well under 2 %"
    assert events().count("queue.unreachable") == 1
    server.start()
    await queue.enqueue("wish", key="wish:2", version="v1")
    await until(lambda: len(plane.entries) == 2)
    assert "Traceback" not in said.read_text("utf-8")
    await queue.disconnect()
