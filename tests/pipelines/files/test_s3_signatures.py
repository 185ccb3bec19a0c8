"""s3_upload against a store that checks every signature: what we sign is taken, and nothing else is."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from pipelines.files import digests, s3_store
from pipelines.files.digests import base64_of
from pipelines.files.s3_signer import Signed, Wanted
from pipelines.files.s3_upload import s3_upload
from pipelines.files.transfer import Refused
from tests.faulty import Fault, FaultyProxy
from tests.object_store import SMALLEST_PART
from tests.pipelines.files.bucket import KEY, MIB, Bucket, Context, make_file, payload_of, sha_of

HELLO = b"hello"
SHA256 = base64_of(bytes.fromhex("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"))
PUT = Wanted(kind="put", sha256=SHA256, content="ab" * 32)


@pytest.fixture(autouse=True)
def _small_parts_and_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "PART", SMALLEST_PART)
    monkeypatch.setattr(s3_store, "FIRST_WAIT", 0.01)


async def send(signed: Signed, body: bytes = HELLO) -> tuple[int, str]:
    """Status and S3's error code."""
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.request(signed.method, signed.url, headers=signed.headers, content=body)
    found = re.search(r"<Code>(\w+)</Code>", answer.text)
    return answer.status_code, found[1] if found else ""


def altered(find: str, replace: str) -> Callable[[Signed], Signed]:
    """The same signature over another address."""

    def alter(signed: Signed) -> Signed:
        url = re.sub(find, replace, signed.url, count=1)
        assert url != signed.url
        return signed.model_copy(update={"url": url})

    return alter


def with_header(name: str, value: str) -> Callable[[Signed], Signed]:
    return lambda signed: signed.model_copy(update={"headers": {**signed.headers, name: value}})


FORGED: dict[str, Callable[[Signed], Signed]] = {
    "signature": altered(r"(?<=X-Amz-Signature=)\w{4}", "0bad"),
    "no-signature": altered(r"&X-Amz-Signature=\w+", ""),
    "other-object": altered("a%20b.mp3", "another.mp3"),
    "longer-life": altered(r"(?<=X-Amz-Expires=)\d+", "604800"),
    "other-date": altered(r"(?<=X-Amz-Date=)\d{8}", "20200101"),
    "other-method": lambda signed: signed.model_copy(update={"method": "DELETE"}),
    "other-checksum": with_header("x-amz-checksum-sha256", base64_of(bytes(32))),
    "other-meta": with_header("x-amz-meta-sha256", "cd" * 32),
    "anonymous": altered(r"\?.*", ""),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_a_signature_holds_for_just_the_request_that_was_signed(
    strict: Bucket, forge: Callable[[Signed], Signed]
) -> None:
    signed = strict.signer().sign(KEY, PUT)
    status, code = await send(forge(signed))
    assert (status, code) in {(403, "SignatureDoesNotMatch"), (403, "AccessDenied"), (400, "MissingFields")}
    assert strict.is_empty()
    assert await send(signed) == (200, "")
    assert strict.sha256() == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"secret_access_key": "another-secret"}, "SignatureDoesNotMatch"),
        ({"access_key_id": "NOBODY"}, "InvalidAccessKeyId"),
    ],
)
async def test_wrong_keys_are_refused_and_the_message_names_the_variable_and_no_secret(
    strict: Bucket, tmp_path: Path, keys: dict[str, str], expected: str
) -> None:
    assert await send(strict.signer(**keys).sign(KEY, PUT)) == (403, expected)
    variable = "PHAZE_S3_ACCESS_KEY_ID" if "access_key_id" in keys else "PHAZE_S3_SECRET_ACCESS_KEY"
    with pytest.raises(Refused, match=f"{expected}.*{variable}") as caught:
        await s3_upload(strict.context(**keys), payload_of(make_file(tmp_path, 100)))
    assert not [secret for secret in ("another-secret", "X-Amz", "Signature=") if secret in str(caught.value)]
    assert strict.is_empty()


KEYS = (
    "local/music/plain.mp3",
    "local/a b+c&d=e?f#g;h:i@j,k'l(m)!n*o~p$q.mp3",
    "local/100%25/%FF%0A[1] \u97f3\u697d e\u0301.flac",
)
SENT = [
    *((key, size, "sha256") for key in KEYS for size in (1000, SMALLEST_PART + 3)),
    *((KEYS[1], size, "md5") for size in (0, 1000, SMALLEST_PART + 3)),
]


@pytest.mark.parametrize(("key", "size", "checksum"), SENT, ids=range(len(SENT)))
async def test_what_we_sign_is_taken_whatever_the_objects_name(
    strict: Bucket, tmp_path: Path, key: str, size: int, checksum: Literal["sha256", "md5"]
) -> None:
    """Each of the requests of an upload, as it goes over the line; the object is the file."""
    payload = payload_of(make_file(tmp_path, size))
    result = await s3_upload(strict.context(key, checksum=checksum), payload)
    assert strict.sha256(key) == sha_of(payload)
    assert (result.outcome, result.retries, result.key) == ("done", 0, key)
    assert result.verified == f"store-{checksum}" if size else result.verified
    assert not strict.unfinished(key)


async def test_a_signature_that_ran_out_on_its_way_is_made_anew(
    strict: Bucket, tmp_path: Path, strict_proxy: FaultyProxy
) -> None:
    """The second part is signed, and sent when that no longer holds: the store says so, and is asked anew."""
    asked: list[tuple[str, int]] = []

    def answer(question: Any) -> dict[str, Any]:
        asked.append((question["kind"], question["number"]))
        if asked.count(("part", 2)) == 1 and asked[-1] == ("part", 2):
            granted = strict.signer(lifetime=1).answer_for(KEY)(question)
            time.sleep(2.5)
            return granted
        return strict.signer().answer_for(KEY)(question)

    payload = payload_of(make_file(tmp_path, 2 * SMALLEST_PART), parallel=1)
    result = await s3_upload(Context({"s3": answer}), payload)
    assert (result.retries, asked.count(("part", 2)), asked.count(("part", 1))) == (1, 2, 1)
    assert strict.sha256() == sha_of(payload)


async def test_an_upload_may_take_longer_than_its_signatures_live(
    strict: Bucket, tmp_path: Path, strict_proxy: FaultyProxy
) -> None:
    """A store looks at a signature when a request begins: a slow part outlives its own."""
    strict_proxy.faults = [Fault(lambda request: request.part == 1, rate=MIB // 2)]
    payload = payload_of(make_file(tmp_path, SMALLEST_PART + 1), parallel=1)
    async with asyncio.timeout(60):
        result = await s3_upload(strict.context(lifetime=5), payload)
    assert (result.retries, result.seconds > 6) == (0, True)
    assert strict.sha256() == sha_of(payload)


@pytest.mark.parametrize("size", [1000, 2 * SMALLEST_PART])
async def test_damaged_bytes_are_refused_by_the_signed_checksum_and_sent_again(
    strict: Bucket, tmp_path: Path, strict_proxy: FaultyProxy, size: int
) -> None:
    damaged = Fault(lambda request: request.kind in ("put", "part"), flip=True)
    strict_proxy.faults = [damaged]
    payload = payload_of(make_file(tmp_path, size))
    result = await s3_upload(strict.context(), payload)
    assert (result.retries, damaged.times) == (1, 0)
    assert strict.sha256() == sha_of(payload)
