"""A small fingerprint engine (pipelines/music/sidecar.py) on port 8000, for the slot of the profile `sidecars`."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from pipelines.music.engines import ChromaprintEngine
from pipelines.payload import decode_path

ENGINE = ChromaprintEngine()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer({"engine": "toy", "items": asyncio.run(ENGINE.health())})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        file = decode_path(asked["path"])
        if self.path == "/ingest":
            self.answer({"hashes": asyncio.run(ENGINE.ingest(asked["item"], file))})
        else:
            found = asyncio.run(ENGINE.query(file, asked["start"], asked["seconds"]))
            self.answer({"matches": [match._asdict() for match in found]})

    def answer(self, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
