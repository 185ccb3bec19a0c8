"""Fetching from real servers: what is taken, what is refused, and that nobody is led anywhere else."""

from __future__ import annotations

import asyncio
import gzip
import io
import socket
import ssl
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import trustme

from pipelines.documents.addresses import networks_of
from pipelines.documents.fetch import BLOCK, Fetcher, FetchLimits
from pipelines.errors import InputRejected, RecordNotFoundError, TryLater
from tests.pipelines.documents.site import Site, ok, redirect, serving

PDF = b"%PDF-1.7\n" + b"x" * 5000
SOON = FetchLimits(bytes=1 << 20, seconds=20)


def answering(**addresses: str | list[str]) -> Callable[..., object]:
    """A resolver that knows just these names (`a_b` for `a.b`)."""
    known = {name.replace("_", "."): [at] if isinstance(at, str) else at for name, at in addresses.items()}

    async def resolve(host: str, port: int) -> list[str]:
        return known[host]

    return resolve


async def fetched(url: str, networks: str = "127.0.0.1/32", limits: FetchLimits = SOON, **how: object) -> bytes:
    file = io.BytesIO()
    size = await Fetcher(networks_of(networks), limits, **how).fetch(url, file)  # type: ignore[arg-type]
    assert size == len(file.getvalue())
    return file.getvalue()


async def refused(url: str, **how: object) -> str:
    with pytest.raises(InputRejected) as error:
        await fetched(url, **how)  # type: ignore[arg-type]
    return error.value.reason


async def test_a_document_is_taken_by_what_it_is_and_not_by_what_it_is_called() -> None:
    async with serving() as site:
        site.answers["/a"] = ok(PDF, "content-type: text/html")
        site.answers["/late"] = ok(b"\n" * 1000 + PDF)
        site.answers["/too-late"] = ok(b"\n" * 1030 + PDF, "content-type: application/pdf")
        site.answers["/page"] = ok(b"<html>sign in</html>", "content-type: application/pdf")
        site.answers["/empty"] = ok(b"", "content-type: application/pdf")
        assert await fetched(site.url("/a")) == PDF
        assert (await fetched(site.url("/late"))).endswith(PDF)
        assert await refused(site.url("/too-late")) == "not-a-pdf"
        assert await refused(site.url("/page")) == "not-a-pdf"
        assert await refused(site.url("/empty")) == "empty"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"]
)
async def test_no_way_to_write_this_machine_leads_to_it(host: str) -> None:
    async with serving() as site:
        site.answers["/"] = ok(PDF)
        assert await refused(site.url(host=host), networks="") in ("forbidden-address", "bad-url")
        assert site.connections == 0


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x.org/a", "gopher://x/", "/etc/passwd", "", "http://", "ht tp"]
)
async def test_other_schemes_are_refused(url: str) -> None:
    assert await refused(url) == "bad-url"


async def test_a_redirect_into_the_own_network_is_refused_before_anything_is_asked() -> None:
    async with serving() as site, serving("127.0.0.2") as inner:
        inner.answers["/"] = ok(PDF)
        site.answers["/"] = redirect(inner.url(host="127.0.0.2"))
        site.answers["/name"] = redirect(inner.url(host="metadata.example"))
        site.answers["/file"] = redirect("file:///etc/passwd")
        site.answers["/nowhere"] = ok(b"", status="302 Found")
        resolve = answering(metadata_example="127.0.0.2")
        assert await refused(site.url()) == "forbidden-address"
        assert await refused(site.url("/name"), resolve=resolve) == "forbidden-address"
        assert await refused(site.url("/file")) == "bad-url"
        assert await refused(site.url("/nowhere")) == "bad-url"
        assert inner.connections == 0


async def test_a_name_that_changes_its_address_is_asked_once_and_connected_to_as_judged() -> None:
    async with serving() as site, serving("127.0.0.2", site.port) as inner:
        site.answers["/"], inner.answers["/"] = ok(PDF), ok(b"%PDF-stolen")
        answers = ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
        asked: list[str] = []

        async def resolve(host: str, port: int) -> list[str]:
            asked.append(host)
            return [answers[len(asked) - 1]]

        assert await fetched(site.url(host="rebinding.example"), resolve=resolve) == PDF
        assert asked == ["rebinding.example"]
        assert inner.connections == 0
        assert f"host: rebinding.example:{site.port}\r\n" in site.heads[0].lower()


