"""What an S3 store's answers mean: its XML, and which of its errors are whose fault."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from pipelines.errors import InputRejected, TaskError
from pipelines.files.transfer import Mismatch, Refused, Unreachable
from pipelines.retry_after import retry_after

BUSY = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "OperationAborted"})
SPOILT = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "IncompleteBody", "InvalidPart"})
"""Codes that say: try again; and: what arrived is not what was announced."""

REMEDIES = {
    "NoSuchBucket": "make the bucket, or set PHAZE_S3_BUCKET",
    "RequestTimeTooSkewed": "set the clock of the hub's machine",
    "InvalidAccessKeyId": "set PHAZE_S3_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "set PHAZE_S3_SECRET_ACCESS_KEY and PHAZE_S3_REGION",
    "PermanentRedirect": "set PHAZE_S3_REGION to the bucket's",
    "AuthorizationHeaderMalformed": "set PHAZE_S3_REGION to the bucket's",
    "AuthorizationQueryParametersError": "set PHAZE_S3_REGION to the bucket's, and the clock of the hub's machine",
    "NotImplemented": "if it is about a checksum, set PHAZE_S3_CHECKSUM=md5",
}
_ADDRESS = re.compile(r"(https?://)(?:[^/?#@]*@)?([A-Za-z0-9.:\[\]-]{1,255})(?=[/?#]|$)")
"""Scheme and host of a location: what follows may hold a signature."""

FORBIDDEN = "let the credentials of PHAZE_S3_* do this to the bucket (docs/transfers.md lists the permissions)"


class UploadGone(TaskError):
    """The store knows no such multipart upload (any more)."""


class Misfit(Refused):
    """The store does not take a request of this form, and might take another."""


@dataclass(frozen=True)
class Answer:
    """One answer of the store: at most 4 MiB of body."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""

    @property
    def code(self) -> str:
        """The code of the error that it is, which may come with status 200 too; empty for none."""
        root = _parsed(self.body)
        return "" if root is None or _name(root) != "Error" else _text(root, "Code")

    @property
    def retry_after(self) -> float | None:
        """Seconds that the store wants to be left alone; None if it does not say."""
        return retry_after(self.headers)


class Listed(NamedTuple):
    """A part as the store lists it: bytes, ETag (without quotes), and base64 sha256 or empty."""

    size: int
    etag: str
    sha256: str


def trouble(answer: Answer, doing: str, host: str) -> Exception | None:
    """What is wrong with an answer, as the exception to raise; None if nothing is."""
    code = answer.code
    if answer.status < 300 and not code:
        return None
    said = f"{host} answered {answer.status}{f' {code}' if code else ''} to {doing}"
    if answer.status >= 500 or answer.status == 429 or code in BUSY:
        return Unreachable(said)
    if code == "NoSuchUpload":
        return UploadGone(said)
    if code in SPOILT:
        return Mismatch(f"{said}: the bytes were damaged on their way")
    if code == "EntityTooLarge":
        return InputRejected("too-large", f"{said}: the store takes no file of this size")
    if code == "KeyTooLongError":
        return InputRejected("name-too-long", said)
    if code == "InvalidRequest":
        return Misfit(f"{said}; see the store's own log")
    return Refused(f"{said}; {_remedy(answer)}")


def _remedy(answer: Answer) -> str:
    """What an operator can do. An answer to HEAD has no body, so that its headers must say it."""
    region = answer.headers.get("x-amz-bucket-region", "")
    if 300 <= answer.status <= 400 and re.fullmatch(r"[a-z0-9-]{1,40}", region):
        return f"set PHAZE_S3_REGION to the bucket's, {region}"
    if found := REMEDIES.get(answer.code):
        return found
    if 300 <= answer.status < 400:
        to = _ADDRESS.match(answer.headers.get("location", ""))
        return f"it sends to {to[1] + to[2] if to else 'another place'}; set PHAZE_S3_ENDPOINT to where the store is"
    return FORBIDDEN if answer.status in (401, 403) else "see the store's own log"


def upload_id_of(answer: Answer) -> str:
    """Of an answer to `create`."""
    root = _parsed(answer.body)
    found = "" if root is None else _text(root, "UploadId")
    if not found:
        raise Refused("the store began no multipart upload, and gave no reason; is PHAZE_S3_ENDPOINT an S3 API?")
    return found


def uploads_of(answer: Answer, key: str) -> list[str]:
    """The ids of the unfinished uploads of just this key, oldest first as the store lists them."""
    root = _parsed(answer.body)
    found = [] if root is None else [child for child in root if _name(child) == "Upload"]
    return [_text(child, "UploadId") for child in found if _text(child, "Key") == key]


def parts_of(answer: Answer) -> tuple[dict[int, Listed], int]:
    """number -> part of one page of a list, and after which number the next page begins (0: there is none)."""
    root = _parsed(answer.body)
    if root is None:
        return {}, 0
    found = {
        int(_text(child, "PartNumber")): Listed(
            int(_text(child, "Size")), _text(child, "ETag").strip('"'), _text(child, "ChecksumSHA256")
        )
        for child in root
        if _name(child) == "Part"
    }
    more = _text(root, "IsTruncated") == "true"
    return found, int(_text(root, "NextPartNumberMarker") or 0) if more and found else 0


def completion(parts: dict[int, Listed], *, sums: bool) -> bytes:
    """The body of `complete`: the parts in order, with their sha256 or without."""
    rows = [
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.etag)}</ETag>"
        + (f"<ChecksumSHA256>{escape(part.sha256)}</ChecksumSHA256>" if sums else "")
        + "</Part>"
        for number, part in sorted(parts.items())
    ]
    return f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>".encode()


def _parsed(body: bytes) -> ElementTree.Element | None:
    if not body.lstrip().startswith(b"<"):
        return None
    try:
        return ElementTree.fromstring(body)  # noqa: S314 - expat limits amplification, and the body is 4 MiB at most
    except ElementTree.ParseError:
        return None


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in element if _name(child) == name), "")
