"""s3_upload against a real S3 API, through a proxy that does what networks do."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pipelines.context import policy_of
from pipelines.errors import InputChanged, InputRejected, NotAnswered, RecordNotFoundError
from pipelines.files import digests, s3_store
from pipelines.files.s3_upload import S3UploadPayload, Upload, s3_upload
from pipelines.files.transfer import Mismatch, Refused, Stalled, Unreachable, Unreadable
from tests.faulty import Fault, FaultyProxy, answer
from tests.pipelines.files.bucket import BUCKET, KEY, MIB, PART, Bucket, make_file, payload_of, sha_of


@pytest.fixture(autouse=True)
def _small_parts_and_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "PART", PART)
    monkeypatch.setattr(s3_store, "FIRST_WAIT", 0.01)


async def send(bucket: Bucket, payload: S3UploadPayload, /, **options: Any) -> Upload:
    async with asyncio.timeout(60):
        return await s3_upload(bucket.context(**options), payload)


@pytest.mark.parametrize(
    ("size", "parts"), [(0, 1), (1, 1), (PART - 1, 1), (PART, 1), (PART + 1, 2), (3 * PART, 3), (3 * PART + 5, 4)]
)
async def test_every_size_arrives_whole_and_the_report_says_how_it_knows(
    bucket: Bucket, tmp_path: Path, size: int, parts: int
) -> None:
    payload = payload_of(make_file(tmp_path, size))
    result = await send(bucket, payload)
    assert bucket.sha256() == result.sha256 == sha_of(payload)
    assert (result.outcome, result.bytes, result.sent, result.parts) == ("done", size, size, parts)
    assert result.verified in ("store-sha256", "store-md5")
    assert (result.bucket, result.key, result.retries, result.resumed) == (BUCKET, KEY, 0, 0)
    assert not bucket.unfinished()
    assert bucket.ask(kind="head").headers["x-amz-meta-sha256"] == result.sha256


async def test_a_second_run_finds_the_object_and_sends_nothing(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    payload = payload_of(make_file(tmp_path, 2 * PART))
    first = await send(bucket, payload)
    proxy.seen.clear()
    second = await send(bucket, payload)
    assert proxy.kinds() == ["head"]
    assert (second.sent, second.etag, second.verified) == (0, first.etag, first.verified)


async def test_parts_go_in_parallel_within_the_cap_and_out_of_little_memory(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "PART", 6 * MIB)
    payload = payload_of(make_file(tmp_path, 36 * MIB), parallel=3)
    proxy.faults = [Fault(lambda request: request.part > 0, times=8, rate=30 * MIB)]
    await send(bucket, payload_of(make_file(tmp_path, 1, "warm")))
    context = bucket.context()
    tracemalloc.start()
    try:
        await s3_upload(context, payload)
        assert tracemalloc.get_traced_memory()[1] < 6 * MIB  # with the proxy's own, which runs in this process too
    finally:
        tracemalloc.stop()
    assert proxy.most_at_once == 3


async def test_a_run_after_a_kill_sends_only_what_the_store_has_not(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    payload = payload_of(make_file(tmp_path, 6 * PART), parallel=2)
    proxy.faults = [Fault(lambda request: request.part >= 4, times=99, hang=0)]
    running = asyncio.create_task(s3_upload(bucket.context(), payload))
    while len(proxy.parts()) < 5:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (upload_id,) = bucket.unfinished()
    assert bucket.stored_parts(upload_id) == [1, 2, 3]
    proxy.faults, proxy.received = [], 0
    proxy.seen.clear()
    result = await send(bucket, payload)
    assert sorted(proxy.parts()) == [4, 5, 6]
    assert (result.resumed, result.sent) == (3, 3 * PART)
    assert bucket.sha256() == sha_of(payload)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(lambda request: request.part == 2, cut=PART // 2),
        Fault(lambda request: request.part == 2, times=4, answer=answer("503 Slow Down", "SlowDown", "retry-after: 1")),
        Fault(lambda request: request.part == 2, times=2, answer=answer("500 Internal", "InternalError")),
        Fault(lambda request: request.part == 2, answer=answer("429 Too Many")),
        Fault(lambda request: request.part == 2, answer=answer("400 Bad", "RequestTimeout")),
        Fault(lambda request: request.part == 2, answer=answer("400 Bad", "BadDigest")),
        Fault(lambda request: request.part == 2, answer=answer("403 Forbidden", "AccessDenied")),
        Fault(lambda request: request.part == 2, lose=True),
        Fault(lambda request: request.kind == "complete", lose=True),
        Fault(lambda request: request.kind == "complete", answer=answer("200 OK", "InternalError")),
        Fault(lambda request: request.kind == "create", lose=True),
        Fault(lambda request: request.kind == "parts", times=2, cut=0, answer=answer("502 Bad Gateway")),
    ],
    ids=["reset", "slow-down", "5xx", "429", "400-timeout", "damaged", "expired", "lost-part", "lost-complete",
         "200-but-error", "lost-create", "502-list"],
)  # fmt: skip
async def test_what_passes_is_tried_again_in_the_same_run(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy, fault: Fault
) -> None:
    fault = Fault(**vars(fault))
    proxy.faults = [fault]
    payload = payload_of(make_file(tmp_path, 3 * PART))
    result = await send(bucket, payload)
    assert fault.times == 0
    assert result.retries >= 1
    assert bucket.sha256() == sha_of(payload)
    assert not bucket.unfinished()


async def test_retry_after_holds_all_parts_back(bucket: Bucket, tmp_path: Path, proxy: FaultyProxy) -> None:
    proxy.faults = [Fault(lambda request: request.part == 1, answer=answer("503 Slow", "SlowDown", "retry-after: 2"))]
    started = time.monotonic()
    await send(bucket, payload_of(make_file(tmp_path, 3 * PART), parallel=1))
    assert time.monotonic() - started >= 2
    assert proxy.parts() == [1, 1, 2, 3]


async def test_a_store_that_wants_a_long_rest_is_left_alone(bucket: Bucket, tmp_path: Path, proxy: FaultyProxy) -> None:
    proxy.faults = [
        Fault(lambda request: request.kind == "put", answer=answer("503 No", "SlowDown", "retry-after: 900"))
    ]
    with pytest.raises(Unreachable, match="503 SlowDown"):
        await send(bucket, payload_of(make_file(tmp_path, 10)))
    assert proxy.kinds().count("put") == 1


async def test_each_attempt_is_signed_anew_so_that_an_expired_signature_is_replaced(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    """The proxy refuses what the store would: a signature older than its lifetime."""
    stale: list[str] = []

    def expired(request: Any) -> bool:
        date = re.search(r"X-Amz-Signature=(\w+)", request.target)
        assert date is not None
        first = request.part == 2 and not stale
        stale.extend([date[1]] if first else [])
        return request.part == 2 and date[1] == stale[0]

    proxy.faults = [Fault(expired, times=99, answer=answer("403 Forbidden", "AccessDenied"))]
    context = bucket.context()
    signer, signed = bucket.signer(), []

    def later(question: Any) -> dict[str, Any]:
        found = signer.answer_for(KEY)(question)
        signed.append(question["kind"])
        if question["number"] == 2 and signed.count("part") > 3:  # signed later: another signature
            found["request"]["url"] = re.sub(r"(X-Amz-Signature=)\w+", r"\1fresh", found["request"]["url"])
        return found

    context._answers = {"s3": later}
    result = await s3_upload(context, payload_of(make_file(tmp_path, 3 * PART)))
    assert result.retries == 1
    assert signed.count("part") == 4


async def test_what_stays_forbidden_names_the_remedy_and_not_the_secret(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    proxy.faults = [Fault(lambda request: request.part > 0, times=99, answer=answer("403 Forbidden", "AccessDenied"))]
    with pytest.raises(Refused) as caught:
        await send(bucket, payload_of(make_file(tmp_path, 2 * PART)))
    assert "403 AccessDenied" in str(caught.value)
    assert "PHAZE_S3_" in str(caught.value)
    assert "X-Amz" not in repr(caught.value)
    assert len(proxy.parts()) <= 2 * s3_store.FORBIDDEN_ATTEMPTS


async def test_a_missing_bucket_is_told(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="make the bucket"):
        await send(bucket, payload_of(make_file(tmp_path, 10)), bucket="nowhere")


@pytest.mark.parametrize(
    ("status", "header", "remedy"),
    [
        ("301 Moved Permanently", "x-amz-bucket-region: eu-west-2", "set PHAZE_S3_REGION to the bucket's, eu-west-2"),
        ("400 Bad Request", "x-amz-bucket-region: eu-west-2", "set PHAZE_S3_REGION to the bucket's, eu-west-2"),
        ("301 Moved", "location: https://me:pw@s3.example:9/a?X-Amz-Signature=7", "it sends to https://s3.example:9;"),
        ("307 Temporary Redirect", "location: /elsewhere?X-Amz-Signature=7", "set PHAZE_S3_ENDPOINT"),
        ("302 Found", "location: https://[", "set PHAZE_S3_ENDPOINT"),
    ],
)
async def test_a_store_that_sends_elsewhere_names_the_setting_and_no_secret(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy, status: str, header: str, remedy: str
) -> None:
    """The first question is a HEAD, whose answer has no body."""
    proxy.faults = [Fault(lambda request: request.kind == "head", times=99, answer=answer(status, "", header))]
    with pytest.raises(Refused) as caught:
        await send(bucket, payload_of(make_file(tmp_path, 10)))
    assert remedy in str(caught.value)
    assert "Signature" not in repr(caught.value)
    assert "pw" not in repr(caught.value)
    assert proxy.kinds() == ["head"]


async def test_a_connection_that_hangs_is_given_up_after_the_stall(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight MiB: the kernels between the two take some of it for themselves, and that is no progress."""
    monkeypatch.setattr(digests, "PART", 8 * MIB)
    payload = payload_of(make_file(tmp_path, 16 * MIB), stall=0.5)
    proxy.faults = [Fault(lambda request: request.part == 1, hang=MIB)]
    result = await send(bucket, payload)
    assert result.retries == 1