async def test_one_forbidden_address_among_a_names_is_one_too_many_and_a_dead_one_is_passed_over() -> None:
    async with serving() as site:
        site.answers["/"] = ok(PDF)
        both = answering(a_example=["127.0.0.1", "10.0.0.1"])
        assert await refused(site.url(host="a.example"), resolve=both) == "forbidden-address"
        dead_first = answering(a_example=["127.0.0.9", "127.0.0.1"])
        assert await fetched(site.url(host="a.example"), networks="127.0.0.0/24", resolve=dead_first) == PDF


def certificates(name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's side for `name`, and a client's that trusts it."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(name).configure_cert(server)
    authority.configure_trust(client)
    return server, client


async def test_the_server_sees_its_own_name_and_proves_it_although_the_address_was_chosen_here() -> None:
    server, client = certificates("documents.example")
    async with serving(tls=server) as site:
        site.answers["/"] = ok(PDF)
        names = answering(documents_example="127.0.0.1", other_example="127.0.0.1")
        assert await fetched(f"https://documents.example:{site.port}/", resolve=names, tls=client) == PDF
        assert site.names == ["documents.example"]
        assert f"host: documents.example:{site.port}\r\n" in site.heads[0].lower()
        with pytest.raises(TryLater, match="CERTIFICATE_VERIFY_FAILED"):
            await fetched(f"https://other.example:{site.port}/", resolve=names, tls=client)


async def test_redirects_are_followed_five_times_and_never_in_a_circle() -> None:
    async with serving() as site:
        for number in range(6):
            site.answers[f"/{number}"] = redirect(f"/{number + 1}", "307 Temporary Redirect")
        site.answers["/6"] = ok(PDF)
        site.answers["/loop"], site.answers["/loop2"] = redirect("loop2#a"), redirect("/loop#b")
        assert await fetched(site.url("/1")) == PDF
        assert await refused(site.url("/0")) == "too-many-redirects"
        assert await refused(site.url("/loop")) == "redirect-loop"


async def test_too_large_is_refused_by_what_is_said_and_by_what_comes() -> None:
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
    async with serving() as site:
        site.answers["/said"] = site.endless(head + b"content-length: 99999999999\r\n\r\n", PDF)
        assert await refused(site.url("/said")) == "too-large"
        site.answers["/comes"] = site.endless(head + b"\r\n", PDF)
        assert await refused(site.url("/comes")) == "too-large"
        assert site.sent < 100 << 20  # what sockets hold, beyond the limit of 1 MiB
        packed = gzip.compress(PDF + bytes(50 << 20))
        site.answers["/packed"] = ok(packed, "content-encoding: gzip")
        assert await refused(site.url("/packed")) == "too-large"


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_what_a_server_packs_although_asked_not_to_is_unpacked(name: str, pack: Callable[[bytes], bytes]) -> None:
    async with serving() as site:
        site.answers["/"] = ok(pack(PDF), f"content-encoding: identity, {name}")
        assert await fetched(site.url()) == PDF
        site.answers["/"] = ok(b"%PDF-1.7", f"content-encoding: {name}")
        with pytest.raises(TryLater, match="DecodingError"):
            await fetched(site.url())


async def test_what_is_packed_arrives_whole_or_is_asked_for_again() -> None:
    """Sizes about a block's, at which unpacking holds back a rest; and what is cut off anywhere."""
    async with serving() as site:
        for size in (BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 100, 900_000):
            content = PDF.ljust(size, b"\0")
            for packed in (gzip.compress(content), zlib.compress(content)):
                site.answers["/"] = ok(packed, "content-encoding: gzip")
                assert await fetched(site.url()) == content
                for cut in (1, len(packed) // 2, len(packed) - 1):
                    site.answers["/"] = ok(packed[:cut], "content-encoding: gzip")
                    with pytest.raises(TryLater, match="DecodingError"):
                        await fetched(site.url())


@pytest.mark.parametrize("times", [1, 2])
async def test_a_bomb_in_packing_takes_no_memory(times: int) -> None:
    bomb = gzip.compress(PDF + bytes(200 << 20), compresslevel=1)
    async with serving() as site:
        packed = gzip.compress(bomb) if times == 2 else bomb
        site.answers["/"] = ok(packed, "content-encoding: " + ", ".join(["gzip"] * times))
        tracemalloc.start()
        try:
            assert await refused(site.url()) == ("refused" if times == 2 else "too-large")
            assert tracemalloc.get_traced_memory()[1] < 10 << 20
        finally:
            tracemalloc.stop()


async def test_what_is_no_pdf_is_not_read_to_its_end() -> None:
    async with serving() as site:
        site.answers["/"] = site.endless(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"<p>more</p>" * 1000)
        assert await refused(site.url(), limits=FetchLimits(bytes=1 << 40, seconds=60)) == "not-a-pdf"


@pytest.mark.parametrize("silent", [True, False], ids=["no answer at all", "a byte now and then"])
async def test_a_slow_server_gets_its_time_and_no_more(silent: bool) -> None:
    async with serving() as site:
        head = b"" if silent else b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n%PDF-"
        site.answers["/"] = site.endless(head, b"" if silent else b"x", pause=0.05)
        begun = time.monotonic()
        with pytest.raises(TryLater, match="within 1 s"):
            await fetched(site.url(), limits=FetchLimits(seconds=1))
        assert time.monotonic() - begun < 20


@pytest.mark.parametrize("status", ["404 Not Found", "410 Gone"])
async def test_what_is_gone_is_a_dead_letter(status: str) -> None:
    async with serving() as site:
        site.answers["/"] = ok(b"", status=status)
        with pytest.raises(RecordNotFoundError, match=status[:3]):
            await fetched(site.url())


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507])
async def test_a_busy_or_broken_server_is_tried_later_and_not_before_it_wants(status: int) -> None:
    async with serving() as site:
        site.answers["/"] = ok(b"", "retry-after: 120", status=f"{status} Busy")
        dates = ("date: Mon, 01 Jan 2029 10:00:00 GMT", "retry-after: Mon, 01 Jan 2029 10:00:30 GMT")
        site.answers["/date"] = ok(b"", *dates, status=f"{status} Busy")
        for path, seconds in (("/", 120.0), ("/date", 30.0)):
            with pytest.raises(TryLater, match=str(status)) as error:
                await fetched(site.url(path))
            assert error.value.after == seconds


