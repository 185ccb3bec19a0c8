"""The hub signs for its agents' files, each for its own, and for nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st

from agent.desk import Desk
from agent.errors import ConfigError
from agent.hub.app import create_app
from agent.hub.catalogue import Catalogue
from agent.hub.server import listen, url_of
from agent.hub.signing import Signing
from agent.settings import load_settings
from pipelines.errors import NotAnswered, NotGranted
from pipelines.files.s3_signer import S3Signer, Wanted, object_key, store_host
from tests.hub.deliveries import AGENT, TOKEN, scan, seen

S3 = {
    "s3_bucket": "archive",
    "s3_access_key_id": "AKID",
    "s3_secret_access_key": "very-secret",
    "s3_endpoint": "http://s",
}


@pytest.fixture
async def signing_hub(catalogue: Catalogue) -> AsyncIterator[str]:
    catalogue.register_agent("other", "another-token")
    scan(catalogue, "/music", [seen("/music/a%20b.mp3")])
    server = uvicorn.Server(uvicorn.Config(create_app(load_settings(**S3), catalogue), log_config=None))
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server._serve([listener]))
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0.01)
    yield url_of(listener)
    server.should_exit = True
    await serving
    listener.close()


def desk(url: str, agent: str = AGENT, token: str = TOKEN) -> Desk:
    return Desk(load_settings(hub_url=url, agent_id=agent), token)


async def test_an_agent_gets_a_request_for_its_own_file_that_holds_for_a_while(signing_hub: str) -> None:
    asking = desk(signing_hub)
    wanted = Wanted(kind="part", upload_id="u", number=3, sha256="c2hh", md5="bWQ1")
    granted = await asking.ask("1", "s3", wanted.model_dump())
    url = urlsplit(granted["request"]["url"])
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert (granted["bucket"], granted["key"]) == ("archive", "local/music/a b.mp3")
    assert unquote(url.path) == "/archive/local/music/a b.mp3"
    assert (query["partNumber"], query["uploadId"], query["X-Amz-Expires"]) == ("3", "u", "900")
    assert query["X-Amz-SignedHeaders"] == "host;x-amz-checksum-sha256"
    assert granted["request"]["headers"] == {"x-amz-checksum-sha256": "c2hh"}
    assert "very-secret" not in str(granted)
    await asking.close()


async def test_nobody_gets_one_for_anothers_file_or_none(signing_hub: str) -> None:
    stranger = desk(signing_hub, "other", "another-token")
    for record in ("1", "2", "../1", "", "x" * 5000):
        with pytest.raises(NotGranted, match="not a file of agent other"):
            await stranger.ask(record, "s3", {"kind": "head"})
    with pytest.raises(NotGranted, match="kind"):
        await stranger.ask("1", "s3", {"kind": "delete"})
    with pytest.raises(NotGranted, match="upgrade"):
        await stranger.ask("1", "passwords", {})
    await stranger.close()
    liar = desk(signing_hub, AGENT, "another-token")
    with pytest.raises(NotGranted, match="PHAZE_AGENT_TOKEN"):
        await liar.ask("1", "s3", {"kind": "head"})
    await liar.close()


async def test_without_a_store_the_hub_names_what_is_not_set(hub_url: str, catalogue: Catalogue) -> None:
    asking = desk(hub_url)
    with pytest.raises(NotGranted, match="PHAZE_S3_BUCKET"):
        await asking.ask("1", "s3", {"kind": "head"})
    await asking.close()
    away = desk("http://127.0.0.1:1")
    with pytest.raises(NotAnswered, match="PHAZE_HUB_URL"):
        await away.ask("1", "s3", {"kind": "head"})
    await away.close()


async def test_the_key_to_push_with_is_the_agents_own_setting(tmp_path: object) -> None:
    asking = Desk(load_settings(push_key="-----BEGIN OPENSSH PRIVATE KEY-----\nx"), TOKEN)
    assert (await asking.ask("1", "ssh-key", {}))["key"].startswith("-----BEGIN")
    await asking.close()
    bare = Desk(load_settings(), TOKEN)
    with pytest.raises(NotGranted, match="PHAZE_PUSH_KEY_FILE"):
        await bare.ask("1", "ssh-key", {})
    await bare.close()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"s3_bucket": "archive"}, "PHAZE_S3_ACCESS_KEY_ID"),
        ({"s3_bucket": "archive", "s3_access_key_id": "a"}, "PHAZE_S3_SECRET_ACCESS_KEY"),
        ({**S3, "s3_bucket": "No Bucket/At all"}, "cannot be used"),
        ({**S3, "s3_endpoint": "ftp://x"}, "PHAZE_S3_ENDPOINT"),
        ({**S3, "s3_prefix": "a/../b/"}, "PHAZE_S3_PREFIX"),
        ({"push_key": "ssh-ed25519 AAAA"}, "PHAZE_PUSH_KEY "),
    ],
)
def test_bad_settings_stop_the_start_and_show_no_secret(settings: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Signing.of(load_settings(**settings))
    assert word in str(caught.value)
    assert "very-secret" not in str(caught.value)


def test_without_a_bucket_nothing_is_signed_and_nothing_loaded() -> None:
    assert Signing.of(load_settings()) is None


def test_the_circuits_name_is_the_host_alone() -> None:
    assert store_host("https://user:pw@minio.local:9000/x", "r") == "minio.local:9000"
    assert store_host("", "eu-central-1") == "s3.eu-central-1.amazonaws.com"


SIGNER = S3Signer(bucket="archive", access_key_id="a", secret_access_key="b", endpoint="http://s")


@given(st.binary(min_size=1, max_size=200).filter(lambda path: b"\0" not in path))
def test_every_path_has_its_own_key_which_leads_back_to_it(path: bytes) -> None:
    from urllib.parse import unquote_to_bytes

    key = object_key("p/", b"/" + path)
    assert unquote_to_bytes(key.removeprefix("p/")) == path.lstrip(b"/")
    assert key.isprintable()


@given(st.binary(min_size=1, max_size=60).filter(lambda path: b"\0" not in path))
@example(b"a/./b/../..")
def test_a_signed_url_is_sent_as_it_was_signed(path: bytes) -> None:
    """A client that tidied it up would spoil the signature."""
    signed = SIGNER.sign(object_key("local/", path), Wanted(kind="part", upload_id="a+/=~b", number=1))
    sent = httpx.Request(signed.method, signed.url).url.raw_path.decode("ascii")
    assert signed.url == f"http://s{sent}"
