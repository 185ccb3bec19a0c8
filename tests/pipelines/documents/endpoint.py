"""A small OpenAI-compatible endpoint for faults: it answers each request by the next act of a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 70, "completion_tokens": 7, "total_tokens": 77}


@dataclass
class Reply:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


Act = Reply | Callable[[dict[str, Any]], Reply]


def says(content: Any, finish: str | None = "stop", **message: Any) -> Reply:
    """A choice whose text is `content` (JSON, unless it is text already)."""
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    return Reply(body={"object": "chat.completion", "choices": [choice], "usage": USAGE})


def fails(status: int, code: str = "", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": {"message": "no", "code": code}, "usage": USAGE}, named)


@dataclass
class Endpoint:
    url: str
    acts: list[Act]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


@contextmanager
def endpoint(*acts: Act) -> Iterator[Endpoint]:
    """Serves the acts in order, the last one for ever."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            there.requests.append(body)
            there.keys.append(self.headers.get("authorization", ""))
            act = there.acts.pop(0) if len(there.acts) > 1 else there.acts[0]
            reply = act(body) if callable(act) else act
            time.sleep(reply.delay)
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            try:
                self.send_response_only(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True  # who asked has gone

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    there = Endpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", list(acts))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield there
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
