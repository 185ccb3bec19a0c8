"""A billing service and an OpenAI-compatible provider, in one process of its own: `python -m ... PORT_FILE`.

It makes keys at /keys/generate and as LiteLLM at /key/generate, takes them at /v1/chat/completions, and writes down who
paid for whom. `Service` starts it, and asks it what happened.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from pipelines import lifeline
from tests.conftest import REPO

MASTER = "master-token-of-the-billing-service"
PROMPT, COMPLETION = 7, 3
"""Tokens of every call that is answered."""


class Ledger:
    """What happened, and what shall go wrong."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.owner: dict[str, str] = {}
        """Key -> user; a revoked one is not in it."""
        self.issued: list[str] = []
        """All keys that were ever made."""
        self.made: Counter[str] = Counter()
        self.calls: list[dict[str, str]] = []
        self.fault: dict[str, Any] = {}
        """`billing`, `provider`: a status to answer with; `wait`: seconds before; `refuses`: users without a key;
        `unpaid`: user -> a status that the provider answers to that user's keys."""
        self.bodies: list[dict[str, Any]] = []

    def make(self, user: str) -> str:
        with self.turn:
            self.made[user] += 1
            key = f"of-a-user/{random.randbytes(12).hex()}+{len(self.owner)}"
            self.owner[key] = user
            self.issued.append(key)
            return key


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger = Ledger()

    def do_GET(self) -> None:
        if self.path == "/answered":
            self.answer(200, {"answered": len(self.ledger.calls)})
            return
        found = {name: value for name, value in vars(self.ledger).items() if name != "turn"}
        self.answer(200 if self.path == "/ledger" else 404, found if self.path == "/ledger" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        bearer = (self.headers["authorization"] or "").removeprefix("Bearer ")
        match self.path:
            case "/reset":
                Handler.ledger = Ledger()
                self.answer(200, {})
            case "/fault":
                self.ledger.fault = body
                self.answer(200, {})
            case "/revoke":
                for key in [key for key, user in self.ledger.owner.items() if user == body["user"]]:
                    del self.ledger.owner[key]
                self.answer(200, {})
            case "/keys/generate" | "/key/generate":
                self.bill(body, bearer)
            case "/v1/chat/completions":
                self.complete(body, bearer)
            case _:
                self.answer(404, {})

    def bill(self, body: dict[str, Any], bearer: str) -> None:
        fault = self.ledger.fault
        self.ledger.bodies.append(body)
        time.sleep(fault.get("wait", 0.05))
        if status := fault.get("billing"):
            self.answer(status, {"error": "told to"})
        elif bearer != MASTER:
            self.answer(401, {"error": "who are you"})
        elif body["user_id"] in fault.get("refuses", ()):
            self.answer(400, {"error": "no such user"})
        elif self.path == "/key/generate":  # https://docs.litellm.ai/docs/proxy/virtual_keys
            key = self.ledger.make(body["user_id"])
            self.answer(200, {"key": key, "expires": None, "user_id": body["user_id"], "key_name": "sk-...x"})
        else:
            self.answer(200, {"api_key": self.ledger.make(body["user_id"])})

    def complete(self, body: dict[str, Any], bearer: str) -> None:
        time.sleep(random.uniform(0.005, 0.03))
        if status := self.ledger.fault.get("provider"):
            self.answer(status, {"error": {"message": "told to"}})
            return
        if (payer := self.ledger.owner.get(bearer)) is None:
            self.answer(401, {"error": {"message": f"Incorrect API key provided: {bearer}"}})
            return
        if status := self.ledger.fault.get("unpaid", {}).get(payer):
            self.answer(status, {"error": {"message": "not with this key"}})
            return
        meant, _, record = body["messages"][0]["content"].rpartition(" ")
        with self.ledger.turn:
            self.ledger.calls.append({"payer": payer, "meant": meant, "record": record})
        usage = {"prompt_tokens": PROMPT, "completion_tokens": COMPLETION, "total_tokens": PROMPT + COMPLETION}
        message = {"role": "assistant", "content": f"for {meant}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.answer(200, {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"],
                          "choices": [choice], "usage": usage})  # fmt: skip

    def answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_args: Any) -> None:
        """Nothing."""


class Service:
    """The process, from outside."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ledger(self) -> dict[str, Any]:
        """See Ledger."""
        found: dict[str, Any] = httpx.get(f"{self.url}/ledger", timeout=30).json()
        return found

    def answered(self) -> int:
        """Calls to the model so far."""
        return int(httpx.get(f"{self.url}/answered", timeout=30).json()["answered"])

    def reset(self) -> None:
        """As if it had just been started."""
        httpx.post(f"{self.url}/reset", json={}, timeout=30)

    def fault(self, **fault: Any) -> None:
        """What goes wrong from now on; nothing does without."""
        httpx.post(f"{self.url}/fault", json=fault, timeout=30)

    def revoke(self, user: str) -> None:
        """The user's keys are good no longer."""
        httpx.post(f"{self.url}/revoke", json={"user": user}, timeout=30)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Service]:
    """A service at work."""
    port = folder / "service.port"
    command = lifeline.command(sys.executable, "-m", "tests.agent.paying.service", str(port))
    with subprocess.Popen(command, cwd=REPO) as process:
        try:
            deadline = time.monotonic() + 30
            while not (port.exists() and port.read_text("ascii").endswith("\n")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield Service(int(port.read_text("ascii")))
        finally:
            process.kill()


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    Path(sys.argv[1]).write_text(f"{server.server_port}\n", "ascii")
    server.serve_forever()
