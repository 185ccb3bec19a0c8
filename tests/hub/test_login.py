"""Who gets in, who does not, and who may change something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from starlette.routing import Route

from agent.errors import ConfigError
from agent.hub import attempts
from agent.hub.app import create_app
from agent.hub.attempts import FREE, Attempts, network_of
from agent.hub.catalogue import Catalogue
from agent.hub.guard import OPEN, OPEN_ROOMS
from agent.hub.login import Login
from agent.hub.login_pages import _within
from agent.settings import load_settings
from tests.hub.conftest import PASSWORD, USER, serving
from tests.hub.deliveries import AGENT, TOKEN

RETRY = f"/saq/api/queues/phaze-agent-{AGENT}-io/jobs/push_file:1/retry"


async def enter(client: httpx.AsyncClient, **fields: str) -> httpx.Response:
    return await client.post("/login", data={"user": USER, "password": PASSWORD, **fields})


async def token_on(client: httpx.AsyncClient, path: str = "/saq/") -> str:
    """The token that a page of ours carries."""
    found = re.search(r'(?:data-token|name="token" value)="([^"]+)"', (await client.get(path)).text)
    assert found is not None
    return found[1]


async def test_every_route_but_the_named_ones_needs_a_login(catalogue: Catalogue, stranger: httpx.AsyncClient) -> None:
    app: Any = create_app(load_settings(hub_password="x"), catalogue)
    closed = 0
    for route in app._app.routes:
        path = re.sub(r"{[^}]+}", "x", route.path)
        methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"GET"}
        for method in methods:
            answer = await stranger.request(method, path)
            if path not in OPEN and not f"{path}/".startswith(OPEN_ROOMS):
                closed += 1
                assert answer.status_code == 401, (method, path)
    assert closed > 15
    assert (await stranger.get("/no/such/page")).status_code == 401
    assert (await stranger.get("/static/../api/tracks")).status_code in (401, 404)


async def test_what_needs_no_login(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.get("/health")).json() == {"status": "ok"}
    assert (await stranger.get("/static/hub.css")).status_code == 200
    agent = {"Authorization": f"Bearer {TOKEN}"}
    assert (await stranger.post(f"/api/agents/{AGENT}/heartbeat", json={}, headers=agent)).status_code == 200
    assert (await stranger.post(f"/api/agents/{AGENT}/results", json={"entries": []})).status_code == 401
    assert (await stranger.post("/api/scans", json={"agent_id": AGENT, "roots": ["/m"]})).status_code == 401


async def test_a_browser_is_sent_to_the_form_and_on_to_where_it_wanted_to_go(stranger: httpx.AsyncClient) -> None:
    sent = await stranger.get("/saq/queues/q/jobs/a%2Fb?x=1&y", headers={"Accept": "text/html"})
    assert sent.status_code == 303
    form = await stranger.get(sent.headers["location"])
    assert form.status_code == 200
    assert 'value="/saq/queues/q/jobs/a%2Fb?x=1&amp;y"' in form.text
    assert "form-action 'self'" in form.headers["content-security-policy"]
    entered = await enter(stranger, next="/?sort=-bpm")
    assert (entered.status_code, entered.headers["location"]) == (303, "/?sort=-bpm")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert "secure" not in cookie
    assert PASSWORD not in cookie
    assert (await stranger.get("/")).status_code == 200
    assert (await stranger.get("/api/agents")).status_code == 200


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil", "evil", "", "/\n"]
)
async def test_the_form_leads_nowhere_else(stranger: httpx.AsyncClient, path: str) -> None:
    assert (await enter(stranger, next=path)).headers["location"] == "/"


async def test_behind_a_proxy_that_is_named_each_client_is_slowed_down_by_itself(
    catalogue: Catalogue, redis: Redis
) -> None:
    known = {"hub_user": USER, "hub_password": PASSWORD, "hub_proxies": "127.0.0.1, 192.0.2.0/24"}
    async with serving(catalogue, redis, **known) as url, httpx.AsyncClient(base_url=url) as proxy:

        async def ask(password: str, client: str) -> int:
            answer = await proxy.get("/api/agents", auth=(USER, password), headers={"X-Forwarded-For": client})
            return answer.status_code

        assert [await ask("wrong", "198.51.100.1") for _ in range(FREE + 1)] == [401] * FREE + [429]
        assert await ask(PASSWORD, "198.51.100.2") == 200, "another client"
        assert await ask("wrong", "198.51.100.3, 198.51.100.1") == 429, "what a client says of itself is not believed"
        assert await ask("wrong", "198.51.100.1, 192.0.2.9") == 429, "through two proxies"


def test_networks_of_proxies_that_are_none_stop_the_start_with_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^PHAZE_HUB_PROXIES=everybody "):
        load_settings(hub_proxies="everybody")


@given(st.text(max_size=20).map(lambda rest: f"/{rest}"))
def test_where_the_form_leads_is_on_this_hub(path: str) -> None:
    assert httpx.URL("http://hub:1/login").join(_within(path)).netloc == b"hub:1"


async def test_behind_https_the_cookie_goes_by_https_only(catalogue: Catalogue, redis: Redis) -> None:
    async with (
        serving(catalogue, redis, hub_user=USER, hub_password=PASSWORD, hub_names="music.example") as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        as_proxy = {"Host": "music.example", "Origin": "https://music.example"}
        answer = await client.post("/login", data={"user": USER, "password": PASSWORD}, headers=as_proxy)
        assert answer.status_code == 303
        assert "secure" in answer.headers["set-cookie"].lower()


async def test_a_wrong_name_and_a_wrong_password_are_told_alike(stranger: httpx.AsyncClient) -> None:
    answers = [await enter(stranger, **wrong) for wrong in ({"user": "bob"}, {"password": "x"}, {"user": ""})]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert not list(stranger.cookies.jar)
    assert (await stranger.post("/login", content=b"a=1&" * 1000)).status_code == 400
    assert (await stranger.post("/login", content=b"x" * 10_000)).status_code == 413


async def test_guessing_is_slowed_down_for_the_right_password_too(
    stranger: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(attempts, "clock", lambda: now)
    assert [(await enter(stranger, password=f"{i}")).status_code for i in range(FREE)] == [401] * FREE
    blocked = await enter(stranger)
    assert blocked.status_code == 429
    assert blocked.headers["retry-after"] == "1"
    assert (await stranger.get("/metrics", auth=(USER, PASSWORD))).status_code == 429
    elsewhere = {"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.7"}
    assert (await stranger.get("/metrics", auth=(USER, "x"), headers=elsewhere)).status_code == 429
    now += 1
    assert (await enter(stranger)).status_code == 303, "what was refused meanwhile did not count"


def test_failures_count_by_network_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(attempts, "clock", lambda: now)
    guesses = Attempts()
    waits = []
    for _ in range(14):
        guesses.failed("2001:db8::1")
        waits.append(guesses.wait("2001:db8::ffff"))
    assert waits == [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert guesses.wait("2001:db8:0:1::1") == 0
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    now += attempts.FORGOTTEN + 1
    guesses.failed("2001:db8::1")
    assert guesses.wait("2001:db8::1") == 0
    guesses.failed("192.0.2.1")
    guesses.succeeded("192.0.2.1")
    monkeypatch.setattr(attempts, "NETWORKS", 10)
    for i in range(50):
        guesses.failed(f"192.0.2.{i}")
    assert len(guesses._failures) <= 11


async def test_only_a_cookie_that_we_signed_for_this_password_counts(
    stranger: httpx.AsyncClient, catalogue: Catalogue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enter(stranger)
    [(cookie, good)] = [(cookie.name, cookie.value) for cookie in stranger.cookies.jar]
    assert good is not None
    stranger.cookies.clear()
    name, moment, signature = good.split(".")
    forged = ["", "x", f"open.{moment}.{signature}", f"{name}.{moment}.{signature[:-2]}", f"{name}.{signature}"]
    for value in forged:
        assert (await stranger.get("/", headers={"Cookie": f"{cookie}={value}"})).status_code == 401, value
    mine = {"Cookie": f"{cookie}={good}"}
    assert (await stranger.get("/", headers=mine)).status_code == 200
    for password, expected in ((PASSWORD, 200), ("another", 401)):
        again = serving(catalogue, redis, hub_user=USER, hub_password=password)
        async with again as url, httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/", headers=mine)).status_code == expected
    monkeypatch.setattr("agent.hub.login.SESSION_SECONDS", -1)
    assert (await stranger.get("/", headers=mine)).status_code == 401


async def test_a_change_needs_the_token_of_ones_own_session(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.post(RETRY)).status_code == 401
    await enter(stranger)
    token, old = await token_on(stranger), dict(stranger.cookies)
    for shown, expected in (({}, 403), ({"X-CSRF-Token": "x"}, 403), ({"X-CSRF-Token": token}, 404)):
        assert (await stranger.post(RETRY, headers=shown)).status_code == expected
    stranger.cookies.clear()
    await enter(stranger)
    assert dict(stranger.cookies) != old
    assert (await stranger.post(RETRY, headers={"X-CSRF-Token": token})).status_code == 403, "another session's"


async def test_without_a_login_a_change_needs_the_pages_token_too(client: httpx.AsyncClient) -> None:
    del client.headers["Authorization"]
    assert (await client.post(RETRY)).status_code == 403
    assert (await client.post(RETRY, headers={"X-CSRF-Token": await token_on(client)})).status_code == 404
    assert (await client.get("/login")).headers["location"] == "/"


async def test_who_logs_out_is_out(stranger: httpx.AsyncClient) -> None:
    await enter(stranger)
    token = await token_on(stranger, "/")
    assert (await stranger.post("/logout", data={"token": "x"})).status_code == 403
    assert (await stranger.get("/")).status_code == 200
    assert (await stranger.post("/logout", data={"token": token})).headers["location"] == "/login"
    assert (await stranger.get("/")).status_code == 401


async def test_a_browser_is_logged_in_to_two_hubs_of_one_machine(
    stranger: httpx.AsyncClient, locked_url: str, redis: Redis, tmp_path: Path
) -> None:
    """Its cookies go to all ports of a name."""
    await enter(stranger)
    with Catalogue(tmp_path / "other") as catalogue:
        async with serving(catalogue, redis, hub_user=USER, hub_password="another") as other:
            here = {"user": USER, "password": "another"}
            assert (await stranger.post(f"{other}/login", data=here)).status_code == 303
            for hub in (locked_url, other, locked_url):
                assert (await stranger.get(f"{hub}/")).status_code == 200
            token = await token_on(stranger, f"{other}/")
            assert (await stranger.post(f"{other}/logout", data={"token": token})).status_code == 303
            assert (await stranger.get(f"{other}/")).status_code == 401
    assert (await stranger.get(f"{locked_url}/")).status_code == 200


async def test_tools_show_user_and_password_in_each_request(stranger: httpx.AsyncClient) -> None:
    for path in ("/metrics", "/api/queues", "/api/tracks"):
        assert (await stranger.get(path, auth=(USER, PASSWORD))).status_code == 200
        refused = await stranger.get(path, auth=(USER, "wrong"))
        assert refused.status_code == 401
        assert "www-authenticate" not in refused.headers, "no browser shall ask, and then send it along by itself"
    for odd in ("Basic", "Basic !", "Basic YQ==", "Basic /w==", "Digest x", "Bearer"):
        assert (await stranger.get("/metrics", headers={"Authorization": odd})).status_code == 401, odd


async def test_an_agents_token_reads_what_programs_read_until_it_is_revoked(
    stranger: httpx.AsyncClient, catalogue: Catalogue
) -> None:
    stranger.headers["Authorization"] = f"Bearer {TOKEN}"
    for path in ("/api/status", "/api/queues", "/metrics"):
        assert (await stranger.get(path)).status_code == 200, path
    for path in ("/", "/saq/", "/saq/api/queues", "/overview"):
        assert (await stranger.get(path)).status_code == 401, path
    assert (await stranger.post(RETRY)).status_code == 401
    assert catalogue.revoke_agent(AGENT)
    assert (await stranger.get("/api/status")).status_code == 401
    assert (await stranger.post(f"/api/agents/{AGENT}/heartbeat", json={})).status_code == 403
    assert catalogue.agent_with("") is None
    assert not catalogue.knows(AGENT, "")


async def test_pages_of_another_origin_are_refused_whatever_they_ask(
    client: httpx.AsyncClient, hub_url: str, stranger: httpx.AsyncClient
) -> None:
    host = hub_url.removeprefix("http://")
    for origin, expected in (
        (hub_url, 200),
        (f"http://{host.upper()}", 200),
        ("null", 403),
        ("", 403),
        ("http://evil.example", 403),
        (f"http://{host.split(':')[0]}:1", 403),
        (f"http://{host}.evil.example", 403),
        (f"http://user@{host}", 403),
        ("http://localhost", 403),
    ):
        for path in ("/", "/api/status", "/health", "/metrics"):
            assert (await client.get(path, headers={"Origin": origin})).status_code == expected, origin
    refused = await stranger.post(
        "/login", data={"user": USER, "password": PASSWORD}, headers={"Origin": "http://evil.example"}
    )
    assert refused.status_code == 403
    assert (await stranger.options("/", headers={"Origin": "http://evil.example"})).status_code == 403


def test_a_token_belongs_to_one_key_and_one_password() -> None:
    one = Login("u", "p", "k")
    assert one.accepts("who", one.token("who"))
    assert not one.accepts("who", one.token("else"))
    for other in (Login("u", "p", "K"), Login("u", "P", "k"), Login("U", "p", "k")):
        assert not other.accepts("who", one.token("who"))
    assert not one.accepts("who", "\udcff")