@pytest.mark.parametrize("status", [204, 206, 300, 304, 400, 401, 403, 405, 451])
async def test_any_other_answer_is_the_requests_fault(status: int) -> None:
    async with serving() as site:
        site.answers["/"] = f"HTTP/1.1 {status} No\r\nconnection: close\r\n\r\n".encode()
        assert await refused(site.url()) == "refused"


async def test_a_line_that_breaks_and_a_name_without_an_address_are_tried_later() -> None:
    async def no_such_name(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with serving() as site:
        site.answers["/cut"] = ok(PDF)[:-100]
        site.answers["/nonsense"] = b"SSH-2.0-OpenSSH_9.2\r\n"
        for path in ("/cut", "/nonsense"):
            with pytest.raises(TryLater):
                await fetched(site.url(path))
        with pytest.raises(TryLater, match=r"nowhere\.example"):
            await fetched("http://nowhere.example/", resolve=no_such_name)
        closed = site.port
    with pytest.raises(TryLater):
        await fetched(f"http://127.0.0.1:{closed}/")


async def test_no_error_tells_more_of_a_url_than_its_host(site_of_errors: Site) -> None:
    for path in [*site_of_errors.answers, "/gone"]:
        with pytest.raises((InputRejected, RecordNotFoundError, TryLater)) as error:
            await fetched(site_of_errors.url(f"{path}?signature=s3cret").replace("//", "//user:s3cret@", 1))
        assert "s3cret" not in repr(error.value) + str(error.value)
        assert path.strip("/") not in str(error.value).split()


@pytest.fixture
async def site_of_errors():  # type: ignore[no-untyped-def]
    async with serving() as site:
        for status in (302, 403, 500):
            site.answers[f"/path-{status}"] = ok(b"", status=f"{status} Answer")
        site.answers["/path-html"] = ok(b"<html>")
        site.answers["/path-cut"] = ok(PDF)[:-1]
        site.answers["/path-loop"] = redirect("/path-loop?signature=s3cret")
        yield site


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as site, serving() as proxy:
        site.answers["/"] = ok(PDF)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert await fetched(site.url()) == PDF
        assert proxy.connections == 0


async def test_fetching_can_be_cancelled_at_any_moment() -> None:
    async with serving() as site:
        site.answers["/"] = site.endless(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n%PDF-", b"x", pause=0.05)
        task = asyncio.create_task(fetched(site.url()))
        while not site.sent:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
