"""The page of one record: what its stages have recorded, and, in a real browser, what they do now."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from playwright.async_api import Page, expect
from redis.asyncio import Redis

from agent.hub.catalogue import Catalogue
from agent.phoenix import keys
from agent.phoenix.outbox import Entry
from agent.phoenix.streams import progress_message
from tests.hub.deliveries import AGENT
from tests.hub.test_page import ATTACK, page, pytestmark

__all__ = ["page", "pytestmark"]


def stage(service: str, record: str, *, at: float, version: str = "v1", **more: Any) -> Entry:
    return Entry(
        service=service, record_id=record, version=version, token=int(at), result={}, finished_at=at,
        **{"outcome": "done", **more},
    )  # fmt: skip


async def test_a_records_page_has_each_stages_last_word_and_the_list_the_last_records(
    client: httpx.AsyncClient, catalogue: Catalogue
) -> None:
    assert "has been recorded yet" in (await client.get("/records")).text
    odd = f"a/../{ATTACK}?#%2F é"
    catalogue.record(
        AGENT,
        [
            stage("router", odd, at=1000.0, outcome="rejected", reason="encrypted: it wants a password"),
            stage("router", odd, at=2000.0, version="v2"),
            stage("parser", odd, at=3000.0, outcome="partial", reason="model-trouble"),
            stage("router", "other", at=4000.0),
        ],
    )
    listed = (await client.get("/records")).text
    assert listed.index(">other</a>") < listed.index("model-trouble")
    (link,) = {part.split('"')[0] for part in listed.split('href="')[1:] if part.startswith("/records/a")}
    shown = (await client.get(link)).text
    assert shown == (await client.get("/records", params={"id": odd})).text
    rows = shown.split("<tr data-service=")[1:]
    assert [row.split('"')[1] for row in rows] == ["router", "parser"]
    assert ">done<" in rows[0]
    assert ">partial<" in rows[1]
    assert "encrypted" not in shown, "a newer version counts"
    assert ATTACK not in shown
    assert "Nothing is recorded" in (await client.get("/records/nobody")).text
    assert (await client.get("/records/" + "x" * 2000)).status_code == 404
    assert (await client.get("/records/%00")).status_code in (200, 404)


async def test_whoever_is_not_logged_in_sees_no_record(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.get("/records")).status_code == 401
    assert (await stranger.get("/records/1")).status_code == 401


async def test_a_records_page_shows_its_stages_as_they_happen(
    page: Page, hub_url: str, redis: Redis, catalogue: Catalogue
) -> None:
    catalogue.record(AGENT, [stage("router", "r 1", at=1000.0)])
    await page.goto(f"{hub_url}/records/r%201")
    await expect(page.locator("#live")).to_have_text("live")

    async def say(service: str, state: str, **more: Any) -> None:
        await redis.publish(keys.progress_channel("r 1"), progress_message(service, "r 1", state, at=5000.0, **more))

    async def says(service: str, *words: str) -> None:
        row = page.locator(f'#stages tr[data-service="{service}"]')
        await expect(row.locator("td").nth(1)).to_have_text(words[0])
        await expect(row.locator("td").nth(2)).to_contain_text(words[1])

    await says("router", "done", "")
    while await redis.pubsub_numsub(keys.progress_channel("r 1")) != [(b"phoenix:progress:r 1", 1)]:
        await asyncio.sleep(0.02)
    await say("parser", "running", progress=0.5, note="page 2 of 4")
    await says("parser", "running", "page 2 of 4")
    assert await page.locator('#stages tr[data-service="parser"] progress').get_attribute("value") == "0.5"
    await say("parser", "rejected", note=ATTACK)
    await says("parser", "rejected", ATTACK)
    await say("grouper", "queued")
    await says("grouper", "queued", "")
    await expect(page.locator("#stages tbody tr")).to_have_count(3)
    for width in (320, 600, 1280):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
