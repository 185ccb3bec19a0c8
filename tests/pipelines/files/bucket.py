"""One object in a bucket of the test's store: a context for the task that sends it, and a look at what arrived."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import httpx
from pydantic import BaseModel

from pipelines.context import InlineContext
from pipelines.files.s3_answers import Answer, parts_of, uploads_of
from pipelines.files.s3_signer import S3Signer, Wanted
from pipelines.files.s3_upload import S3UploadPayload
from pipelines.payload import encode_path

BUCKET = "archive"
KEY = "local/music/a b.mp3"
MIB = 1 << 20
PART = MIB


class Context(InlineContext):
    """Remembers what was asked and said; `after(n)` calls `act` at the n-th progress."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__("17", answers)
        self.said: list[tuple[float, str]] = []
        self.acts: dict[str, Any] = {}

    async def progress(self, fraction: float, note: str = "") -> None:
        self.said.append((fraction, note))
        for word, act in list(self.acts.items()):
            if word in note:
                self.acts.pop(word)
                act()


class Bucket:
    """Objects are looked at without detour, at `direct`; tasks go to `url`. `options` of the signer: bucket, keys."""

    def __init__(self, url: str, direct: str, **options: Any) -> None:
        self.url = url
        self._options = options
        self._direct = self.signer(endpoint=direct)

    def signer(self, **options: Any) -> S3Signer:
        settings = {
            "bucket": BUCKET,
            "access_key_id": "AK",
            "secret_access_key": "secret-key",
            "endpoint": self.url,
            "addressing": "path",
        }
        return S3Signer(**{**settings, **self._options, **options})

    def context(self, key: str = KEY, **options: Any) -> Context:
        return Context({"s3": self.signer(**options).answer_for(key)})

    def ask(self, key: str = KEY, **wanted: Any) -> httpx.Response:
        signed = self._direct.sign(key, Wanted(**wanted))
        return httpx.request(signed.method, signed.url, headers=signed.headers, timeout=30)

    def sha256(self, key: str = KEY) -> str:
        response = self.ask(key, kind="get")
        assert response.status_code == 200
        return hashlib.sha256(response.content).hexdigest()

    def is_empty(self, key: str = KEY) -> bool:
        return self.ask(key, kind="head").status_code == 404

    def unfinished(self, key: str = KEY) -> list[str]:
        return uploads_of(Answer(200, {}, self.ask(key, kind="uploads").content), key)

    def all_unfinished(self) -> list[tuple[str, str]]:
        """(key, upload id) of every unfinished upload in the bucket."""
        root = ElementTree.fromstring(self.ask("", kind="uploads").content)
        uploads = [{each.tag.rpartition("}")[2]: each.text or "" for each in child} for child in root]
        return [(upload["Key"], upload["UploadId"]) for upload in uploads if "UploadId" in upload]

    def objects(self) -> list[str]:
        """The keys of all that is in the bucket."""
        url = self._direct._client.generate_presigned_url("list_objects_v2", Params={"Bucket": self._direct.bucket})
        return re.findall(r"<Key>(.*?)</Key>", httpx.request("GET", url, timeout=30).text)

    def stored_parts(self, upload_id: str, key: str = KEY) -> list[int]:
        return sorted(parts_of(Answer(200, {}, self.ask(key, kind="parts", upload_id=upload_id).content))[0])


def make_file(folder: Path, size: int, name: str | bytes = "a b.mp3") -> Path:
    path = folder / os.fsdecode(name)
    path.write_bytes(os.urandom(size))
    return path


def payload_of(path: Path, url: str = "http://store.example", **fields: Any) -> S3UploadPayload:
    found = path.stat()
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    values = {
        "version": f"{sha256}:test",
        "path": encode_path(path),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "root": encode_path(path.parent),
        "store": urlsplit(url).netloc,
        "stall": 5.0,
    }
    return S3UploadPayload(**{**values, **fields})


def sha_of(payload: BaseModel) -> str:
    return str(payload.version).partition(":")[0]  # type: ignore[attr-defined]
