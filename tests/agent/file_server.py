"""A server on a real socket that serves one folder, and misbehaves as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """`files`: path -> bytes. What goes wrong is said by the other fields; `asked` is what came in, with the range."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers breaks off."""
    status: list[int] = field(default_factory=list)
    """Status of the next answers, without a body."""
    ignores_ranges: bool = False
    announces_length: bool = True
    etag: str = '"1"'
    pause: float = 0.0
    """Seconds between two pieces of 4 kB."""


@contextmanager
def serve() -> Iterator[FileServer]:
    server = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.asked.append((self.path, wanted))
            body = server.files.get(self.path)
            if server.status:
                return self._head(server.status.pop(0), {"Content-Length": "0"})
            if body is None:
                return self._head(404, {"Content-Length": "0"})
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if self.headers.get("If-Range") != server.etag or server.ignores_ranges:
                start = 0
            if start >= len(body) > 0:
                return self._head(416, {"Content-Length": "0"})
            headers = {"ETag": server.etag}
            if server.announces_length:
                headers["Content-Length"] = str(len(body) - start)
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self._head(206 if start else 200, headers)
            self._body(body[start:])
            return None

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()

        def _body(self, body: bytes) -> None:
            left = server.cut_after.pop(0) if server.cut_after else len(body)
            for at in range(0, min(left, len(body)), 4096):
                self.wfile.write(body[at : min(at + 4096, left)])
                time.sleep(server.pause)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that goes away is part of the test
    server.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join(10)
        httpd.server_close()
