"""Signed requests for one object in an S3 store: whoever holds the credentials makes them, whoever holds the file uses
them. Both sides speak `Wanted` and `Signed`; `S3Signer` answers one with the other, without asking the store.

The hub has one; a script can be its own: `InlineContext(answers={"s3": S3Signer(bucket="b", ...).answer_for(key)})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal
from urllib.parse import quote_from_bytes, urlsplit

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["head", "get", "put", "create", "uploads", "parts", "part", "complete", "abort"]

OPERATIONS: dict[Kind, tuple[str, str]] = {
    "head": ("HEAD", "head_object"),
    "get": ("GET", "get_object"),
    "put": ("PUT", "put_object"),
    "create": ("POST", "create_multipart_upload"),
    "uploads": ("GET", "list_multipart_uploads"),
    "parts": ("GET", "list_parts"),
    "part": ("PUT", "upload_part"),
    "complete": ("POST", "complete_multipart_upload"),
    "abort": ("DELETE", "abort_multipart_upload"),
}
"""kind -> HTTP method, and the operation's name in S3."""

LONGEST_KEY = 1024
"""Bytes of an object's key (S3)."""

LIFETIME = 900
"""Seconds for which a signature holds; a store looks at it when a request begins."""


class Wanted(BaseModel):
    """One request that is wanted, on the record's own object."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    upload_id: str = Field(default="", max_length=1024)
    number: int = Field(default=0, ge=0, le=10_000, description="of a part")
    after: int = Field(default=0, ge=0, description="list parts with a higher number")
    sha256: str = Field(default="", max_length=64, description="base64, of the body of `put` and `part`")
    md5: str = Field(default="", max_length=32, description="base64, of the same")
    content: str = Field(default="", max_length=64, description="hex sha256 of the whole file, kept with the object")


class Signed(BaseModel):
    """One request, ready to be sent with just these headers. The URL is a secret."""

    method: str
    url: str = Field(repr=False)
    headers: dict[str, str] = Field(default_factory=dict)


class Granted(BaseModel):
    """The answer: where the object is (`bucket`, `key`) and the request for it."""

    bucket: str
    key: str
    request: Signed


class S3Signer:
    """Credentials, and the bucket for which they sign. `endpoint`: the store's URL; empty: AWS in `region`.

    `checksum`: `sha256` sends x-amz-checksum-sha256, `md5` Content-MD5 for stores that refuse the former.
    """

    def __init__(
        self,
        *,
        bucket: str,
        access_key_id: str,
        secret_access_key: str,
        session_token: str | None = None,
        endpoint: str = "",
        region: str = "us-east-1",
        addressing: Literal["auto", "path", "virtual"] = "auto",
        checksum: Literal["sha256", "md5"] = "sha256",
        lifetime: int = LIFETIME,
    ) -> None:
        from botocore.config import Config

        self.bucket = bucket
        self._checksum = checksum
        self._lifetime = lifetime
        self._client = _session().create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint or None,
            aws_access_key_id=access_key_id,
            aws_secret_access_key=secret_access_key,
            aws_session_token=session_token,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": addressing},
                # Else botocore adds checksums of its own to what it signs, for a body that it never sees.
                request_checksum_calculation="when_required",
                ignore_configured_endpoint_urls=True,
            ),
        )

    def sign(self, key: str, wanted: Wanted) -> Signed:
        """The request for the object `key`; nothing is sent."""
        method, operation = OPERATIONS[wanted.kind]
        parameters, headers = self._of(key, wanted)
        url = self._client.generate_presigned_url(
            operation, Params={"Bucket": self.bucket, **parameters}, ExpiresIn=self._lifetime
        )
        return Signed(method=method, url=url, headers=headers)

    def answer_for(self, key: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """An answer to `ask("s3", ...)` about that object."""

        def answer(question: Mapping[str, Any]) -> dict[str, Any]:
            wanted = Wanted.model_validate(question)
            return Granted(bucket=self.bucket, key=key, request=self.sign(key, wanted)).model_dump()

        return answer

    def _of(self, key: str, wanted: Wanted) -> tuple[dict[str, Any], dict[str, str]]:
        """S3's parameters, and the headers that are signed with them."""
        if wanted.kind == "uploads":
            return {"Prefix": key}, {}
        parameters: dict[str, Any] = {"Key": key}
        headers: dict[str, str] = {}
        if wanted.upload_id:
            parameters["UploadId"] = wanted.upload_id
        if wanted.kind == "part":
            parameters["PartNumber"] = wanted.number
        if wanted.kind == "parts" and wanted.after:
            parameters["PartNumberMarker"] = wanted.after
        if wanted.kind == "head":
            parameters["ChecksumMode"] = headers["x-amz-checksum-mode"] = "ENABLED"
        if wanted.kind == "create" and self._checksum == "sha256":
            parameters["ChecksumAlgorithm"] = headers["x-amz-checksum-algorithm"] = "SHA256"
        if wanted.kind in ("create", "put") and wanted.content:
            parameters["Metadata"] = {"sha256": wanted.content}
            headers["x-amz-meta-sha256"] = wanted.content
        if wanted.kind in ("part", "put"):
            if self._checksum == "sha256" and wanted.sha256:
                parameters["ChecksumSHA256"] = headers["x-amz-checksum-sha256"] = wanted.sha256
            elif wanted.md5:
                parameters["ContentMD5"] = headers["content-md5"] = wanted.md5
        return parameters, headers


@cache
def _session() -> Any:
    """botocore's, which has read S3's description; loaded when somebody signs, not when somebody sends."""
    import botocore.session

    return botocore.session.Session()


def store_host(endpoint: str, region: str) -> str:
    """`host` or `host:port` of the store, as its circuit is called; never with a user's name."""
    return urlsplit(endpoint).netloc.rpartition("@")[2] if endpoint else f"s3.{region}.amazonaws.com"


def object_key(prefix: str, path: bytes) -> str:
    """Where a file goes: `prefix` and its path, readable where it is text, every other byte (and `%`) as `%XX`.

    So it leads back to the same file: `urllib.parse.unquote_to_bytes`. The segments `.` and `..` are written so as
    well: clients resolve them in URLs, after the signature.
    """
    return prefix + "/".join(map(_segment, path.decode("utf-8", "surrogateescape").lstrip("/").split("/")))


def _segment(text: str) -> str:
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return "".join(
        character
        if character.isprintable() and character != "%"
        else quote_from_bytes(character.encode("utf-8", "surrogateescape"))
        for character in text
    )