async def test_a_store_that_never_answers_is_a_stall(bucket: Bucket, tmp_path: Path, proxy: FaultyProxy) -> None:
    proxy.faults = [Fault(lambda request: request.kind == "head", times=s3_store.ATTEMPTS, hang=0)]
    with pytest.raises(Stalled, match="nothing moved"):
        await send(bucket, payload_of(make_file(tmp_path, 10), stall=0.3))


async def test_a_slow_line_is_waited_for(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times as long as the stall: what counts is that something moves."""
    monkeypatch.setattr(digests, "PART", 8 * MIB)
    proxy.faults = [Fault(lambda request: request.kind == "put", rate=MIB)]
    payload = payload_of(make_file(tmp_path, 3 * MIB), stall=1.0)
    result = await send(bucket, payload)
    assert (result.retries, result.seconds > 2) == (0, True)


async def test_bytes_damaged_on_their_way_are_sent_again(bucket: Bucket, tmp_path: Path, proxy: FaultyProxy) -> None:
    """moto takes a part whatever its checksum says: only its list of parts shows the damage."""
    proxy.faults = [Fault(lambda request: request.part == 2, flip=True)]
    payload = payload_of(make_file(tmp_path, 3 * PART))
    await send(bucket, payload)
    assert sorted(proxy.parts()) == [1, 2, 2, 3]
    assert bucket.sha256() == sha_of(payload)


async def test_an_object_that_arrives_damaged_is_never_called_done(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    payload = payload_of(make_file(tmp_path, 1000))
    proxy.faults = [Fault(lambda request: request.kind == "put", flip=True)]
    with pytest.raises(Mismatch):
        await send(bucket, payload)
    await send(bucket, payload)
    assert bucket.sha256() == sha_of(payload)


async def test_a_wrong_etag_in_an_answer_decides_nothing(bucket: Bucket, tmp_path: Path, proxy: FaultyProxy) -> None:
    def lie(text: bytes) -> bytes:
        return re.sub(rb'(?i)(etag: )"\w+"', rb'\1"00000000000000000000000000000000"', text)

    proxy.faults = [Fault(lambda request: request.part > 0, times=99, rewrite=lie)]
    payload = payload_of(make_file(tmp_path, 3 * PART))
    result = await send(bucket, payload)
    assert bucket.sha256() == sha_of(payload)
    assert result.retries == 0


async def test_a_store_whose_list_is_wrong_each_time_is_not_believed(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    def lie(text: bytes) -> bytes:
        return re.sub(rb'<ETag>"\w+"', b'<ETag>"00000000000000000000000000000000"', text)

    proxy.faults = [Fault(lambda request: request.kind == "parts", times=99, rewrite=lie)]
    with pytest.raises(Mismatch, match="damaged each time"):
        await send(bucket, payload_of(make_file(tmp_path, 2 * PART)))
    assert bucket.is_empty()


async def test_without_a_known_hash_the_object_is_read_back(bucket: Bucket, tmp_path: Path, proxy: FaultyProxy) -> None:
    """A store that encrypts: no checksum, and an ETag that is no MD5."""

    def opaque(text: bytes) -> bytes:
        text = re.sub(rb"(?i)x-amz-checksum-sha256: [^\r]*\r\n", b"", text)
        return re.sub(rb'(?i)(etag: )"[\w-]+"', rb'\1"opaque-1"', text)

    proxy.faults = [Fault(lambda request: request.kind == "head", times=99, rewrite=opaque)]
    payload = payload_of(make_file(tmp_path, 2 * PART))
    result = await send(bucket, payload)
    assert (result.verified, result.etag) == ("read-back", "opaque-1")
    assert "get" in proxy.kinds()


async def test_stores_that_refuse_checksums_get_md5(bucket: Bucket, tmp_path: Path) -> None:
    context = bucket.context(checksum="md5")
    signed = context._answers["s3"]({"kind": "part", "upload_id": "u", "number": 1, "sha256": "a", "md5": "b"})
    assert signed["request"]["headers"] == {"content-md5": "b"}
    payload = payload_of(make_file(tmp_path, 2 * PART))
    result = await s3_upload(context, payload)
    assert result.verified == "store-md5"


async def test_an_upload_that_somebody_aborts_is_begun_again(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    """moto answers 500 to a part of an upload that is gone, where S3 says NoSuchUpload."""
    proxy.faults = [Fault(lambda request: request.part == 3, answer=answer("404 Not Found", "NoSuchUpload"))]
    context = bucket.context()
    context.acts = {"2 of 4 MB, ": lambda: [bucket.ask(kind="abort", upload_id=found) for found in bucket.unfinished()]}
    payload = payload_of(make_file(tmp_path, 4 * PART), parallel=1)
    await s3_upload(context, payload)
    assert bucket.sha256() == sha_of(payload)


# The file.


async def test_a_file_that_changes_while_it_is_sent_gives_no_object_and_leaves_no_parts(
    bucket: Bucket, tmp_path: Path
) -> None:
    path = make_file(tmp_path, 4 * PART)
    payload = payload_of(path, parallel=1)
    context = bucket.context()

    def change() -> None:
        with path.open("r+b") as file:
            file.seek(3 * PART + 7)
            file.write(b"other bytes")

    context.acts = {"1 of 4 MB, ": change}
    with pytest.raises(InputChanged):
        await s3_upload(context, payload)
    assert bucket.is_empty()
    assert not bucket.unfinished()


async def test_a_small_file_that_changes_is_not_stored_half(bucket: Bucket, tmp_path: Path) -> None:
    path = make_file(tmp_path, PART)
    payload = payload_of(path)
    context = bucket.context()
    asked: list[str] = []

    def answering(question: Any) -> dict[str, Any]:
        asked.append(question["kind"])
        if question["kind"] == "put":
            path.write_bytes(bytes(PART))
        return bucket.signer().answer_for(KEY)(question)

    context._answers = {"s3": answering}
    with pytest.raises(InputChanged):
        await s3_upload(context, payload)
    assert "put" in asked
    assert bucket.is_empty()


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"other"), lambda path: path.write_bytes(bytes(64))])
async def test_a_file_that_is_not_as_it_was_scanned_is_not_sent(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy, change: Any
) -> None:
    path = make_file(tmp_path, 64)
    payload = payload_of(path)
    change(path)
    with pytest.raises(InputChanged):
        await send(bucket, payload)
    assert "put" not in proxy.kinds()


async def test_a_file_that_is_gone_takes_its_unfinished_parts_with_it(
    bucket: Bucket, tmp_path: Path, proxy: FaultyProxy
) -> None:
    (tmp_path / "other").touch()
    path = make_file(tmp_path, 3 * PART)
    payload = payload_of(path, parallel=1)
    proxy.faults = [Fault(lambda request: request.part == 3, times=99, answer=answer("503 No"))]
    with pytest.raises(Unreachable):
        await send(bucket, payload)
    assert bucket.unfinished()
    path.unlink()
    with pytest.raises(RecordNotFoundError):
        await send(bucket, payload)
    assert not bucket.unfinished()


async def test_a_file_whose_archive_is_not_mounted_is_not_called_gone(bucket: Bucket, tmp_path: Path) -> None:
    folder = tmp_path / "archive" / "album"
    folder.mkdir(parents=True)
    payload = payload_of(make_file(folder, 10), root=str(tmp_path / "archive"))
    (folder / "a b.mp3").unlink()
    folder.rmdir()
    with pytest.raises(OSError, match="mounted"):
        await send(bucket, payload)


async def test_what_is_no_file_or_cannot_be_read_is_told_apart(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file(tmp_path, 10)
    payload = payload_of(path)
    denied = PermissionError(13, "Permission denied", str(path))

    def refuse(*_args: Any) -> int:
        raise denied

    with monkeypatch.context() as patched:  # root reads everything
        patched.setattr(os, "open", refuse)
        with pytest.raises(Unreadable, match="Permission denied"):
            await send(bucket, payload)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputRejected, match="not-a-file"):
        await send(bucket, payload)


async def test_a_hub_that_is_away_says_nothing_about_the_store(bucket: Bucket, tmp_path: Path) -> None:
    from agent.phoenix.breaker import outcome_of

    context = bucket.context()

    def away(_question: Any) -> dict[str, Any]:
        raise NotAnswered("the hub does not answer")

    context._answers = {"s3": away}
    with pytest.raises(NotAnswered) as caught:
        await s3_upload(context, payload_of(make_file(tmp_path, 10)))
    assert outcome_of(caught.value) == "void"


def test_the_circuit_counts_what_is_the_stores_fault_alone() -> None:
    from agent.phoenix.breaker import outcome_of

    assert {outcome_of(error) for error in (Unreachable("503"), Stalled("nothing moved"))} == {"failed"}
    assert {outcome_of(error) for error in (Refused("403"), Mismatch("x"), Unreadable("x"))} == {"void"}


# Parts.


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 8), (1, 8), (80_000 * MIB, 8), (80_000 * MIB + 1, 9), (1 << 40, 105), (5 << 40, 525)],
)
def test_part_sizes_are_whole_mib_and_never_more_than_ten_thousand(
    size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "PART", 8 * MIB)
    found = digests.part_size(size)
    assert found == expected * MIB
    assert -(-size // found) <= digests.MOST_PARTS


async def test_a_file_that_no_store_can_take_is_rejected_unread(bucket: Bucket, tmp_path: Path) -> None:
    payload = payload_of(make_file(tmp_path, 10), size=60 << 40)
    with pytest.raises(InputRejected, match="too-large"):
        await send(bucket, payload)


async def test_more_parts_than_one_page_lists_are_all_seen(bucket: Bucket, tmp_path: Path, proxy: FaultyProxy) -> None:
    """A store pages at 1,000 parts; this one is made to page at two."""

    def by_two(head: bytes) -> bytes:
        return head.replace(b"uploadId=", b"max-parts=2&uploadId=", 1)

    proxy.faults = [Fault(lambda request: request.kind == "parts", times=99, ask=by_two)]
    payload = payload_of(make_file(tmp_path, 5 * PART))
    await send(bucket, payload)
    assert bucket.sha256() == sha_of(payload)
    assert sorted(proxy.parts()) == [1, 2, 3, 4, 5]
    assert proxy.kinds().count("parts") == 1 + 3


def test_the_outer_bound_follows_the_size() -> None:
    timeout = policy_of(s3_upload).timeout
    sizes = (0, 10**6, 10**9, 10**12)
    bounds = [timeout(S3UploadPayload(version="v", path="/a", size=size, store="s3")) for size in sizes]
    assert bounds == sorted(bounds)
    assert 900 <= bounds[0] < bounds[-1]


def test_digests_are_those_of_s3() -> None:
    """ETag and checksum of a two-part object, as the S3 documentation composes them."""
    raw = [b"a" * 10, b"b" * 3]
    parts = tuple(
        digests.Part(n, 0, len(part), hashlib.sha256(part).digest(), hashlib.md5(part).digest())
        for n, part in enumerate(raw, 1)
    )
    found = digests.Digests(13, hashlib.sha256(b"".join(raw)).digest(), parts)
    assert found.etag == hashlib.md5(b"".join(hashlib.md5(part).digest() for part in raw)).hexdigest() + "-2"
    assert found.checksum == digests.base64_of(
        hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in raw)).digest()
    )
