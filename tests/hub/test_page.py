"""The page in a real browser."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from typing import Literal

import httpx
import pytest
from playwright.async_api import Page, async_playwright, expect
from redis.asyncio import Redis
from saq.job import Status

from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import ANALYSIS, FILE_TASKS, FINGERPRINT, METADATA
from agent.lanes import queue_name
from agent.phoenix.queue import LaneQueue
from tests.hub.deliveries import AGENT, result, scan, seen
from tests.hub.test_activity import put

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None and not os.environ.get("CI"), reason="needs chromium (apt-get install chromium)"
)

ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
async def page(hub_url: str, catalogue: Catalogue) -> AsyncIterator[Page]:
    """The page of three tracks, open in a browser; problems on the console fail the test."""
    scan(catalogue, "/m", [seen(f"/m/{name}") for name in "abc"])
    catalogue.record(
        AGENT,
        [
            result(METADATA, 1, "/m/a", artist=ATTACK, title=f"Zebra {ATTACK}"),
            result(METADATA, 2, "/m/b", artist="Abel", title="kite 10"),
            result(METADATA, 3, "/m/c", artist="Mara", title="Kite 9"),
            result(ANALYSIS, 1, "/m/a", bpm=128.0, bpm_confidence=2.0, camelot="10A", key="B", scale="minor"),
            result(ANALYSIS, 2, "/m/b", bpm=99.5, camelot="8A", key="A", scale="minor"),
            result(ANALYSIS, 3, "/m/c", outcome="rejected", reason="not-audio: a picture"),
        ],
    )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--headless=new", "--disable-dev-shm-usage"]
        )
        found = await browser.new_page(viewport={"width": 1280, "height": 800})
        complaints: list[str] = []
        found.on("console", lambda message: complaints.append(message.text))
        found.on("pageerror", lambda error: complaints.append(str(error)))
        await found.goto(hub_url)
        yield found
        await browser.close()
    assert complaints == []


async def titles(page: Page) -> list[str]:
    return [text[:7] for text in await page.locator("#tracks td.title").all_inner_texts()]


async def test_tags_are_text_whatever_they_hold(page: Page) -> None:
    await expect(page.locator("#tracks tbody tr")).to_have_count(3)
    await expect(page.get_by_text(f"Zebra {ATTACK}", exact=True)).to_be_visible()
    await page.wait_for_load_state("networkidle")
    assert await page.title() == "Tracks · phaze"
    assert await page.locator("#tracks img, #tracks script").count() == 0
    await expect(page.get_by_text("not-audio: a picture")).to_be_visible()


async def test_a_click_on_a_heading_sorts_in_place(page: Page) -> None:
    address = page.url
    await page.evaluate("window.sameDocument = true")
    bpm = page.get_by_role("columnheader", name="BPM")
    await bpm.get_by_role("link").click()
    assert await titles(page) == ["kite 10", "Zebra <", "Kite 9"]
    await bpm.get_by_role("link").press("Enter")
    await expect(bpm).to_have_attribute("aria-sort", "descending")
    assert await titles(page) == ["Zebra <", "kite 10", "Kite 9"], "what is unknown stays last"
    await page.get_by_role("columnheader", name="Title").get_by_role("link").click()
    assert await titles(page) == ["Kite 9", "kite 10", "Zebra <"]
    await page.get_by_role("columnheader", name="Key").get_by_role("link").click()
    assert await titles(page) == ["kite 10", "Zebra <", "Kite 9"], "8A before 10A"
    assert page.url == address
    assert await page.evaluate("window.sameDocument")


async def test_filters_are_a_form(page: Page) -> None:
    await page.get_by_label("Key").fill("A minor")
    await page.get_by_label("BPM").fill("90..100")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("#tracks tbody tr")).to_have_count(1)
    assert "key=A+minor" in page.url
    await page.get_by_role("link", name="Clear").click()
    await expect(page.locator("#tracks tbody tr")).to_have_count(3)


async def test_the_lanes_stay_current_and_new_results_are_offered(page: Page, catalogue: Catalogue) -> None:
    lane = page.locator('[data-lane="analyze"]')
    await expect(lane.locator('[data-count="settled"]')).to_have_text("3")
    await expect(page.locator("#news")).to_be_hidden()
    catalogue.record(AGENT, [result(service, i, f"/m/{n}") for service in FILE_TASKS for i, n in enumerate("abc", 1)])
    await expect(page.locator('[data-lane="fingerprint"] [data-count="settled"]')).to_have_text("3")
    await expect(page.locator("#state")).to_have_text("All done")
    await page.locator("#news").click()
    await expect(page.locator(".pending")).to_have_count(0)


async def test_nothing_takes_away_what_is_being_typed(page: Page, catalogue: Catalogue) -> None:
    """An empty page looks again by itself; not while somebody is at its filters."""
    await page.goto(page.url + "?q=nowhere")
    await page.evaluate("window.sameDocument = true")
    search, news = page.get_by_label("Search"), page.locator("#news")
    await search.fill("kite 1")
    await page.locator("#state").click()  # the focus is elsewhere; what was typed still is not sent
    catalogue.record(AGENT, [result(FINGERPRINT, 1, "/m/a")])
    await expect(news).to_be_visible()
    assert await page.evaluate("window.sameDocument")
    await expect(search).to_have_value("kite 1")
    await search.fill("nowhere")  # as it was sent, but somebody is about to type
    await page.wait_for_timeout(2500)
    assert await page.evaluate("window.sameDocument")
    await search.evaluate("field => field.blur()")
    await page.get_by_label("Problems only").check()
    await page.locator("#state").click()
    await page.wait_for_timeout(2500)
    assert await page.evaluate("window.sameDocument")
    async with page.expect_event("load", timeout=30_000):
        await page.get_by_label("Problems only").uncheck()
        await page.locator("#state").click()
    assert not await page.evaluate("window.sameDocument")
    await expect(page.get_by_text("No track matches.")).to_be_visible()
    await expect(news).to_be_hidden()


async def test_a_table_with_results_is_never_reloaded_under_a_reader(page: Page, catalogue: Catalogue) -> None:
    await page.evaluate("window.sameDocument = true")
    catalogue.record(AGENT, [result(FINGERPRINT, 1, "/m/a")])
    await expect(page.locator("#news")).to_be_visible()
    await page.wait_for_timeout(2500)
    assert await page.evaluate("window.sameDocument")


async def test_nothing_is_cut_off_at_any_width(page: Page) -> None:
    for width in (320, 600, 840, 1000, 1600):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        box = await page.get_by_text("not-audio: a picture").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


async def test_agents_and_queues_stay_current_and_fit_any_width(
    page: Page, client: httpx.AsyncClient, redis: Redis
) -> None:
    summary = page.locator("#overview summary")
    if await page.locator("#overview").get_attribute("open") is None:
        await summary.click()
    for pid in (7, 8, 7):
        beat = {"hostname": f"a-host-with-a-rather-long-name-{pid}", "worker_pid": pid}
        assert (await client.post(f"/api/agents/{AGENT}/heartbeat", json=beat)).status_code == 200
    io = LaneQueue(redis, name=queue_name(AGENT, "io"))
    for i in range(3):
        await io.enqueue("push_file", key=f"push_file:{i}")
    await expect(page.locator(f'tr[data-queue="{io.name}"] td').nth(2)).to_have_text("3")
    await expect(page.get_by_text("2 workers beat for it")).to_be_visible()
    await expect(summary).to_contain_text("1 alive")
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        await page.emulate_media(color_scheme=scheme)
        for width in (320, 600, 1280):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
    link = page.locator(f'tr[data-queue="{io.name}"] a')
    await link.focus()
    await io.enqueue("push_file", key="push_file:4")
    await page.wait_for_timeout(2500)
    await expect(link).to_be_focused()
    await link.click()
    await expect(page.get_by_text("push_file:4", exact=True)).to_be_visible()


async def test_what_runs_is_named_with_how_far_it_is(page: Page, catalogue: Catalogue, redis: Redis) -> None:
    """At once and after each look; the oldest first, what has just begun not at all, and none of it as markup."""
    long_name = "x" * 200 + ATTACK.replace("/", "")
    scan(catalogue, "/n", [seen(f"/n/{name}") for name in ("set.mp3", "short", long_name, *map(str, range(9)))])
    known = {track.path: track.id for track in catalogue.tracks()}
    await put(redis, known[f"/n/{long_name}"], state=Status.ACTIVE, ago=75, note="")
    await put(redis, known["/n/set.mp3"], state=Status.ACTIVE, ago=60, progress=0.25, note="15:00 of 1:00:00")
    await put(redis, known["/n/short"], state=Status.ACTIVE, ago=-600)
    now = page.locator("#now li")
    await expect(now).to_have_count(2)
    await expect(now.nth(1)).to_have_text("analyzeset.mp315:00 of 1:00:00")
    await expect(now.nth(0).locator(".far")).to_have_text(re.compile(r"1:\d\d so far"))
    assert await now.nth(1).locator("progress").get_attribute("value") == "0.25"
    await page.reload()
    await expect(now.nth(1)).to_have_text("analyzeset.mp315:00 of 1:00:00")
    widths = await now.evaluate_all("all => all.map(one => [one.scrollWidth - one.clientWidth, one.offsetHeight])")
    assert [wider for wider, _ in widths] == [0, 0]
    assert widths[0][1] == widths[1][1]
    for number in range(9):
        await put(redis, known[f"/n/{number}"], state=Status.ACTIVE, ago=30 + number)
    await expect(now.last).to_have_text("and 3 more")
    assert await page.locator("#now img, #now script").count() == 0
